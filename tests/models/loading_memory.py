"""Load a model in a process of its own and tell what memory that took: a JSON object on stdout.

    python loading_memory.py MODEL SMALL_MODEL DTYPE QUANTIZATION

``peak`` is by how many bytes the resident memory of this process (VmRSS: its own pages and those of mapped files) was
larger at most while the model was loaded than before; ``after`` by how many when it was. ``weights`` are the model's
own bytes. The small model of the same kind is loaded before: the code and the threads that loading needs are no
model's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from engine.choices import choose_forms
from kernels.backends import choose_backend
from models.checkpoint import resolve_checkpoint
from models.loader import load_model
from models.model import CausalLM


def resident(key: str) -> int:
    """Bytes: ``VmRSS`` now, ``VmHWM`` at most since the mark was set back."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def load(model: str, dtype: str, quantization: str) -> CausalLM:
    """As the server loads it."""
    checkpoint = resolve_checkpoint(model)
    spec = checkpoint.read_spec()
    backend, _ = choose_backend(torch.device("cpu"))
    forms = choose_forms(quantization, backend)
    return load_model(
        checkpoint, spec, device=torch.device("cpu"), dtype=getattr(torch, dtype), backend=backend, forms=forms
    )


def main(model: str, small_model: str, dtype: str, quantization: str) -> None:
    load(small_model, dtype, quantization)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # sets the mark of VmHWM back to what is resident now
    loaded = load(model, dtype, quantization)
    peak, after = resident("VmHWM") - before, resident("VmRSS") - before
    print(json.dumps({"weights": loaded.weight_bytes(), "peak": peak, "after": after}))


if __name__ == "__main__":
    main(*sys.argv[1:])
