"""ScheduledBatch: what one step runs, in ids and ints only.

The scheduler makes it, the runner reads it, and neither sees more of the other than this. Order matters: row ``i`` of
the runner's tensors is ``requests[i]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from block_manager.block_table import ChangedBlocks
from block_manager.transfers import Transfer

NO_ADAPTER = 0  # the number of the model as it is
PLACEHOLDER = -1  # stands for the token that the request's step before this one draws


class ScheduledRequest(NamedTuple):
    """One request's share of a step.

    The step computes positions ``num_computed_tokens .. num_computed_tokens + len(token_ids) - 1``, whose ids are
    ``token_ids``; the last of them is `PLACEHOLDER` where a step that has not ended yet draws it. ``samples`` is true
    when it is the last token there is, so that the step yields the next one.

    ``new_blocks.pages[g][i]`` are the page ids, one per page column of group ``g``, that hold block
    ``new_blocks.first + i`` of the sequence; all other blocks are as in the request's earlier shares. Blocks that slid
    out of a window are never read: they hold the null page (0) here, or still show what they held before.

    ``admitted`` marks the first step after (re)admission, whose tables owe nothing to earlier ones; ``turn`` numbers
    that admission, so that a share can be told from one of an earlier life. ``sequence_ids`` are the sequences that
    each draw a next token from the last position: the request, and its children in the step that completes its prompt.
    ``output_index`` counts the tokens drawn before, so that a draw is a function of seed and index.

    The last ``num_drafts`` of ``token_ids`` are guesses (see `Speculation`), in a share of a single sequence: a token
    is drawn from each of the last ``num_drafts + 1`` positions.

    ``adapter`` is the number of the adapter that the model computes it with, `NO_ADAPTER` for none.
    """

    request_id: str
    turn: int
    token_ids: list[int]
    num_computed_tokens: int
    samples: bool
    admitted: bool
    sequence_ids: tuple[str, ...]
    output_index: int
    new_blocks: ChangedBlocks
    num_drafts: int = 0
    adapter: int = NO_ADAPTER

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def drafts(self) -> list[int]:
        """The guesses among its tokens."""
        return self.token_ids[len(self.token_ids) - self.num_drafts :]


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """One step. Empty when nothing can run.

    ``released`` are requests of earlier batches that run no more: finished, aborted or preempted. Steps before this one
    may still read their pages, this one and later ones do not.
    ``transfers`` move page contents, in this order, before anything of the step is computed.
    """

    requests: tuple[ScheduledRequest, ...]
    released: tuple[str, ...] = ()
    transfers: tuple[Transfer, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(len(request.token_ids) for request in self.requests)

    def __bool__(self) -> bool:
        return bool(self.requests)
