"""What the tests of families share: checkpoints that transformers made, and the comparison with what it computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.backends import choose_backend
from models.checkpoint import resolve_checkpoint
from models.loader import load_model
from models.model import CausalLM
from tests.models.families.family_case import Expected, FamilyCase
from tests.transformers_process import TransformersProcess

CPU = torch.device("cpu")
TOLERANCE = 1e-4
CheckpointOf = Callable[[FamilyCase], Path]
Agreement = Callable[..., None]


@pytest.fixture(scope="session")
def checkpoint_of(transformers: TransformersProcess, tmp_path_factory: pytest.TempPathFactory) -> CheckpointOf:
    """``checkpoint_of(case)``: its directory, made when it is first asked for."""
    root = tmp_path_factory.mktemp("families")

    def made(case: FamilyCase) -> Path:
        directory = root / case.name.replace(" ", "-")
        if not directory.exists():
            transformers.ask("checkpoint", **case.job(directory))
        return directory

    return made


def load(path: Path, max_model_len: int | None = None) -> CausalLM:
    """Our model of a checkpoint, in float32 on CPUs."""
    checkpoint = resolve_checkpoint(str(path))
    spec = checkpoint.read_spec()
    backend, _ = choose_backend(CPU)
    spec = spec.for_length(max_model_len or spec.max_position)
    return load_model(checkpoint, spec, device=CPU, dtype=torch.float32, backend=backend)


@pytest.fixture
def agrees(paged_logits: Any, checkpoint_of: CheckpointOf) -> Agreement:
    """``agrees(case, path, chunk=)``: logits of prompts and of decode steps over pages, and greedy tokens, of the model
    at ``path`` are those that transformers computes of the case.
    """

    def check(case: FamilyCase, path: Path, *, chunk: int) -> None:
        expected = Expected.read(checkpoint_of(case))
        model = load(path, case.max_model_len)
        prompts = case.prompts
        whole = [prompt + tokens for prompt, tokens in zip(prompts, expected.tokens, strict=True)]
        rows = [list(range(len(tokens))) for tokens in whole]
        ours = paged_logits(model, whole, rows, chunk=chunk, dtype=torch.float32, num_single=case.num_steps)
        for index, prompt in enumerate(prompts):
            mine, stepped = ours[index][: len(prompt)], ours[index][len(prompt) :]
            assert expected.prompt[index].std() > 0.3  # weights of no effect would agree too
            torch.testing.assert_close(mine, torch.from_numpy(expected.prompt[index]), rtol=0, atol=TOLERANCE)
            torch.testing.assert_close(stepped, torch.from_numpy(expected.steps[index]), rtol=0, atol=TOLERANCE)
            drawn = torch.cat([mine[-1:], stepped[:-1]]).argmax(dim=-1)
            assert drawn.tolist() == expected.tokens[index]

    return check
