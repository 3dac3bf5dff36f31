"""Log probabilities of tokens under the model itself: of raw float32 logits, before all that changes them.

A token's log probability is its logit less the row's largest, less the logarithm of the sum of all weights; the same
roundings give those of the most likely tokens, so that the same token has the same bits wherever it is told. Rows never
touch each other, and weights are added in an order that is the same for all. NaN counts as -inf, of several +inf each
has an equal share, and a row of nothing else is one of equal logits. What is below `LEAST_LOGPROB`, -inf included, is
told as that.

One rule, computed on the device of the logits, without waiting for it: on CPUs by the native library
(``kernels.cpu.logprobs``), in float64 and rounded once; by torch elsewhere and where the library is missing, in
float32. Ranks and ids are the same either way, values to about 1e-6. On CPUs torch computes a table row by row, since
vector units round what is left over at the end of a row otherwise than the rest.

Imports nothing but torch and what comes with it until something is told: `benchmarks/gpu_check.sh` needs no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from kernels.cpu.library import best_library
from kernels.cpu.logprobs import logprobs

if TYPE_CHECKING:
    from engine.sampling_params import TokenLogprobs

LEAST_LOGPROB = -9999.0  # finite, so that it can travel as JSON; the value that OpenAI's API has for "next to never"
_BLOCK = 128  # logits of which only the largest is looked at first
_LARGEST_INT32 = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class LogprobTable:
    """What there is to tell of some rows.

    float32 ``values`` [num_rows, 1 + num_top]: of the token itself, then of the most likely ones, whose ids are int64
    ``top_ids`` [num_rows, num_top]. int64 ``ranks`` [num_rows] of the tokens.
    """

    values: torch.Tensor
    top_ids: torch.Tensor
    ranks: torch.Tensor

    @classmethod
    def of(
        cls, logits: torch.Tensor, token_ids: torch.Tensor, num_top: int, rows: Sequence[int] | None = None
    ) -> LogprobTable:
        """Of one of int64 ``token_ids`` for each of ``rows`` of float32 ``logits`` [num_rows, vocab], on one device.

        ``rows`` None: all.
        """
        num_top = min(num_top, logits.shape[1])
        rows = range(len(logits)) if rows is None else rows
        library = best_library() if logits.is_cpu else None
        if library is not None:
            values, top_ids, ranks = logprobs(library, logits, rows, token_ids, num_top)
            return cls(values.clamp_(min=LEAST_LOGPROB), top_ids, ranks)
        chosen = [logits[row, None] for row in rows]
        if logits.is_cpu:
            return cls.joined([cls._of(row, token_ids[i, None], num_top) for i, row in enumerate(chosen)])
        # joined, not indexed: an index would have to reach the device first
        return cls._of(logits if len(chosen) == len(logits) else torch.cat(chosen), token_ids, num_top)

    @classmethod
    def _of(cls, logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> LogprobTable:
        logits, largest = _cleaned(logits)
        top_ids = _largest(logits, num_top)
        told = torch.cat((token_ids[:, None], top_ids), dim=1)
        values = logits.gather(1, told) - largest - _weight(logits, largest).log()
        return cls(values.clamp_(min=LEAST_LOGPROB), top_ids, _ranks(logits, token_ids, top_ids))

    @classmethod
    def joined(cls, tables: Sequence[LogprobTable]) -> LogprobTable:
        """Tables of as many most likely tokens, one below the other."""
        return cls(
            torch.cat([table.values for table in tables]),
            torch.cat([table.top_ids for table in tables]),
            torch.cat([table.ranks for table in tables]),
        )

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> LogprobTable:
        """With each part changed, as by a copy to the host."""
        return LogprobTable(change(self.values), change(self.top_ids), change(self.ranks))

    def rows(self, nums_top: Sequence[int]) -> list[TokenLogprobs]:
        """Of each row so many of the most likely tokens; waits for the device."""
        from engine.sampling_params import TokenLogprobs

        table = zip(self.values.tolist(), self.top_ids.tolist(), self.ranks.tolist(), nums_top, strict=True)
        return [
            TokenLogprobs(values[0], rank, top_ids[:num_top], values[1 : num_top + 1])
            for values, top_ids, rank, num_top in table
        ]


def token_logprobs(
    logits: torch.Tensor, rows: Sequence[int], token_ids: Sequence[int], nums_top: Sequence[int]
) -> list[TokenLogprobs]:
    """Of one of ``token_ids`` for each of some ``rows`` of float32 ``logits`` [num_rows, vocab] on the host.

    ``nums_top``: how many most likely ones beside each.
    """
    return LogprobTable.of(logits, torch.tensor(token_ids), max(nums_top), rows).rows(nums_top)


def _cleaned(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``logits`` of which the largest is finite and none is NaN, and the largest of each row, [num_rows, 1]."""
    largest = logits.amax(dim=1, keepdim=True)
    if largest.is_cpu and math.isfinite(largest):
        return logits, largest
    logits = logits.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
    largest = logits.amax(dim=1, keepdim=True)
    shares = torch.where(logits == largest, 0.0, -math.inf)
    is_finite = largest.isfinite()
    return torch.where(is_finite, logits, shares), torch.where(is_finite, largest, 0.0)


