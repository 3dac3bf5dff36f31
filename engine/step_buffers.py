"""StepBuffers: the numbers of one step in one flat buffer, so that a device gets them in one copy.

    | token_ids positions slots .. (64 bits) | query_start_loc seq_lens .. (32 bits) | changes of the block tables |
    0                                                                                 ^ size of the shape

Where a section lies follows from the step's `StepShape` alone: a step sends no more than it fills, and a captured
graph, which is replayed for steps of one shape, finds its sections where they were. All of them, and each column of
slots, begin at multiples of 16 bytes, whatever the step: kernels are compiled anew for pointers that do not. Knows
sizes and dtypes, not what they say.

Without a stream the host's buffer is the device's, and nothing is sent. With one there are two host buffers, used in
turn: a step is written while the copy of the one before it may still read the other. Invariants: a host buffer is
written only when its last copy is over; with a stream, the buffers never move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch

from engine.step_stream import Event, StepStream

Section = TypeVar("Section")
Array = np.ndarray[Any, Any]
_MOST_CACHED_SHAPES = 256


class StepShape(NamedTuple):
    """Rows of a step, padding included: tokens, sequences, and logits that are asked for.

    Where sequences share prefixes, also how many groups they form, and how many there are in all of these.
    """

    num_tokens: int
    num_seqs: int
    num_draws: int
    num_groups: int = 0
    num_members: int = 0


@dataclass(frozen=True, slots=True)
class DrawSections(Generic[Section]):
    """What drawing on the device needs, beside the logits.

    int64: ``seed`` and ``output_index`` [num_draws]. int32: ``top_k`` [num_draws], ``sources`` [num_tokens]: which draw
    of the step before gives the token, or -1. float32: ``temperature``, ``top_p`` and ``min_p`` [num_draws].
    """

    seed: Section
    output_index: Section
    sources: Section
    top_k: Section
    temperature: Section
    top_p: Section
    min_p: Section


@dataclass(frozen=True, slots=True)
class PrefixSections(Generic[Section]):
    """Who shares a prefix, all int32, as in ``kernels.attention.SharedPrefix``.

    ``members`` [num_members], ``group_starts`` [num_groups + 1], ``prefix_lens`` [num_seqs].
    """

    members: Section
    group_starts: Section
    prefix_lens: Section


@dataclass(frozen=True, slots=True)
class StepSections(Generic[Section]):
    """The parts of the buffer, as arrays on the host or tensors on the device.

    int64: ``token_ids`` and ``positions`` [num_tokens], ``slots`` [columns, num_tokens], ``logits_rows`` [num_draws].
    int32: ``query_start_loc`` [num_seqs + 1], ``seq_lens`` and ``table_rows`` [num_seqs]. ``draws`` with a stream only,
    ``prefix`` where there are groups.
    """

    token_ids: Section
    positions: Section
    slots: Section
    logits_rows: Section
    query_start_loc: Section
    seq_lens: Section
    table_rows: Section
    draws: DrawSections[Section] | None
    prefix: PrefixSections[Section] | None


@dataclass(frozen=True, slots=True)
class TableChanges(Generic[Section]):
    """New entries of block tables: int64 ``indices`` into the flat tables, each once, and int32 ``values``."""

    indices: Section
    values: Section


class StepBuffers:
    """Buffers for steps over ``num_columns`` block tables. Without ``stream`` they grow as steps do.

    ``largest`` is the largest step, ``num_changes`` the most changes of tables that travel with one.
    """

    def __init__(
        self,
        num_columns: int,
        *,
        stream: StepStream | None = None,
        largest: StepShape | None = None,
        num_changes: int = 0,
    ) -> None:
        self._num_columns = num_columns
        self._stream = stream
        self.num_changes = num_changes
        self._allocate((0 if largest is None else self.size(largest)) + num_changes + -(-num_changes // 2))

    def _allocate(self, size: int) -> None:
        if self._stream is None:
            self._hosts = [torch.zeros(size, dtype=torch.int64)]
            self._device = self._hosts[0]
        else:
            self._hosts = [self._stream.host_buffer(size, torch.int64) for _ in range(2)]
            self._device = torch.zeros(size, dtype=torch.int64, device=self._stream.device)
        self._copies: list[Event | None] = [None] * len(self._hosts)
        self._turn = 0
        self._arrays: dict[tuple[int, StepShape], StepSections[Array]] = {}
        self._tensors: dict[StepShape, StepSections[torch.Tensor]] = {}

    def size(self, shape: StepShape) -> int:
        """Where the sections of a shape end, in elements of 64 bits."""
        num_tokens, num_seqs, num_draws, num_groups, num_members = shape
        wide = [num_tokens, num_tokens, self._num_columns * _even(num_tokens), num_draws]
        narrow = [num_seqs + 1, num_seqs, num_seqs]
        if self._stream is not None:
            wide += [num_draws] * 2
            narrow += [num_tokens, *[num_draws] * 4]
        if num_groups:
            narrow += [num_members, num_groups + 1, num_seqs]
        return sum(map(_even, wide)) + sum(_even(-(-count // 2)) for count in narrow)

    def host(self, shape: StepShape) -> StepSections[Array]:
        """The sections to write for the next step; waits while an earlier copy still reads them."""
        if self._stream is None and self.size(shape) > len(self._device):
            self._allocate(2 * self.size(shape))
        self._turn = (self._turn + 1) % len(self._hosts)
        copy = self._copies[self._turn]
        if copy is not None:
            copy.wait()
        key = (self._turn, shape)
        sections = self._arrays.get(key)
        if sections is None:
            if len(self._arrays) >= _MOST_CACHED_SHAPES:
                self._arrays.clear()
            flat = self._hosts[self._turn].numpy()
            sections = self._arrays[key] = self._sections(shape, flat, flat.view(np.int32), flat.view(np.float32))
        return sections

    def device(self, shape: StepShape) -> StepSections[torch.Tensor]:
        """The sections as the device sees them, at the same addresses whenever the shape is the same."""
        sections = self._tensors.get(shape)
        if sections is None:
            if len(self._tensors) >= _MOST_CACHED_SHAPES:
                self._tensors.clear()
            flat = self._device
            sections = self._tensors[shape] = self._sections(
                shape, flat, flat.view(torch.int32), flat.view(torch.float32)
            )
        return sections

    def send(self, shape: StepShape, changes: TableChanges[Array] | None) -> TableChanges[torch.Tensor] | None:
        """Copy what was written for ``shape``, and up to ``num_changes`` changes, to the device, in one piece."""
        if self._stream is None:
            return None
        host, end = self._hosts[self._turn], self.size(shape)
        sent = None
        if changes is not None:
            count, start = len(changes.indices), end
            assert count <= self.num_changes
            end = start + count + -(-count // 2)
            values = slice(2 * (start + count), 2 * (start + count) + count)
            array = host.numpy()
            array[start : start + count] = changes.indices
            array.view(np.int32)[values] = changes.values
            sent = TableChanges(self._device[start : start + count], self._device.view(torch.int32)[values])
        self._copies[self._turn] = self._stream.upload(host[:end], self._device[:end])
        return sent

    def _sections(self, shape: StepShape, wide: Any, narrow: Any, fractional: Any) -> StepSections[Any]:
        num_tokens, num_seqs, num_draws, num_groups, num_members = shape
        end = 0  # in elements of 64 bits

        def take(flat: Any, count: int) -> Any:
            nonlocal end
            per_element = len(flat) // len(wide)
            start = end * per_element
            end += _even(-(-count // per_element))
            return flat[start : start + count]

        token_ids, positions = take(wide, num_tokens), take(wide, num_tokens)
        slots = take(wide, self._num_columns * _even(num_tokens)).reshape(self._num_columns, _even(num_tokens))
        logits_rows = take(wide, num_draws)
        seed, output_index = (None, None) if self._stream is None else (take(wide, num_draws), take(wide, num_draws))
        return StepSections(
            token_ids=token_ids,
            positions=positions,
            slots=slots[:, :num_tokens],
            logits_rows=logits_rows,
            query_start_loc=take(narrow, num_seqs + 1),
            seq_lens=take(narrow, num_seqs),
            table_rows=take(narrow, num_seqs),
            draws=None
            if self._stream is None
            else DrawSections(
                seed=seed,
                output_index=output_index,
                sources=take(narrow, num_tokens),
                top_k=take(narrow, num_draws),
                temperature=take(fractional, num_draws),
                top_p=take(fractional, num_draws),
                min_p=take(fractional, num_draws),
            ),
            prefix=None
            if not num_groups
            else PrefixSections(
                members=take(narrow, num_members),
                group_starts=take(narrow, num_groups + 1),
                prefix_lens=take(narrow, num_seqs),
            ),
        )


def _even(count: int) -> int:
    """The next number of elements of 64 bits that is a multiple of 16 bytes."""
    return count + count % 2
