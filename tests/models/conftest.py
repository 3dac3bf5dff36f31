"""What the model tests share: our logits over KV pages, the oracle's, and the demo model in Hugging Face layout."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf.quants import dequantize
from safetensors.torch import save_file

from kernels.attention import AttentionMetadata, KVPages, PagedLayer
from models.gguf_file import GGUFFile
from models.model import CausalLM
from tests.transformers_process import TransformersProcess

BLOCK_SIZE = 16
Prompts = list[list[int]]
Rows = list[list[int]]
LogitsOf = Callable[..., list[torch.Tensor]]
Oracle = Callable[[list["OracleJob"]], list[list[torch.Tensor]]]


class GroupPages:
    """Pages of one layer group, in shuffled order; every slot that holds no token a row may see is NaN."""

    def __init__(self, model: CausalLM, window: int | None, lengths: list[int], dtype: torch.dtype) -> None:
        spec = model.spec
        blocks = [-(-length // BLOCK_SIZE) for length in lengths]
        shuffled = torch.randperm(sum(blocks), generator=torch.Generator().manual_seed(7)) + 1
        self.window = window
        self.table = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
        for row, ids in enumerate(shuffled.split(blocks)):
            self.table[row, : len(ids)] = ids
        shape = (sum(blocks) + 1, spec.num_kv_heads, BLOCK_SIZE, spec.head_dim)
        self.layers = {
            index: (torch.full(shape, torch.nan, dtype=dtype), torch.full(shape, torch.nan, dtype=dtype))
            for index, layer in enumerate(spec.layers)
            if layer.window == window
        }

    def free_behind_window(self, sequence: int, num_computed: int) -> None:
        """Give back the pages that no row from position ``num_computed`` on can see."""
        if self.window is None:
            return
        for block in range(max(0, num_computed - self.window + 1) // BLOCK_SIZE):
            page = int(self.table[sequence, block])
            for keys, values in self.layers.values():
                keys[page] = torch.nan
                values[page] = torch.nan
            self.table[sequence, block] = 0


@torch.inference_mode()
def run_over_pages(
    model: CausalLM, prompts: Prompts, rows: Rows, *, chunk: int, dtype: torch.dtype, num_single: int = 0
) -> list[torch.Tensor]:
    """Logits [rows, vocab_size] per prompt: all prompts side by side, at most ``chunk`` tokens of each in a step.

    The last ``num_single`` tokens of each prompt are steps of their own, as in decoding.
    """
    lengths = [len(prompt) for prompt in prompts]
    groups = [GroupPages(model, window, lengths, dtype) for window in {layer.window for layer in model.spec.layers}]
    computed = [0] * len(prompts)
    found: list[list[torch.Tensor]] = [[] for _ in prompts]
    while any(done < length for done, length in zip(computed, lengths, strict=True)):
        running = [index for index, length in enumerate(lengths) if computed[index] < length]
        ends = [max(lengths[i] - num_single, computed[i] + 1) for i in running]
        spans = [range(computed[i], min(computed[i] + chunk, end)) for i, end in zip(running, ends, strict=True)]
        positions = torch.tensor([position for span in spans for position in span])
        sequences = torch.tensor([i for i, span in zip(running, spans, strict=True) for _ in span])
        starts = torch.tensor([0, *(len(span) for span in spans)]).cumsum(0).to(torch.int32)
        seq_lens = torch.tensor([span.stop for span in spans], dtype=torch.int32)
        layers: dict[int, PagedLayer] = {}
        for group in groups:
            pages = group.table[sequences, positions // BLOCK_SIZE].long()
            metadata = AttentionMetadata(
                query_start_loc=starts,
                seq_lens=seq_lens,
                block_table=group.table[running].contiguous(),
                slot_mapping=pages * BLOCK_SIZE + positions % BLOCK_SIZE,
                max_query_len=max(len(span) for span in spans),
                max_seq_len=int(seq_lens.max()),
            )
            layers |= {index: PagedLayer(KVPages(*tensors), metadata) for index, tensors in group.layers.items()}
        owners = [
            (i, start + span.index(row))
            for i, start, span in zip(running, starts.tolist(), spans, strict=False)
            for row in rows[i]
            if row in span
        ]
        logits = model.forward(
            torch.tensor([prompts[i][p] for i, span in zip(running, spans, strict=True) for p in span]),
            positions,
            [layers[index] for index in range(model.spec.num_layers)],
            torch.tensor([row for _, row in owners], dtype=torch.int64),
        )
        for (i, _), row_logits in zip(owners, logits, strict=True):
            found[i].append(row_logits)
        for i, span in zip(running, spans, strict=True):
            computed[i] = span.stop
            for group in groups:
                group.free_behind_window(i, span.stop)
    return [torch.stack(rows_found) for rows_found in found]


@pytest.fixture(scope="session")
def oracle_job() -> type[OracleJob]:
    return OracleJob


@pytest.fixture
def paged_logits() -> LogitsOf:
    """``paged_logits(model, prompts, rows, chunk=, dtype=)``; see `run_over_pages`."""
    return run_over_pages


@dataclass(frozen=True)
class OracleJob:
    """A directory in Hugging Face layout, prompts, and per prompt the positions whose logits are wanted."""

    directory: Path
    prompts: Prompts
    rows: Rows


@pytest.fixture(scope="session")
def oracle_logits(transformers: TransformersProcess, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """``oracle_logits(jobs)``: float32 logits [rows, vocab_size] per prompt of each job, by transformers."""

    def answer(job: OracleJob) -> list[torch.Tensor]:
        output = tmp_path_factory.mktemp("oracle") / "logits.npz"
        transformers.ask("logits", directory=str(job.directory), prompts=job.prompts, rows=job.rows, output=str(output))
        with np.load(output) as logits:
            return [torch.from_numpy(logits[str(index)]) for index in range(len(job.prompts))]

    return lambda jobs: [answer(job) for job in jobs]


@pytest.fixture
def single_thread() -> Iterator[None]:
    """One torch thread: tiny tensors are not worth a team, which waits for its slowest thread on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


HF_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}


@pytest.fixture(scope="session")
def table_rows() -> torch.Tensor:
    """The rows of the demo model's table that transformers is given, since the whole is two thirds of the model: those
    of the tokens that prompts have, and of all others every 61st.
    """
    return torch.cat([torch.arange(20_000), torch.arange(20_000, 262_144, 61)])


@pytest.fixture(scope="session")
def default_model_hf_dir(
    default_gguf: Path, table_rows: torch.Tensor, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The demo model in Hugging Face layout, float32, dequantised by the gguf library alone; without a tokenizer."""
    directory = tmp_path_factory.mktemp("gemma-3-270m")
    weights = {}
    for name, tensor in GGUFFile(default_gguf).tensors.items():
        is_table = name == "token_embd.weight"
        data = tensor.data[table_rows.numpy()] if is_table else tensor.data
        values = torch.from_numpy(dequantize(data, tensor.quantization))
        if is_table:
            hf_name = "model.embed_tokens.weight"
        elif name == "output_norm.weight":
            hf_name = "model.norm.weight"
        else:
            _, index, part, _ = name.split(".")
            hf_name = f"model.layers.{index}.{HF_LAYER_NAMES[part]}.weight"
        weights[hf_name] = values - 1.0 if name.endswith("norm.weight") else values
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "vocab_size": len(table_rows),
        "hidden_size": 640,
        "intermediate_size": 2048,
        "num_hidden_layers": 18,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "dtype": "float32",
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory
