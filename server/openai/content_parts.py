"""Contents: a text, or a list of parts with one each, as a message of a chat and an item of a response have.

Knows no kind of message. Invariant: a part that says more than its text is refused, and none is left out.
"""

from __future__ import annotations

from collections.abc import Sequence


def read_text(
    value: object,
    *,
    kinds: Sequence[str] = ("text",),
    neutral: frozenset[str] = frozenset(),
    ignored: frozenset[str] = frozenset(),
) -> str:
    """A string, or the joined text of parts of these ``kinds``. Raises ValueError.

    A part may have fields that are ``ignored``, and those that are ``neutral`` where they are empty.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of text parts")
    texts = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(part, dict) or not isinstance(kind, str):
            raise ValueError(f'a content part is an object like {{"type": "{kinds[0]}", "text": "..."}}')
        if kind not in kinds:
            raise ValueError(f"unsupported content part type {kind[:40]!r}: this server reads text only")
        says_more = any(name not in neutral or part[name] for name in part.keys() - ignored - {"type", "text"})
        if says_more or not isinstance(part.get("text"), str):
            raise ValueError(f'a part of the type {kind} has a "text", which is a string, and no other field')
        texts.append(part["text"])
    return "".join(texts)
