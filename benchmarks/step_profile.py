"""Where the time of a step goes on CPUs, and how far each part is from what memory and arithmetic allow.

    python -m benchmarks.step_profile
    python -m benchmarks.step_profile --forms stored,int8,none:bfloat16 --write docs/benchmarks.md

A whole engine in this process: scheduler, pages, model, and the message that a step becomes. Three loads: W1, one
stream that decodes; W3, thirty-two of them; a step that only prefills. Each part has the median of its own time over
the steps, innermost parts first, so that what is left to a part is what it does itself. Floors are the longer of
reading a part's bytes and of multiplying its operands, at rates that were measured in the same run; what goes beyond
them is the last column. Steps without the recorder, in the same run, say what recording costs, and what small steps
gain by having the native calls of their layers repeated in one go, which can't be recorded. The floor of the head
counts all its bytes; where it only looks for the most likely tokens of a few rows, it reads about half of them.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.cpu_rates import BFLOAT16, FLOAT32, INT8, RateMeter, Rates
from benchmarks.machine import Conditions
from benchmarks.profiled_engine import KV_BYTES, Load, Profile, ProfiledEngine
from benchmarks.section import write_section
from benchmarks.step_recorder import PRODUCTS, Part
from engine.config import KV_CACHE_DTYPES, CheckpointError, ConfigError, EngineConfig, resolve_checkpoint
from engine.sampling_params import SamplingParams
from kernels.backends import choose_backend
from kernels.cpu.backend import NativeBackend
from kernels.roofline import Cost

SECTION = "step profile"
FORMS = {"stored": "auto", "int8": "int8", "int4": "int4", "none": "none"}
DTYPES = {"float32": FLOAT32, "bfloat16": BFLOAT16}
PREFILL_REPEATS = 8


@dataclass(frozen=True, slots=True)
class Form:
    """What weights are kept as, and what is computed with."""

    quantization: str
    dtype: str

    @classmethod
    def parse(cls, text: str, dtype: str) -> Form:
        """``FORM`` or ``FORM:DTYPE``. ValueError."""
        quantization, _, own = text.partition(":")
        if quantization not in FORMS or (own or dtype) not in DTYPES:
            raise ValueError(f"{text}: choose from {', '.join(FORMS)}, each with :{' or :'.join(DTYPES)} if you like")
        return cls(quantization, own or dtype)


def loads(prefill_tokens: int, streams: int) -> list[Load]:
    """W1 and W3 as in ``benchmarks.workload``, and a full step of one prompt."""
    return [
        Load("W1", 1, 128, 128),
        Load("W3", streams, 112, 144),
        Load("prefill", 1, prefill_tokens, prefill_tokens, prefills=True),
    ]


def profile_table(profiles: Sequence[Profile]) -> str:
    """A row per part that took any time, and the whole step; milliseconds and shares."""
    heads = [cell for one in profiles for cell in (f"{one.load.name}, ms", "share")]
    lines = ["| part | " + " | ".join(heads) + " |", "|---|" + "---:|---:|" * len(profiles)]
    for part in Part:
        cells = [cell for one in profiles for cell in _time_cells(one.parts[part], one.seconds)]
        if any(one.parts[part] for one in profiles):
            lines.append(f"| {part} | " + " | ".join(cells) + " |")
    whole = [cell for one in profiles for cell in _time_cells(one.seconds, one.seconds)]
    plain = [cell for one in profiles for cell in _time_cells(one.unwatched_seconds, one.seconds)]
    text = [cell for one in profiles for cell in _time_cells(one.text_seconds, one.seconds)]
    lines.append(f"| **step** | {' | '.join(whole)} |")
    lines.append(f"| step without the recorder | {' | '.join(plain)} |")
    return "\n".join([*lines, f"| meanwhile in the API process: message to text | {' | '.join(text)} |"])


def _time_cells(seconds: float, whole: float) -> tuple[str, str]:
    return f"{seconds * 1e3:.2f}", f"{seconds / whole:.1%}"


def roofline_table(profile: Profile, rates: Rates, products: str, attention: str = FLOAT32) -> str:
    """A row per part: what it must move and multiply, its floor, how near it is.

    ``products`` are the operands of weights' products, ``attention`` those of attention's.
    """
    lines = ["| part | MB | MFLOP | floor, ms | bound by | took, ms | of floor | beyond, ms |", "|---|" + "---:|" * 7]
    floors = 0.0
    for part in Part:
        took = profile.parts[part]
        cost = profile.costs.get(part, Cost(0))
        operands = products if part in PRODUCTS else attention if part is Part.ATTENTION else FLOAT32
        floor = rates.floor_seconds(cost, operands)
        floors += floor
        if not took:
            continue
        bound = "memory" if rates.is_bound_by_memory(cost, operands) else f"{operands} products"
        cells = [f"{cost.bytes / 1e6:.2f}", f"{cost.flops / 1e6:,.0f}", f"{floor * 1e3:.2f}", bound]
        left = cells if floor else ["-"] * 4
        lines.append(f"| {part} | {' | '.join(left)} | {_beyond(took, floor)} |")
    total = sum(profile.costs.values(), Cost(0))
    cells = [f"{total.bytes / 1e6:.2f}", f"{total.flops / 1e6:,.0f}", f"{floors * 1e3:.2f}", ""]
    lines.append(f"| **step** | {' | '.join(cells)} | {_beyond(profile.seconds, floors)} |")
    return "\n".join(lines)


def _beyond(took: float, floor: float) -> str:
    share = f"{floor / took:.0%}" if floor else "-"
    return f"{took * 1e3:.2f} | {share} | {(took - floor) * 1e3:.2f}"


def report(form: Form, model: str | None, arguments: argparse.Namespace) -> str:
    """The tables of one form of weights. Raises ConfigError, CheckpointError or ValueError."""
    config = EngineConfig(
        model=str(resolve_checkpoint(model).path),
        dtype=form.dtype,
        quantization=FORMS[form.quantization],
        kv_cache_dtype=arguments.kv_cache_dtype,
        device="cpu",
        max_num_seqs=max(arguments.streams, 1),
        max_num_batched_tokens=max(arguments.prefill_tokens, arguments.streams),
        kv_cache_memory_bytes=KV_BYTES,
        threads=arguments.threads,
        enable_prefix_caching=False,
    )
    engine = ProfiledEngine(config)
    ready = engine.ready
    products = ready.weight_form if ready.weight_form in DTYPES else INT8
    meter = RateMeter()
    attention = _attention_operands(ready.kv_dtype)
    operands = sorted({products, attention, FLOAT32})
    sampling = SamplingParams(max_tokens=1, temperature=arguments.temperature, top_p=arguments.top_p, seed=0)
    profiles = []
    for load in loads(arguments.prefill_tokens, arguments.streams):
        meter.sample(operands)
        steps = min(arguments.steps, PREFILL_REPEATS) if load.prefills else arguments.steps
        profiles.append(engine.profile(load, steps, sampling))
    meter.sample(operands)
    rates = meter.rates()
    title = f"### Weights {ready.weight_form}, computed in {ready.dtype}"
    facts = (
        f"{ready.weight_bytes / 1e6:,.0f} MB of weights, pages of {ready.kv_dtype}, {ready.threads} threads; {rates}."
    )
    parts = [title, facts, profile_table(profiles)]
    for one in profiles:
        lens = f"{one.load.num_seqs} x {one.load.first} to {one.load.last} tokens"
        parts.append(f"{one.load.name} ({lens}) beside its floor:\n\n{roofline_table(one, rates, products, attention)}")
    return "\n\n".join(parts)


def _attention_operands(kv_dtype: str) -> str:
    """What attention multiplies over such pages on this machine."""
    backend, _ = choose_backend(torch.device("cpu"))
    is_short = isinstance(backend, NativeBackend) and backend.library.variant.has_bf16
    return BFLOAT16 if is_short and kv_dtype not in ("float32", "float16") else FLOAT32


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.step_profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="as for octavo serve; default: the demo model")
    parser.add_argument(
        "--forms", "--quantization", default="stored", help=f"of weights: some of {','.join(FORMS)}, or FORM:DTYPE"
    )
    parser.add_argument("--dtype", default="float32", choices=tuple(DTYPES), help="of forms that name none")
    parser.add_argument("--kv-cache-dtype", default="auto", choices=KV_CACHE_DTYPES)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--steps", type=int, default=64, metavar="N", help="of each load, after some to warm up")
    parser.add_argument("--streams", type=int, default=32, metavar="N", help="of W3")
    parser.add_argument("--prefill-tokens", type=int, default=512, metavar="N")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: greedy, where the head draws by itself")
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables between the markers of FILE")
    parser.add_argument("--section", default=SECTION, metavar="NAME", help="of the markers (default: %(default)s)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if min(arguments.steps, arguments.streams, arguments.prefill_tokens) < 1:
        parser.error("--steps, --streams and --prefill-tokens must be at least 1")
    conditions = Conditions.now()
    reports = []
    try:
        for form in [Form.parse(text, arguments.dtype) for text in arguments.forms.split(",")]:
            reports.append(report(form, arguments.model, arguments))
            gc.collect()  # an engine is full of cycles, and the next one needs its memory
    except (CheckpointError, ConfigError, ValueError) as error:
        parser.error(str(error))
    text = "\n\n".join([f"{conditions}; medians of {arguments.steps} steps", *reports])
    print(text)
    if arguments.write:
        write_section(arguments.write, arguments.section, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
