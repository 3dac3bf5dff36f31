"""LayerReplay: the layers of a small step as a list of native calls, made again without going through Python.

At one token a step of a small model spends a tenth of its time between kernels. The first step of a size runs as usual
while its calls are noted, with the memory they point to; later ones of that size copy their inputs to where the first
one's were, point the calls to their own block tables, and make them all in one go. What is computed is the same.

Only a stack of layers that computes with the native library alone can be repeated so. While the first step runs, every
operation of torch is watched: where one computes or copies anything, steps of that size are never replayed. Knows pages
and calls, not models. Invariant: the memory of a record is touched by its own replays only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.attention import AttentionMetadata, ComputeLayers, PagedLayer
from kernels.cpu.library import AttendCall, Function, NativeLibrary, RecordedCall, StoreCall

MAX_TOKENS = 8  # of steps that are replayed; in larger ones the time between kernels is lost in that of kernels

Rotations = Sequence[tuple[torch.Tensor, torch.Tensor]]


class LayerReplay:
    """Of the layers of one model; implements ``kernels.attention.LayerReplay``."""

    def __init__(self, library: NativeLibrary) -> None:
        self._library = library
        self._records: dict[tuple[int, ...], _Record | None] = {}

    def __call__(
        self, compute: ComputeLayers, x: torch.Tensor, rotations: Rotations, layers: Sequence[PagedLayer]
    ) -> torch.Tensor:
        num_tokens = x.shape[0]
        if num_tokens > MAX_TOKENS or not layers:
            return compute(x, rotations, layers)
        # layers and pages are those of one engine: told apart so that a second one of them is not taken for the first
        key = (num_tokens, len(layers), id(compute), layers[0].pages.key.data_ptr(), layers[-1].pages.key.data_ptr())
        if key not in self._records:
            calls = _Calls(compute)
            output = calls.record(self._library, x, rotations, layers)
            self._records[key] = calls.finished(output, x, rotations)
            return output
        record = self._records[key]
        return compute(x, rotations, layers) if record is None else record.replay(self._library, x, rotations, layers)


@dataclass(frozen=True, slots=True)
class _Record:
    """Calls in their order, and where they read and write. ``held`` keeps their memory, and ``compute`` its id."""

    calls: ctypes.Array[RecordedCall]
    stores: tuple[StoreCall, ...]
    attends: tuple[AttendCall, ...]
    x: torch.Tensor
    rotations: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    output: torch.Tensor
    held: tuple[Any, ...]

    def replay(
        self, library: NativeLibrary, x: torch.Tensor, rotations: Rotations, layers: Sequence[PagedLayer]
    ) -> torch.Tensor:
        """The output for other inputs of the same shapes; valid until the next replay."""
        self.x.copy_(x)
        for mine, given in zip(self.rotations, rotations, strict=True):
            mine[0].copy_(given[0])
            mine[1].copy_(given[1])
        seen: AttentionMetadata | None = None
        for store, attend, layer in zip(self.stores, self.attends, layers, strict=True):
            metadata = layer.metadata
            if metadata is not seen:
                seen = metadata
                slots, starts = metadata.slot_mapping.data_ptr(), metadata.query_start_loc.data_ptr()
                lens, table = metadata.seq_lens.data_ptr(), metadata.block_table.data_ptr()
                stride = metadata.block_table.stride(0)
                num_seqs, max_blocks = metadata.block_table.shape
            store.slot_mapping = slots
            attend.query_start_loc, attend.seq_lens = starts, lens
            attend.block_table, attend.block_table_stride = table, stride
            attend.num_seqs, attend.max_blocks = num_seqs, max_blocks
        library.check(
            library.handle.octavo_replay(library.variant, torch.get_num_threads(), self.calls, len(self.calls))
        )
        return self.output


class _Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the calls of one step, and whether anything else computed."""

    def __init__(self, compute: ComputeLayers) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._compute = compute
        self._noted: list[tuple[Function, ctypes.Structure]] = []
        self._held: list[Any] = [compute]
        self._is_whole = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch's own way for a mode to say that no compiler has to be kept from it: nothing is compiled here.

        Else the first operation in it imports the compiler: seconds of a user's first request, and 150 MB.
        """
        return False

    def record(
        self, library: NativeLibrary, x: torch.Tensor, rotations: Rotations, layers: Sequence[PagedLayer]
    ) -> torch.Tensor:
        library.recorder = self
        try:
            with self:
                output = self._compute(x, rotations, layers)
        finally:
            library.recorder = None
        counts = [sum(isinstance(call, kind) for _, call in self._noted) for kind in (StoreCall, AttendCall)]
        self._is_whole &= counts == [len(layers)] * 2
        return output

    def finished(self, output: torch.Tensor, x: torch.Tensor, rotations: Rotations) -> _Record | None:
        """None where calls alone do not make the output."""
        if not self._is_whole:
            return None
        recorded = (RecordedCall * len(self._noted))(
            *(
                RecordedCall(ctypes.cast(function, ctypes.c_void_p).value, ctypes.addressof(call))  # type: ignore[arg-type]
                for function, call in self._noted
            )
        )
        calls = [call for _, call in self._noted]
        return _Record(
            recorded,
            tuple(call for call in calls if isinstance(call, StoreCall)),
            tuple(call for call in calls if isinstance(call, AttendCall)),
            x,
            tuple(rotations),
            output,
            (*self._held, *calls),
        )

    def note(self, function: Function, call: ctypes.Structure, tensors: tuple[torch.Tensor, ...]) -> None:
        self._noted.append((function, call))
        self._held.extend(tensors)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is not torch.ops.aten.empty.memory_format:
            self._is_whole &= not func._schema.is_mutable and _is_view(result, args[0] if args else None)
        return result


def _is_view(result: Any, source: Any) -> bool:
    """Whether all of ``result`` is memory of ``source``."""
    parts = result if isinstance(result, (list, tuple)) else [result]
    if not isinstance(source, torch.Tensor):
        return False
    memory = source.untyped_storage().data_ptr()
    return all(isinstance(part, torch.Tensor) and part.untyped_storage().data_ptr() == memory for part in parts)
