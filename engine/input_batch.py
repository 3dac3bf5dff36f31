"""InputBatch: a ScheduledBatch of ids and ints, turned into the tensors of one step.

Keeps one row per running request in persistent block tables, into which each share writes only the blocks that it
brings, so that a step's cost does not grow with the length of the contexts. Rows hold stale ids for blocks that slid
out of a window; the kernels never look there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from block_manager.groups import LayerGroup
from kernels.attention import AttentionMetadata
from scheduler.batch import ScheduledBatch, ScheduledRequest


@dataclass(frozen=True, slots=True)
class StepTensors:
    """What the model needs: int64 ``token_ids`` and ``positions`` [num_tokens], int64 ``logits_rows`` [num_samples].

    ``metadata[group][column]`` is the layout for the layers of that column.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    logits_rows: torch.Tensor
    metadata: tuple[tuple[AttentionMetadata, ...], ...]


class InputBatch:
    """Block tables of up to ``max_num_seqs`` requests of up to ``max_model_len`` tokens."""

    def __init__(
        self,
        groups: Sequence[LayerGroup],
        block_size: int,
        max_num_seqs: int,
        max_model_len: int,
        device: torch.device,
    ) -> None:
        self._groups = tuple(groups)
        self._block_size = block_size
        self._device = device
        self._max_blocks = -(-max_model_len // block_size)
        # [column, row, block]: a column's table is then contiguous per row
        self._tables = [
            np.zeros((group.pages_per_block, max_num_seqs, self._max_blocks), dtype=np.int32) for group in self._groups
        ]
        self._row_of: dict[str, int] = {}
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))

    def prepare(self, batch: ScheduledBatch) -> StepTensors:
        """Bring the tables up to date and lay the step's tokens out one request after the other."""
        for request_id in batch.released:
            row = self._row_of.pop(request_id, None)
            if row is not None:
                self._free_rows.append(row)
        rows = np.array([self._update_row(request) for request in batch.requests], dtype=np.int64)
        counts = np.array([request.num_tokens for request in batch.requests], dtype=np.int64)
        computed = np.array([request.num_computed_tokens for request in batch.requests], dtype=np.int64)
        query_start_loc = np.zeros(len(rows) + 1, dtype=np.int32)
        np.cumsum(counts, out=query_start_loc[1:])
        seq_lens = (computed + counts).astype(np.int32)
        token_rows = np.repeat(rows, counts)
        positions = np.arange(counts.sum()) - np.repeat(query_start_loc[:-1].astype(np.int64) - computed, counts)
        token_ids = np.fromiter(
            (token for request in batch.requests for token in request.token_ids), dtype=np.int64, count=len(positions)
        )
        samples = np.array([request.samples for request in batch.requests], dtype=bool)
        return StepTensors(
            token_ids=self._tensor(token_ids),
            positions=self._tensor(positions),
            logits_rows=self._tensor(query_start_loc[1:][samples].astype(np.int64) - 1),
            metadata=self._metadata(rows, token_rows, positions, query_start_loc, seq_lens, counts),
        )

    def _update_row(self, request: ScheduledRequest) -> int:
        row = self._row_of.get(request.request_id)
        if row is None:
            row = self._row_of[request.request_id] = self._free_rows.pop()
        start, pages = request.new_blocks
        for table, blocks in zip(self._tables, pages, strict=bool(pages)):
            table[:, row, start : start + len(blocks)] = np.array(blocks, dtype=np.int32).T
        return row

    def _metadata(
        self,
        rows: np.ndarray,
        token_rows: np.ndarray,
        positions: np.ndarray,
        query_start_loc: np.ndarray,
        seq_lens: np.ndarray,
        counts: np.ndarray,
    ) -> tuple[tuple[AttentionMetadata, ...], ...]:
        starts, lens = self._tensor(query_start_loc), self._tensor(seq_lens)
        longest = int(seq_lens.max(initial=0))
        width = -(-longest // self._block_size)
        blocks, offsets = np.divmod(positions, self._block_size)
        return tuple(
            tuple(
                AttentionMetadata(
                    query_start_loc=starts,
                    seq_lens=lens,
                    block_table=self._tensor(table[rows, :width]),
                    slot_mapping=self._tensor(table[token_rows, blocks].astype(np.int64) * self._block_size + offsets),
                    max_query_len=int(counts.max(initial=0)),
                    max_seq_len=longest,
                )
                for table in tables
            )
            for tables in self._tables
        )

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor if self._device.type == "cpu" else tensor.to(self._device, non_blocking=True)
