"""Reports: what the scheduler and the block manager know, as messages."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

from block_manager.prefix_index import MissReason
from engine.adapter_messages import AdapterRequests
from engine.grammar_queue import GrammarQueue
from engine.messages import EngineStats, GroupUsage, Ledger, PreemptionCount, PreemptionNote, RequestExplanation
from engine.step_times import StepTimes
from scheduler.explanation import Explanation
from scheduler.ledger import RequestLedger
from scheduler.preemption_record import Preemption, PreemptionCause, PreemptionKind
from scheduler.refusal import RefusalReason
from scheduler.request import WaitReason
from scheduler.scheduler import Scheduler


def scheduler_stats(
    scheduler: Scheduler,
    grammars: GrammarQueue,
    *,
    page_bytes: int,
    steps: StepTimes,
    audit_failures: int,
    adapter_requests: list[AdapterRequests],
) -> EngineStats:
    """Pages, queues and counters, now. Looks at every open sequence, so not at every step."""
    usage = scheduler.blocks.usage()
    counters = scheduler.counters
    host = scheduler.blocks.host
    tenant_page_seconds = scheduler.tenant_page_seconds()
    reasons = scheduler.planner.wait_reasons()
    reasons[WaitReason.GRAMMAR] = len(grammars)
    return EngineStats(
        pages_total=usage.total,
        pages_free=usage.free,
        page_bytes=page_bytes,
        groups=[
            GroupUsage(
                name=group.name,
                cached=group.cached,
                held=group.held,
                bytes_held=group.held * page_bytes,
                shared=group.shared,
                evicted=group.evicted,
                held_slots=group.held_slots,
                wasted_slots=group.wasted_slots,
            )
            for group in usage.groups
        ],
        running=len(scheduler.running),
        waiting=len(scheduler.waiting) + len(grammars),
        waiting_by_reason={reason.value: reasons[reason] for reason in WaitReason},
        wanted_pages=scheduler.planner.wanted_pages,
        exhaustion_seconds=scheduler.outlook.exhaustion_seconds(scheduler.running),
        queued_tokens=scheduler.waiting.num_tokens,
        longest_wait_seconds=max(scheduler.longest_wait_seconds, grammars.longest_wait_seconds),
        oldest_cached_seconds=usage.oldest_cached_seconds,
        host_pages_total=host.num_pages,
        host_pages_free=host.free_pages,
        host_pages_swapped=host.swapped_pages,
        preemptions=[
            PreemptionCount(kind=kind.value, cause=cause.value, count=counters.preemptions[kind, cause])
            for kind in PreemptionKind
            for cause in PreemptionCause
        ],
        refusals={reason.value: counters.refusals[reason] for reason in RefusalReason},
        overtakes=counters.overtakes,
        rotations=counters.rotations,
        prompt_tokens=counters.prompt_tokens,
        cached_prompt_tokens=counters.cached_prompt_tokens,
        missed_prompt_tokens={reason.value: counters.missed_tokens[reason] for reason in MissReason},
        page_seconds=sum(tenant_page_seconds.values()),
        tenant_page_seconds=tenant_page_seconds,
        recomputed_tokens=counters.recomputed_tokens,
        generation_tokens=counters.generation_tokens,
        drafts=counters.drafts,
        draft_tokens=counters.draft_tokens,
        accepted_draft_tokens=counters.accepted_draft_tokens,
        steps=steps.steps,
        step_seconds=steps.seconds,
        step_part_seconds=dict(steps.parts),
        step_durations=deepcopy(steps.durations),
        step_tokens=deepcopy(steps.tokens),
        step_sequences=deepcopy(steps.sequences),
        audit_failures=audit_failures,
        adapter_requests=adapter_requests,
    )


def ledger_report(ledger: RequestLedger, now: float = 0.0) -> Ledger:
    """What a request has cost up to its end or, where that is to come, ``now``, on the scheduler's clock."""
    queue_seconds, prefill_seconds, decode_seconds = ledger.phases.seconds(now)
    return Ledger(
        queue_seconds=queue_seconds,
        prefill_seconds=prefill_seconds,
        decode_seconds=decode_seconds,
        peak_pages=ledger.peak_pages,
        page_seconds=ledger.page_seconds,
        cached_tokens=ledger.cached_tokens,
        recomputed_tokens=ledger.recomputed_tokens,
        rotations=ledger.rotations,
        draft_tokens=ledger.draft_tokens,
        accepted_draft_tokens=ledger.accepted_draft_tokens,
        preemptions=_notes(ledger.preemptions, ledger.phases.arrived),
    )


def grammar_ledger(seconds: float) -> Ledger:
    """Of a request that has waited so long for its grammar, and nothing else."""
    return ledger_report(RequestLedger(), seconds)


def request_explanation(explanation: Explanation) -> RequestExplanation:
    """Where a request stands."""
    return RequestExplanation(
        request_id=explanation.request_id,
        status=explanation.status,
        text=explanation.text(),
        seconds_since_arrival=explanation.seconds_since_arrival,
        position=explanation.position,
        expected_start_seconds=explanation.expected_start_seconds,
        wait_reason=explanation.wait_reason,
        wanted_pages=explanation.wanted_pages,
        available_pages=explanation.available_pages,
        num_tokens=explanation.num_tokens,
        num_computed_tokens=explanation.num_computed_tokens,
        num_output_tokens=explanation.num_output_tokens,
        num_overtakers=explanation.num_overtakers,
        preemptions=_notes(explanation.preemptions, explanation.arrived),
    )


def _notes(preemptions: Sequence[Preemption], arrived: float) -> list[PreemptionNote]:
    return [
        PreemptionNote(
            requester=one.requester,
            seconds=one.at - arrived,
            kind=one.kind.value,
            cause=one.cause.value,
            pages_freed=one.pages_freed,
            tokens_to_recompute=one.tokens_to_recompute,
        )
        for one in preemptions
    ]
