"""FamilyCase: one tiny model of one family, and what transformers says of it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.models.families.gguf_writer import GGUFForm

VOCAB_SIZE = 131  # prime: no divisor that hides a wrong stride
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class FamilyCase:
    """``config`` is added to `COMMON` for the class of ``model_type``; keys whose value is None are left out of it.

    ``gguf`` are forms of a file that stores the same. ``by_token``: see the oracle. ``max_model_len``: of the server,
    where a rope rule asks for that. ``lengths``: of the prompts, long enough to cross every window and every rule of
    the positions.
    """

    name: str
    model_type: str
    config: dict[str, Any] = field(default_factory=dict)
    gguf: tuple[GGUFForm, ...] = ()
    by_token: bool = False
    max_model_len: int | None = None
    lengths: tuple[int, ...] = (1, 23, 90)
    num_steps: int = 20

    @property
    def prompts(self) -> list[list[int]]:
        draw = random.Random(self.name)
        return [[1, *(draw.randrange(3, VOCAB_SIZE) for _ in range(length - 1))] for length in self.lengths]

    def job(self, directory: Path) -> dict[str, Any]:
        """For the oracle."""
        config = {key: value for key, value in (COMMON | self.config).items() if value is not None}
        return {
            "directory": str(directory),
            "model_type": self.model_type,
            "config": config,
            "seed": 20240816,
            "prompts": self.prompts,
            "num_steps": self.num_steps,
            "by_token": self.by_token,
        }


@dataclass(frozen=True)
class Expected:
    """What transformers computes, per prompt: float32 [tokens, vocab_size], ids, float32 [num_steps, vocab_size]."""

    prompt: list[npt.NDArray[np.float32]]
    tokens: list[list[int]]
    steps: list[npt.NDArray[np.float32]]

    @classmethod
    def read(cls, directory: Path) -> Expected:
        with np.load(directory / "expected.npz") as arrays:
            count = sum(name.startswith("prompt.") for name in arrays)
            return cls(
                [arrays[f"prompt.{i}"] for i in range(count)],
                [arrays[f"tokens.{i}"].tolist() for i in range(count)],
                [arrays[f"steps.{i}"] for i in range(count)],
            )
