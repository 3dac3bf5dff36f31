"""LoraStore: adapters from files into the model, for `Adapters`.

Installs and removes in the order of the steps, so that a step finds the adapters that there were when it was submitted,
or more.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from engine.adapters import AdapterError
from engine.machine import available_memory
from engine.step_executor import StepExecutor
from models.errors import CheckpointError
from models.lora import LoraAdapter, LoraPlace
from models.lora_config import WEIGHTS_FILE
from models.lora_file import read_adapter
from models.model import CausalLM
from models.registry import family_of

INVALID = "invalid_adapter"


class LoraStore:
    """Of one ``model``, whose steps ``executor`` runs; no part of an adapter may have a rank above ``max_rank``."""

    def __init__(self, model: CausalLM, executor: StepExecutor, max_rank: int) -> None:
        self._model = model
        self._executor = executor
        self._max_rank = max_rank
        self._places: Mapping[str, LoraPlace] = model.projections()

    def read(self, path: str) -> LoraAdapter:
        """See `AdapterStore.read`."""
        directory, spec = Path(path), self._model.spec
        try:
            self._check_memory(directory / WEIGHTS_FILE)
            return read_adapter(directory, spec, family_of(spec).names, self._places, max_rank=self._max_rank)
        except CheckpointError as error:
            raise AdapterError(INVALID, str(error)) from None
        except OSError as error:
            raise AdapterError(INVALID, f"{directory} cannot be read: {error.strerror or error}") from None

    def install(self, number: int, adapter: LoraAdapter) -> None:
        """See `AdapterStore.install`."""
        try:
            self._executor.submit(self._model.add_adapter, number, adapter).result()
        except torch.OutOfMemoryError:
            self.remove(number)
            size = adapter.num_bytes / 1e6
            raise AdapterError(INVALID, f"the adapter's {size:.1f} MB find no room in the device's memory") from None

    def remove(self, number: int) -> None:
        """See `AdapterStore.remove`."""
        self._executor.submit(self._model.remove_adapter, number)

    def _check_memory(self, file: Path) -> None:
        """Refuse what is not there: it would not be taken until it is touched, and then kill the process."""
        if not file.is_file():
            return
        wanted, left = 2 * file.stat().st_size, available_memory()  # in float32, whatever the file has
        if wanted > left:
            raise AdapterError(
                INVALID, f"{file} takes up to {wanted / 1e9:.2f} GB, more than the {left / 1e9:.2f} GB of memory left"
            )
