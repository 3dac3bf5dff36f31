"""An inspection in words and as plain data.

Knows units and columns, not how anything is found out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.inspection import Inspection

_BYTES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def as_data(inspection: Inspection) -> dict[str, Any]:
    """Plain numbers: bytes, tokens, pages, parameters; rope rules by the number of layers that have them."""
    about, spec = inspection.description, inspection.description.spec
    return {
        "model": about.name,
        "architecture": spec.architecture,
        "parameters": about.weights.parameters,
        "active_parameters": about.weights.active,
        "weight_bytes": about.weights.num_bytes,
        "weight_bytes_by_dtype": dict(about.weights.bytes_by_form),
        "layers": spec.num_layers,
        "full_layers": sum(layer.window is None for layer in spec.layers),
        "windowed_layers": sum(layer.window is not None for layer in spec.layers),
        "windows": sorted({layer.window for layer in spec.layers if layer.window is not None}),
        "query_heads": spec.num_q_heads,
        "kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "experts": None if spec.experts is None else spec.experts.num_experts,
        "experts_per_token": None if spec.experts is None else spec.experts.per_token,
        "context": spec.max_position,
        "max_model_len": inspection.max_model_len,
        "rope": _ropes(inspection),
        "vocab_size": spec.vocab_size,
        "tokenizer": about.tokenizer,
        "has_chat_template": about.has_chat_template,
        "block_size": inspection.block_size,
        "memory": inspection.budget.memory,
        "page_memory": inspection.budget.pages,
        "kv": [
            {
                "dtype": fit.kv_dtype,
                "page_bytes": fit.page_bytes,
                "bytes_per_token": {"full": fit.full_token_bytes, "windowed": fit.windowed_token_bytes},
                "pages": fit.num_pages,
                "tokens": fit.num_tokens,
                "sequences": [
                    {"length": length, "bytes": size, "fit": count}
                    for length, size, count in zip(
                        inspection.lengths, fit.sequence_bytes, fit.num_sequences, strict=True
                    )
                ],
            }
            for fit in inspection.fits
        ],
    }


def as_text(inspection: Inspection) -> str:
    """The facts, one a line, and two tables by KV dtype: what tokens and sequences take, and how many fit."""
    about, spec = inspection.description, inspection.description.spec
    weights = about.weights
    parameters = f"{weights.parameters:,}"
    if spec.experts is not None:
        parameters += (
            f", {weights.active:,} of them for each token ({spec.experts.per_token} of {spec.experts.num_experts} "
            "experts)"
        )
    stored = ", ".join(f"{form} {in_bytes(size)}" for form, size in weights.bytes_by_form.items())
    longest = "" if inspection.max_model_len == spec.max_position else f"; {inspection.max_model_len:,} asked for"
    facts = [
        ("model", about.name),
        ("architecture", spec.architecture),
        ("parameters", parameters),
        ("weights", f"{in_bytes(weights.num_bytes)} as stored: {stored}"),
        ("layers", _layers(inspection)),
        ("heads", f"{spec.num_q_heads} query and {spec.num_kv_heads} KV heads of {spec.head_dim} elements"),
        ("context", f"{spec.max_position:,} tokens{longest}"),
        ("rope", "; ".join(_ropes(inspection)) or "none"),
        ("vocabulary", f"{spec.vocab_size:,} tokens, {about.tokenizer or 'without a tokenizer'}"),
        ("chat template", "yes" if about.has_chat_template else "no"),
        ("memory", f"{in_bytes(inspection.budget.memory)} {inspection.budget.explanation}"),
        ("for KV pages", f"{in_bytes(inspection.budget.pages)}, in pages of {inspection.block_size} tokens"),
    ]
    lengths = [f"{length:,}" for length in inspection.lengths]
    takes = [["KV dtype", "a token, full", "a token, windowed", *(f"a sequence of {length}" for length in lengths)]]
    fits = [["KV dtype", "pages", "tokens", *(f"sequences of {length}" for length in lengths)]]
    for fit in inspection.fits:
        windowed = f"{fit.windowed_token_bytes:,} B" if fit.windowed_token_bytes else "-"
        full = f"{fit.full_token_bytes:,} B" if fit.full_token_bytes else "-"
        takes.append([fit.kv_dtype, full, windowed, *map(in_bytes, fit.sequence_bytes)])
        counts = (fit.num_pages, fit.num_tokens, *fit.num_sequences)
        fits.append([fit.kv_dtype, *(f"{count:,}" for count in counts)])
    head = "\n".join(f"  {name:<14} {value}" for name, value in facts)
    return "\n\n".join([head, "  What KV memory takes", _table(takes), "  What fits", _table(fits)])


def in_bytes(size: int) -> str:
    """``size`` with a unit, in three or four digits."""
    for unit, factor in _BYTES:
        if size >= factor:
            return f"{size / factor:.2f} {unit}"
    return f"{size} B"


def _layers(inspection: Inspection) -> str:
    spec = inspection.description.spec
    full = sum(layer.window is None for layer in spec.layers)
    windows = [layer.window for layer in spec.layers if layer.window is not None]
    parts = [f"{full} see everything"] if full else []
    parts += [f"{windows.count(window)} see {window:,} tokens" for window in sorted(set(windows))]
    return f"{spec.num_layers}: {', '.join(parts)}"


def _ropes(inspection: Inspection) -> list[str]:
    """Each rule with the layers that have it, in the order in which they first appear."""
    layers: dict[str, int] = {}
    for layer in inspection.description.spec.layers:
        if layer.rope is None:
            rule = "none"
        else:
            rule = f"base {layer.rope.theta:,.0f}"
            if layer.rope.scaling != "default":
                rule += f", {layer.rope.scaling}"
                rule += "".join(f" {name} {value:g}" for name, value in layer.rope.parameters.items())
            if layer.rope.dim is not None:
                rule += f", {layer.rope.dim} elements of a head"
        layers[rule] = layers.get(rule, 0) + 1
    return [f"{rule} ({count} layers)" for rule, count in layers.items()]


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  " + "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )  # fmt: skip
