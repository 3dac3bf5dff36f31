"""What a step, or the lack of one, means to a request, as the delta that its reader gets."""

from __future__ import annotations

import traceback

from engine.grammar_source import GrammarError
from engine.logit_edits import NothingAllowed
from engine.messages import Failure, Ledger, RequestDelta
from engine.prompt_reader import PromptPiece
from engine.reports import ledger_report
from engine.step_result import DrawnToken
from scheduler.output import TokenOutput
from scheduler.refusal import Refusal
from scheduler.request import FinishReason, Request


def drawn_delta(
    output: TokenOutput, reason: FinishReason | None, drawn: DrawnToken | None, piece: PromptPiece | None
) -> RequestDelta:
    """New tokens; ``reason`` why they are the last, if they are."""
    request = output.request
    named = output.finish_reason is FinishReason.STOP and output.token_id in request.stop_token_ids
    return RequestDelta(
        request_id=request.request_id,
        token_ids=[] if output.token_id is None else [*output.accepted, output.token_id],
        finish_reason=reason,
        stop_token_id=output.token_id if named else None,
        num_cached_tokens=request.num_cached_tokens or 0,
        logprob=0.0 if drawn is None else drawn.logprob,
        logprobs=[] if drawn is None else list(drawn.logprobs),
        prompt_logprobs=[] if piece is None else piece.logprobs,
        embedding=None if piece is None else piece.embedding,
        ledger=None if reason is None else ledger_report(request.ledger),
    )


def prompt_delta(request_id: str, piece: PromptPiece) -> RequestDelta:
    """A piece of a prompt that was read, before any token."""
    return RequestDelta(request_id=request_id, token_ids=[], prompt_logprobs=piece.logprobs)


def whole_delta(request: Request) -> RequestDelta:
    """The end of an output that is whole without another token."""
    return RequestDelta(
        request_id=request.request_id,
        token_ids=[],
        finish_reason=FinishReason.STOP,
        num_cached_tokens=request.num_cached_tokens or 0,
        ledger=ledger_report(request.ledger),
    )


def failed_delta(request_id: str, failure: Failure, ledger: Ledger | None = None) -> RequestDelta:
    """An end without a result; ``ledger`` is of a request that was queued."""
    return RequestDelta(
        request_id=request_id, token_ids=[], finish_reason=FinishReason.ERROR, failure=failure, ledger=ledger
    )


def aborted_delta(request_id: str, ledger: Ledger) -> RequestDelta:
    """An end that was asked for."""
    return RequestDelta(request_id=request_id, token_ids=[], finish_reason=FinishReason.ABORT, ledger=ledger)


def refused_delta(refusal: Refusal) -> RequestDelta:
    """An end that the scheduler decided."""
    failure = Failure(
        code=refusal.reason.value, message=refusal.message, started=refusal.started, retry_after=refusal.retry_after
    )
    ledger = None if refusal.ledger is None else ledger_report(refusal.ledger)
    return failed_delta(refusal.request_id, failure, ledger)


def failure_of_draw(error: Exception) -> Failure:
    """Why a request can't draw, from what its editor raised; what nobody expected is printed."""
    if isinstance(error, NothingAllowed):
        return Failure(code="invalid", message=str(error), started=True)
    if isinstance(error, GrammarError):
        return Failure(code="invalid_grammar", message=str(error), started=True)
    traceback.print_exception(error)
    message = f"what the next token may be could not be told: {type(error).__name__}: {error}"
    return Failure(code="step_failed", message=message, started=True)
