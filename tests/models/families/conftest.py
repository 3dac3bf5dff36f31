"""What the tests of families share: checkpoints that transformers made, and the comparison with what it computes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.backends import choose_backend
from models.checkpoint import resolve_checkpoint
from models.loader import load_model
from models.model import CausalLM
from tests.models.families.family_case import Expected, FamilyCase

CPU = torch.device("cpu")
TOLERANCE = 1e-4
Checkpoints = Callable[[Sequence[FamilyCase]], dict[str, Path]]
Agreement = Callable[..., None]


@pytest.fixture(scope="session")
def make_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """``make_checkpoints(cases)``: the directory of each case by its name, in one process for all of them."""
    pytest.importorskip("transformers", reason="the oracle is a development dependency")

    def make(cases: Sequence[FamilyCase]) -> dict[str, Path]:
        root = tmp_path_factory.mktemp("families")
        directories = {case.name: root / case.name.replace(" ", "-") for case in cases}
        request = root / "request.json"
        request.write_text(json.dumps([case.job(directories[case.name]) for case in cases]))
        script = Path(__file__).with_name("family_oracle.py")
        command = [sys.executable, "-I", str(script), str(request)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=root)
        assert done.returncode == 0, done.stderr
        return directories

    return make


def load(path: Path, max_model_len: int | None = None) -> CausalLM:
    """Our model of a checkpoint, in float32 on CPUs."""
    checkpoint = resolve_checkpoint(str(path))
    spec = checkpoint.read_spec()
    backend, _ = choose_backend(CPU)
    spec = spec.for_length(max_model_len or spec.max_position)
    return load_model(checkpoint, spec, device=CPU, dtype=torch.float32, backend=backend)


@pytest.fixture
def agrees(paged_logits: Any) -> Agreement:
    """``agrees(path, case, expected, chunk=)``: logits of prompts and of decode steps over pages, and greedy tokens."""

    def check(path: Path, case: FamilyCase, expected: Expected, *, chunk: int, tolerance: float = TOLERANCE) -> None:
        model = load(path, case.max_model_len)
        prompts = case.prompts
        rows = [list(range(len(prompt))) for prompt in prompts]
        ours = paged_logits(model, prompts, rows, chunk=chunk, dtype=torch.float32)
        for mine, theirs in zip(ours, expected.prompt, strict=True):
            assert theirs.std() > 0.3  # weights of no effect would agree too
            torch.testing.assert_close(mine, torch.from_numpy(theirs), rtol=0, atol=tolerance)
        whole = [prompt + tokens for prompt, tokens in zip(prompts, expected.tokens, strict=True)]
        last = [list(range(len(prompt) - 1, len(tokens))) for prompt, tokens in zip(prompts, whole, strict=True)]
        stepped = paged_logits(model, whole, last, chunk=chunk, dtype=torch.float32, num_single=case.num_steps)
        for mine, theirs, tokens in zip(stepped, expected.steps, expected.tokens, strict=True):
            torch.testing.assert_close(mine[1:], torch.from_numpy(theirs), rtol=0, atol=tolerance)
            assert mine[:-1].argmax(dim=-1).tolist() == tokens

    return check
