"""Verification: how many drafts of a step stand, given what it drew at their positions.

A draft stands while it is the token that was drawn before it, with the same number of the request's own stream as
without drafts; the token drawn behind the last that stands is the next one. So a request's tokens are those it has
without drafts, one by one, greedy or drawn.

This is speculative sampling (Leviathan et al., "Fast inference from transformers via speculative decoding", 2023,
section 2.3) for a draft that proposes one token x with certainty, q(x) = 1. There x is accepted with probability
min(1, p(x) / q(x)) = p(x), and else a token is drawn from norm(max(0, p - q)), which is p without x, normalised. A
token drawn from p is x with probability p(x), and if it is not, it is distributed as p without x, normalised: one
draw does both.
"""

from __future__ import annotations

from collections.abc import Sequence


def num_accepted(drafts: Sequence[int], drawn: Sequence[int]) -> int:
    """Drafts that stand. ``drawn[i]`` is the token drawn at the position before ``drafts[i]``."""
    for place, (draft, token_id) in enumerate(zip(drafts, drawn, strict=True)):
        if draft != token_id:
            return place
    return len(drafts)
