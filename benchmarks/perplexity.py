"""What forms of weights and dtypes of KV pages cost in quality: perplexity of one text, and agreement with floats.

    python -m benchmarks.perplexity --write docs/quality.md
    python -m benchmarks.perplexity --quantization none --max-tokens 4096
    python -m benchmarks.perplexity path/to/model --kv-cache-dtype float32,int8 --every-pair --text FILE

Every form of weights is read over pages of the first dtype, and the first form over pages of every dtype; with
--every-pair, each over each. "bfloat16" among the forms are floats of that dtype, in which the model then computes; in
all other forms it computes in --dtype.
The text is cut into windows of --context tokens, each behind a BOS of its own, and every token is predicted from those
before it in its window, through the path that serves: prefill in chunks over KV pages, with pages behind sliding
windows given back. All run side by side, so that each next-token distribution is compared with the first's.

Without --text it is the beginning of Ambrose Bierce's Devil's Dictionary (1911, in the public domain), English prose
and verse, 20,018 tokens for the demo model.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks.machine import Conditions
from benchmarks.section import write_section
from block_manager.groups import plan_groups
from block_manager.hashing import BlockHashes
from block_manager.kv_cache import KVCache
from block_manager.manager import BlockManager
from block_manager.sizing import Capacity
from engine.choices import choose_forms
from engine.config import KV_CACHE_DTYPE_ALIASES, KV_CACHE_DTYPES, QUANTIZATIONS, ConfigError, resolve_checkpoint
from engine.input_batch import InputBatch
from kernels.attention import KVPages, PagedLayer
from kernels.backends import check_page_dtype, choose_backend
from models.loader import load_model
from models.model import CausalLM
from scheduler.batch import ScheduledBatch, ScheduledRequest
from server.text_parts import load_text_parts

BLOCK_SIZE = 16
CHUNK = 64  # tokens a step: bounds the logits of all dtypes, which are kept at once
SEQUENCE = "text"
SECTION = "quality"
TEXT = Path(__file__).with_name("texts") / "devils_dictionary.txt"
FLOATS = ("bfloat16", "float16")  # forms of weights that are dtypes


class PagedReader:
    """Reads windows of a text over pages of one dtype."""

    def __init__(self, model: CausalLM, dtype: torch.dtype, context: int, device: torch.device) -> None:
        spec = model.spec
        self._model = model
        self._groups = plan_groups([layer.window for layer in spec.layers])
        num_pages = Capacity(self._groups, BLOCK_SIZE, 0, CHUNK).peak_pages(context, CHUNK)
        self._blocks = BlockManager(self._groups, num_pages, BLOCK_SIZE, enable_prefix_caching=False)
        self._inputs = InputBatch(self._groups, BLOCK_SIZE, 1, context, device)
        cache = KVCache(self._groups, num_pages, BLOCK_SIZE, spec.num_kv_heads, spec.head_dim, dtype, device)
        pages = [KVPages(*cache.slot_tensors(slot)) for slot in range(len(cache.key_pages))]
        places = [cache.place(layer) for layer in range(spec.num_layers)]
        self._layers = [(pages[slot], group, column) for group, column, slot in places]
        columns = sum(group.pages_per_block for group in self._groups)
        self.bytes_per_token = cache.page_bytes * columns // BLOCK_SIZE
        self._num_computed = 0

    def begin(self) -> None:
        """Forget the window before."""
        if self._num_computed:
            self._blocks.free(SEQUENCE)
        self._num_computed = 0

    def read(self, token_ids: list[int]) -> torch.Tensor:
        """The window's next tokens; float32 log probabilities [tokens, vocab_size] of what follows each."""
        end = self._num_computed + len(token_ids)
        hashes = BlockHashes(BLOCK_SIZE)
        is_first = not self._num_computed
        if is_first:
            fits = self._blocks.admit(SEQUENCE, self._blocks.match_prefix(hashes, end), end)
        else:
            fits = self._blocks.grow(SEQUENCE, end)
        assert fits, "the pool was made for the whole window"
        share = ScheduledRequest(
            request_id=SEQUENCE,
            turn=1,
            token_ids=token_ids,
            num_computed_tokens=self._num_computed,
            samples=False,
            admitted=is_first,
            sequence_ids=(),
            output_index=0,
            new_blocks=self._blocks.take_changed_blocks(SEQUENCE),
        )
        step = self._inputs.prepare(ScheduledBatch((share,), released=(SEQUENCE,) if is_first else ()))
        layers = [PagedLayer(pages, step.metadata[group][column]) for pages, group, column in self._layers]
        rows = torch.arange(len(token_ids), device=step.positions.device)
        logits = self._model.forward(step.token_ids, step.positions, layers, rows)
        self._blocks.commit(SEQUENCE, end, hashes)
        self._num_computed = end
        return logits.log_softmax(-1)


@dataclass
class Score:
    """Sums over all predicted tokens of one dtype. ``divergence`` is KL(first || this), in nats."""

    loss: float = 0.0
    divergence: float = 0.0
    agreements: int = 0
    tokens: int = 0

    def add(self, log_p: torch.Tensor, first: torch.Tensor, targets: torch.Tensor) -> None:
        self.loss -= log_p.gather(1, targets[:, None]).double().sum().item()
        if log_p is not first:
            self.divergence += (first.exp() * (first - log_p)).sum(-1, dtype=torch.float64).sum().item()
        self.agreements += int((log_p.argmax(-1) == first.argmax(-1)).sum())
        self.tokens += len(targets)

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss / self.tokens)