def _weight(logits: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """The sum of all weights of each row, [num_rows, 1]: the second half is added to the first until one is left.

    On CPUs by torch's own sum, of a row alone: there its order depends on the number of threads and on nothing else.
    """
    weights = (logits - largest).exp_()
    if weights.is_cpu:
        return weights.sum(dim=1, keepdim=True)
    count = weights.shape[1]
    while count > 1:
        half = (count + 1) // 2
        weights[:, : count - half] += weights[:, half:count]
        count = half
    return weights[:, :1]


def _largest(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Ids of the ``count`` largest in order, the first of equals first; int64 [num_rows, count].

    They lie in the ``count`` blocks that come first in the same order of their largest: any other block has so many
    before it, and in each of these a token that comes before all of its own.
    """
    num_rows, vocab_size = logits.shape
    if count == 0:
        return torch.empty(num_rows, 0, dtype=torch.int64, device=logits.device)
    padded = F.pad(logits, (0, -vocab_size % _BLOCK), value=-math.inf)
    peaks = padded.view(num_rows, -1, _BLOCK).amax(dim=2)
    blocks = _first_of(peaks, torch.arange(peaks.shape[1], device=logits.device), min(count, peaks.shape[1]))
    ids = (blocks[:, :, None] * _BLOCK + torch.arange(_BLOCK, device=logits.device)).flatten(1)
    return ids.gather(1, _first_of(padded.gather(1, ids), ids, count))


def _first_of(values: torch.Tensor, ids: torch.Tensor, count: int) -> torch.Tensor:
    """Where the ``count`` largest of each row are, in order, equals by id: by keys that are never equal."""
    bits = (values + 0.0).view(torch.int32)  # the sum makes zeros alike
    rising = bits ^ ((bits >> 31) & _LARGEST_INT32)
    return ((rising.long() << 32) | (_LARGEST_INT32 - ids)).topk(count, dim=1).indices


def _ranks(logits: torch.Tensor, token_ids: torch.Tensor, top_ids: torch.Tensor) -> torch.Tensor:
    """How many tokens come before each of ``token_ids``, and one; int64 [num_rows]."""
    if logits.is_cpu:
        found = (top_ids == token_ids[:, None]).nonzero()
        if len(found):
            return found[:, 1] + 1
        token_id = int(token_ids)
        before, after = logits[:, :token_id], logits[:, token_id + 1 :]
        own = logits[:, token_id, None]
        return 1 + (before >= own).sum(dim=1) + (after > own).sum(dim=1)
    own = logits.gather(1, token_ids[:, None])
    ids = torch.arange(logits.shape[1], device=logits.device)
    return 1 + ((logits > own) | ((logits == own) & (ids < token_ids[:, None]))).sum(dim=1)
