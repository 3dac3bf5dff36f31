"""What tests of every package share: tiny random checkpoints, made on the fly, the demo model, and transformers."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.transformers_process import TransformersProcess

if platform.machine().lower() in ("x86_64", "amd64"):
    # Triton's interpreter multiplies by numpy, whose BLAS for AVX2 (Haswell, Zen) adds up a row by where it lies in a
    # block. Bits of kernels are compared by one that does not, chosen before anything imports numpy.
    os.environ.setdefault("OPENBLAS_CORETYPE", "Sandybridge")

BOS, EOS = 256, 257  # ids of the tiny tokenizer; 0..255 are bytes, 258 and up are merges


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--alone", choices=["only", "never"], help="run only, or never, what is marked alone")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Spare the import of modules in which nothing is marked."""
    if config.getoption("--alone") == "only" and collection_path.suffix == ".py":
        return "mark.alone" not in collection_path.read_text() or None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--alone")
    if wanted is not None:
        chosen: dict[bool, list[pytest.Item]] = {True: [], False: []}
        for item in items:
            chosen[(item.get_closest_marker("alone") is not None) == (wanted == "only")].append(item)
        items[:] = chosen[True]
        config.hook.pytest_deselected(items=chosen[False])


@pytest.fixture(autouse=True)
def threads_of_others_are_left() -> Iterator[None]:
    """Whatever a test or an engine in it sets, the next one has the number of torch's threads that this one had."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else None
    yield
    if before is not None and torch.get_num_threads() != before:
        torch.set_num_threads(before)


@pytest.fixture(scope="session")
def default_gguf() -> Path:
    """The demo model's GGUF file."""
    from models.checkpoint import resolve_checkpoint

    return resolve_checkpoint(None).path


@pytest.fixture(scope="session")
def transformers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TransformersProcess]:
    """The oracle of models and tokenizers, one process for all tests."""
    pytest.importorskip("transformers", reason="the oracle is a development dependency")
    process = TransformersProcess(tmp_path_factory.mktemp("transformers"))
    yield process
    process.close()


@pytest.fixture(scope="session")
def tiny_llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 2 layers with random weights and 4 query to 2 key heads, in Hugging Face layout."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
    }
    norms = ["input_layernorm", "post_attention_layernorm"]
    return _write_checkpoint(tmp_path_factory.mktemp("tiny-llama"), config, norms, norm_center=1.0)


@pytest.fixture(scope="session")
def tiny_gemma3_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Gemma 3 of 7 layers with random weights, window 32 on all but the sixth, in Hugging Face layout."""
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "sliding_window": 32,
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
    }
    norms = [
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
        "self_attn.q_norm",
        "self_attn.k_norm",
    ]
    return _write_checkpoint(tmp_path_factory.mktemp("tiny-gemma3"), config, norms, norm_center=0.0)


@pytest.fixture(scope="session")
def tiny_mixtral_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Mixtral of 2 layers with random weights and 6 experts, of which each token goes to 2, as it is published."""
    config = {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
    }
    norms = ["input_layernorm", "post_attention_layernorm"]
    return _write_checkpoint(tmp_path_factory.mktemp("tiny-mixtral"), config, norms, norm_center=1.0)


def _write_checkpoint(directory: Path, config: dict[str, object], norms: list[str], norm_center: float) -> Path:
    """Write config, tokenizer and seeded random weights that make attention and every norm matter."""
    import torch
    from safetensors.torch import save_file

    vocab_size = _write_tokenizer(directory)
    hidden, head_dim = (int(str(config[key])) for key in ("hidden_size", "head_dim"))
    q_size = int(str(config["num_attention_heads"])) * head_dim
    kv_size = int(str(config["num_key_value_heads"])) * head_dim
    generator = torch.Generator().manual_seed(20240816)

    def normal(*shape: int, std: float, mean: float = 0.0) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * std + mean

    weights = {"model.embed_tokens.weight": normal(vocab_size, hidden, std=0.5)}
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = normal(vocab_size, hidden, std=0.2)
    for index in range(int(str(config["num_hidden_layers"]))):
        prefix = f"model.layers.{index}."
        for name, rows, columns in [
            ("self_attn.q_proj", q_size, hidden),
            ("self_attn.k_proj", kv_size, hidden),
            ("self_attn.v_proj", kv_size, hidden),
            ("self_attn.o_proj", hidden, q_size),
            *_mlp_matrices(config),
        ]:
            weights[f"{prefix}{name}.weight"] = normal(rows, columns, std=1.5 * columns**-0.5)
        for name in norms:
            size = head_dim if name.startswith("self_attn") else hidden
            weights[f"{prefix}{name}.weight"] = normal(size, std=0.2, mean=norm_center)
    weights["model.norm.weight"] = normal(hidden, std=0.2, mean=norm_center)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})

    token_ids = {"bos_token_id": BOS, "eos_token_id": EOS}
    (directory / "config.json").write_text(
        json.dumps({**config, **token_ids, "vocab_size": vocab_size, "dtype": "float32"}, indent=1)
    )
    (directory / "generation_config.json").write_text(json.dumps(token_ids))
    return directory


def _mlp_matrices(config: dict[str, object]) -> list[tuple[str, int, int]]:
    """Name, rows and columns of what a layer's MLP or mixture of experts has."""
    hidden, inner = (int(str(config[key])) for key in ("hidden_size", "intermediate_size"))
    num_experts = int(str(config.get("num_local_experts", 0)))
    if not num_experts:
        return [("mlp.gate_proj", inner, hidden), ("mlp.up_proj", inner, hidden), ("mlp.down_proj", hidden, inner)]
    matrices = [("block_sparse_moe.gate", num_experts, hidden)]
    for expert in range(num_experts):
        prefix = f"block_sparse_moe.experts.{expert}."
        matrices += [(f"{prefix}w1", inner, hidden), (f"{prefix}w2", hidden, inner), (f"{prefix}w3", inner, hidden)]
    return matrices


def _write_tokenizer(directory: Path) -> int:
    """Write a byte-level BPE: 256 bytes, <bos>, <eos>, and merges that common English needs; returns its size."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    symbols = _byte_symbols()
    vocab = {symbol: byte for byte, symbol in enumerate(symbols)}
    vocab |= {"<bos>": BOS, "<eos>": EOS}
    merges = []
    for word in (" the", " and", " of", " to", " in", "ing", "er", "on", "re", " a", " Hello", "lo", " world"):
        left = symbols[ord(word[0])]
        for letter in word[1:]:
            right = symbols[ord(letter)]
            if left + right not in vocab:
                vocab[left + right] = len(vocab)
                merges.append((left, right))
            left += right
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    tokenizer.add_special_tokens([AddedToken("<bos>", special=True), AddedToken("<eos>", special=True)])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>"})
    )
    return len(vocab)


def _byte_symbols() -> list[str]:
    """The printable character that stands for each byte in byte-level BPE."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]
