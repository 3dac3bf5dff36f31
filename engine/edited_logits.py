"""EditedLogits: the `LogitEdit`s of a step's rows in one flat buffer, and what they do to the logits.

    | rows ids (64 bits) | scales shifts (float32) | what each masked row allows (32 bits) |

One buffer is one copy to a device. The changes are the same operations on every device, element by element, so that a
row's logits depend neither on its neighbours nor on where they are. Knows nothing of sequences or of drawing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from engine.logit_edits import LogitEdit


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
            allocate(3 * num_cells + -(-len(masks) * _num_words(vocab_size) // 2)), num_cells, tuple(masks), vocab_size
        )
        rows, ids, scales, shifts, words = (section.numpy() for section in edited._sections())
        if num_cells:
            every = edits.values()
            rows[:] = np.repeat(np.fromiter(edits, np.int64), [len(edit.ids) for edit in every])
            np.concatenate([edit.ids for edit in every], out=ids)
            np.concatenate([edit.scales for edit in every], out=scales)
            np.concatenate([edit.shifts for edit in every], out=shifts)
        for target, allowed in zip(words, masks.values(), strict=True):
            num_words = min(len(allowed), len(target))
            target[:num_words] = allowed[:num_words]
            target[num_words:] = 0
        return edited

    @torch.inference_mode()
    def apply(self, logits: torch.Tensor) -> None:
        """Change float32 ``logits`` [num_rows, vocab_size], on the buffer's device, without waiting for it."""
        rows, ids, scales, shifts, words = self._sections()
        if self.num_cells:
            values = logits[rows, ids]
            logits[rows, ids] = torch.where(values > 0, values / scales, values * scales) + shifts
        if self.masked_rows:
            forbidden = _forbidden_by_byte(logits.device)[words.view(torch.uint8).int()].view(torch.bool)
            for row, one in zip(self.masked_rows, forbidden, strict=True):
                logits[row].masked_fill_(one[: self.vocab_size], -torch.inf)

    def _sections(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows, ids, scales and shifts [num_cells], and words [num_masks, num_words]."""
        count, num_masks, num_words = self.num_cells, len(self.masked_rows), _num_words(self.vocab_size)
        fractional = self.buffer.view(torch.float32)
        words = self.buffer.view(torch.int32)[6 * count : 6 * count + num_masks * num_words]
        return (
            self.buffer[:count],
            self.buffer[count : 2 * count],
            fractional[4 * count : 5 * count],
            fractional[5 * count : 6 * count],
            words.view(num_masks, num_words),
        )


def _num_words(vocab_size: int) -> int:
    return -(-vocab_size // 32)


@cache
def _forbidden_by_byte(device: torch.device) -> torch.Tensor:
    """Int64 [256]: for each byte of a mask, eight booleans of what it forbids, the lowest bit first."""
    byte, bit = torch.arange(256, device=device), torch.arange(8, device=device)
    return (((byte[:, None] >> bit) & 1) ^ 1).to(torch.uint8).view(torch.int64)[:, 0]
