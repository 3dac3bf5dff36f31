"""EditedLogits: the `LogitEdit`s of a step's rows in one flat buffer, and what they do to the logits.

    | cells (64 bits) | scales shifts (float32) | what each masked row allows (32 bits) |

One buffer is one copy to a device. Elements are changed one by one, to the same bits on every device, so that a row's
logits depend neither on its neighbours nor on where they are. On CPUs the native library masks
(``kernels.cpu.logit_mask``), and torch does where it is missing. Knows nothing of sequences or of drawing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from engine.logit_edits import LogitEdit
from kernels.cpu.library import best_library
from kernels.cpu.logit_mask import mask_logits


@dataclass(frozen=True, slots=True)
class EditedLogits:
    """Edits of rows of logits of ``vocab_size`` tokens; ``buffer`` is int64.

    ``num_cells`` logits are scaled and shifted, in whichever rows, and those of ``masked_rows`` are masked.
    """

    buffer: torch.Tensor
    num_cells: int
    masked_rows: tuple[int, ...]
    vocab_size: int

    @classmethod
    def of(
        cls, edits: Mapping[int, LogitEdit], vocab_size: int, allocate: Callable[[int], torch.Tensor]
    ) -> EditedLogits:
        """Write the edits of rows to a buffer of the host: ``allocate`` yields so many int64."""
        num_cells = sum(len(edit.ids) for edit in edits.values())
        masks = {row: edit.allowed for row, edit in edits.items() if edit.allowed is not None}
        edited = cls(
            allocate(2 * num_cells + -(-len(masks) * _num_words(vocab_size) // 2)), num_cells, tuple(masks), vocab_size
        )
        cells, scales, shifts, words = (section.numpy() for section in edited._sections())
        if num_cells:
            every = edits.values()
            np.concatenate([edit.ids + row * vocab_size for row, edit in edits.items()], out=cells)
            np.concatenate([edit.scales for edit in every], out=scales)
            np.concatenate([edit.shifts for edit in every], out=shifts)
        for target, allowed in zip(words, masks.values(), strict=True):
            num_words = min(len(allowed), len(target))
            target[:num_words] = allowed[:num_words]
            target[num_words:] = 0
        return edited

    @torch.inference_mode()
    def apply(self, logits: torch.Tensor) -> None:
        """Change contiguous float32 ``logits`` [num_rows, vocab_size], on the buffer's device; waits for nothing."""
        cells, scales, shifts, words = self._sections()
        if self.num_cells:
            flat = logits.view(-1)
            values = flat.index_select(0, cells)
            penalised = torch.where(values > 0, values / scales, values * scales)
            flat.scatter_(0, cells, penalised.add_(shifts))
        library = best_library() if logits.is_cpu and self.masked_rows else None
        if library is not None:
            mask_logits(library, logits, self.masked_rows, words)
            return
        # row by row: memory for all at once would cost more than the work
        for row, mask in zip(self.masked_rows, words.view(torch.uint8).int(), strict=True):
            is_forbidden = _forbidden_by_byte(logits.device).index_select(0, mask).view(-1)[: self.vocab_size]
            logits[row].masked_fill_(is_forbidden, -torch.inf)

    def _sections(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Cells of the flat logits, scales and shifts [num_cells], and words [num_masks, num_words]."""
        count, num_masks, num_words = self.num_cells, len(self.masked_rows), _num_words(self.vocab_size)
        fractional = self.buffer.view(torch.float32)
        words = self.buffer.view(torch.int32)[4 * count : 4 * count + num_masks * num_words]
        return (
            self.buffer[:count],
            fractional[2 * count : 3 * count],
            fractional[3 * count : 4 * count],
            words.view(num_masks, num_words),
        )


def _num_words(vocab_size: int) -> int:
    return -(-vocab_size // 32)


@cache
def _forbidden_by_byte(device: torch.device) -> torch.Tensor:
    """Bool [256, 8]: which of eight logits a byte of a mask forbids; its lowest bit is of the first."""
    byte, bit = torch.arange(256, device=device), torch.arange(8, device=device)
    return (byte[:, None] >> bit) & 1 == 0
