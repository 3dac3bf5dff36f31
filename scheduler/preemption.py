"""Preemption: a running request gives its pages to another, in the way that costs less, and leaves a record.

It decides how, not who (that is the policy's). By recompute, the pages' contents are lost and computed again; by swap,
they move to host memory and back. Neither changes an answer.
"""

from __future__ import annotations

from block_manager.manager import BlockManager
from scheduler.preemption_record import Preemption, PreemptionCause, PreemptionKind
from scheduler.request import Request


def preempt(
    blocks: BlockManager,
    victim: Request,
    requester: Request,
    cause: PreemptionCause,
    *,
    now: float,
    seconds_per_token: float,
    seconds_per_page: float,
) -> Preemption:
    """Close the table of ``victim``, by swap where moving its pages out and in is faster than computing its tokens."""
    usage = blocks.sequence_usage(victim.request_id)
    computed = victim.num_computed_tokens
    swap = usage.held_pages * 2 * seconds_per_page < computed * seconds_per_token
    if swap and blocks.swap_out(victim.request_id) is not None:
        kind = PreemptionKind.SWAP
    else:
        kind = PreemptionKind.RECOMPUTE
        blocks.free(victim.request_id)
    victim.restart(computed if kind is PreemptionKind.SWAP else 0)
    victim.ledger.close_turn(usage)
    record = Preemption(
        at=now,
        victim=victim.request_id,
        requester=requester.request_id,
        kind=kind,
        cause=cause,
        pages_freed=usage.held_pages,
        tokens_to_recompute=computed - victim.num_computed_tokens,
    )
    victim.ledger.preemptions.append(record)
    return record