@torch.inference_mode()
def score(readers: Sequence[PagedReader], token_ids: list[int], bos: int | None, context: int) -> list[Score]:
    """Predict every token (without a BOS: every one but the first of a window) with each reader."""
    scores = [Score() for _ in readers]
    lead = [] if bos is None else [bos]
    size = context - len(lead) + 1  # the last token of a window is predicted, never read
    windows = [lead + token_ids[start : start + size] for start in range(0, len(token_ids), size)]
    with tqdm(total=sum(len(window) - 1 for window in windows), unit="tok", disable=None, leave=False) as bar:
        for window in windows:
            for reader in readers:
                reader.begin()
            for start in range(0, len(window) - 1, CHUNK):
                targets = torch.tensor(window[start + 1 : start + CHUNK + 1])
                chunk = window[start : start + len(targets)]
                first = readers[0].read(chunk)
                targets = targets.to(first.device)
                for index, (reader, sums) in enumerate(zip(readers, scores, strict=True)):
                    sums.add(reader.read(chunk) if index else first, first, targets)
                bar.update(len(chunk))
    return scores


@dataclass(frozen=True, slots=True)
class Variant:
    """One row: a form of weights, as it came out, and a dtype of pages."""

    weights: str
    weight_bytes: int
    pages: str
    bytes_per_token: int


def table(variants: Sequence[Variant], scores: Sequence[Score]) -> str:
    """Markdown; the first row is what the others are compared with."""
    lines = [
        "| weights | MB | pages | bytes a token | perplexity | against the first | KL, nats | same top token |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for variant, one in zip(variants, scores, strict=True):
        change = one.perplexity / scores[0].perplexity - 1
        lines.append(
            f"| {variant.weights} | {variant.weight_bytes / 1e6:,.0f} | {variant.pages} | "
            f"{variant.bytes_per_token:,} | {one.perplexity:.4f} | {change:+.3%} | "
            f"{one.divergence / one.tokens:.2e} | {one.agreements / one.tokens:.2%} |"
        )
    return "\n".join(lines)


def dtype_of(name: str) -> tuple[str, torch.dtype]:
    """A page dtype by its flag's name, and that name spelt out; raises ValueError."""
    name = KV_CACHE_DTYPE_ALIASES.get(name, name)
    if name not in KV_CACHE_DTYPES or name == "auto":
        raise ValueError(f"{name}: choose from {', '.join(KV_CACHE_DTYPES[1:])}")
    return name, torch.float8_e4m3fn if name == "fp8_e4m3" else getattr(torch, name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.perplexity", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", nargs="?", metavar="MODEL", help="as for octavo serve; default: the demo model")
    parser.add_argument("--kv-cache-dtype", default=",".join(KV_CACHE_DTYPES[1:]), metavar="DTYPES")
    names = (*QUANTIZATIONS, *FLOATS)
    parser.add_argument(
        "--quantization", default="none,bfloat16,auto,int8,int4", metavar="FORMS", help=f"some of {', '.join(names)}"
    )
    parser.add_argument("--dtype", default="float32", choices=("float32", *FLOATS))
    parser.add_argument("--every-pair", action="store_true", help="every form of weights over pages of every dtype")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--text", type=Path, default=TEXT, metavar="FILE", help="UTF-8 text to score")
    parser.add_argument("--max-tokens", type=int, default=20_000, metavar="N", help="tokens to score at most")
    parser.add_argument("--context", type=int, default=2048, metavar="N", help="tokens in a window")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between the markers of FILE")
    parsed = parser.parse_args(arguments)
    device = torch.device(parsed.device)
    try:
        chosen = [dtype_of(name) for name in parsed.kv_cache_dtype.split(",")]
        for _, dtype in chosen:
            check_page_dtype(dtype, device)
    except ValueError as error:
        parser.error(f"--kv-cache-dtype {error}")
    forms = parsed.quantization.split(",")
    if unknown := set(forms) - set(names):
        parser.error(f"--quantization {', '.join(sorted(unknown))}: choose from {', '.join(QUANTIZATIONS)}")

    checkpoint = resolve_checkpoint(parsed.model)
    tokenizer = load_text_parts(checkpoint, None).tokenizer
    try:
        text = parsed.text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"--text {parsed.text}: {error}")
    token_ids = tokenizer.encode(text, add_special_tokens=False)[: parsed.max_tokens]
    backend, _ = choose_backend(device)
    try:
        models = {
            form: load_model(
                checkpoint,
                checkpoint.read_spec(),
                device=device,
                dtype=getattr(torch, form if form in FLOATS else parsed.dtype),
                backend=backend,
                forms=None if form in FLOATS else choose_forms(form, backend),
            )
            for form in forms
        }
    except ConfigError as error:
        parser.error(str(error))
    pairs = [
        (form, pages)
        for form, pages in itertools.product(forms, chosen)
        if parsed.every_pair or form == forms[0] or pages == chosen[0]
    ]
    readers = [PagedReader(models[form], dtype, parsed.context, device) for form, (_, dtype) in pairs]
    variants = [
        Variant(form, models[form].weight_bytes(), name, reader.bytes_per_token)
        for (form, (name, _)), reader in zip(pairs, readers, strict=True)
    ]
    bos = tokenizer.bos_token_id if tokenizer.adds_bos else None
    scores = score(readers, token_ids, bos, parsed.context)
    conditions = (
        f"{scores[0].tokens:,} tokens of {parsed.text.name} in windows of {parsed.context:,}; {checkpoint.name}, "
        f"computed in {parsed.dtype} by {backend.name}; {Conditions.now()}"
    )
    report = f"{conditions}\n\n{table(variants, scores)}"
    print(report)
    if parsed.write:
        write_section(parsed.write, SECTION, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
