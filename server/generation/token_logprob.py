"""TokenLogprob: a token of a text with its log probability, and what it brought to the text.

Plain values, in the form from which the endpoints make their own JSON. Invariants: joined, the ``text`` of a choice's
tokens is its text, exactly, and their ``content`` its bytes (but where U+FFFD stands for bytes that are no text).
"""

from __future__ import annotations

from dataclasses import dataclass


def spell(content: bytes) -> str:
    r"""The bytes of one token for a reader: as text or, where they are none by themselves, like ``bytes:\xe2\x96``."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


@dataclass(frozen=True, slots=True)
class LikelyToken:
    """One of the most likely tokens at a position, with its exact bytes; control tokens have those of their name."""

    token_id: int
    content: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token that stands in a text, or ended it.

    ``text`` is what it added: the whole character for the token that completes one, nothing for those with the
    character's first bytes, for a control token that is not shown, and for the one that ended the text. ``content`` are
    its bytes in the text, ``offset`` the characters of the text before it. ``logprob`` and ``rank`` (1: the most
    likely) are None for the first token of a prompt. ``top`` are the most likely tokens at its position, in order; the
    token itself is among them only if it is one of them.
    """

    token_id: int
    text: str
    content: bytes
    offset: int
    logprob: float | None
    rank: int | None
    top: tuple[LikelyToken, ...]
