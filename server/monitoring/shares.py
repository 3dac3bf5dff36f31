"""Shares and ratios that boards and rules both ask for, so that both mean the same by them."""

from __future__ import annotations

from server.metrics.catalogue import (
    GENERATION_TOKENS,
    KV_AVAILABLE_PAGES,
    KV_HELD_SLOTS,
    KV_PAGES_CAPACITY,
    KV_WASTED_SLOTS,
    PREFIX_CACHE_HITS,
    PREFIX_CACHE_QUERIES,
    PROMPT_TOKENS,
    RECOMPUTED_TOKENS,
    REQUESTS,
)
from server.monitoring.promql import Scope, add, minus, ratio


def available_pages(scope: Scope) -> str:
    """Pages that can be taken, of all."""
    return ratio(scope.total(KV_AVAILABLE_PAGES), scope.total(KV_PAGES_CAPACITY))


def wasted_slots(scope: Scope) -> str:
    """Slots without a token, of all in held pages, over all layer groups."""
    return ratio(scope.total(KV_WASTED_SLOTS), scope.total(KV_HELD_SLOTS))


def prefix_hits(scope: Scope) -> str:
    """Prompt tokens read from cached pages, of all that were looked up."""
    return ratio(scope.total_rate(PREFIX_CACHE_HITS), scope.total_rate(PREFIX_CACHE_QUERIES))


def recomputed_tokens(scope: Scope) -> str:
    """Tokens computed once more, of all that were computed: those read from the cache are not."""
    prompt = minus(scope.total_rate(PROMPT_TOKENS), scope.total_rate(PREFIX_CACHE_HITS))
    recomputed = scope.total_rate(RECOMPUTED_TOKENS)
    return ratio(recomputed, add(prompt, scope.total_rate(GENERATION_TOKENS), recomputed))


def failed_requests(scope: Scope) -> str:
    """Requests that ended by an error, of all that ended."""
    return ratio(scope.total_rate(REQUESTS, outcome="error"), scope.total_rate(REQUESTS))
