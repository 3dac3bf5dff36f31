"""The metric names in a PromQL expression, found by its tokens: strings, labels, ranges and functions are not names."""

from __future__ import annotations

import re

LABEL_LISTS = ("by", "without", "on", "ignoring", "group_left", "group_right")
WORDS = frozenset({*LABEL_LISTS, "and", "or", "unless", "bool", "offset", "inf", "nan"})
CALLS = ("(", "by", "without")  # what follows a function, or an aggregation whose labels come first
TOKEN = re.compile(
    r"""
      (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)
    | (?P<comment>\#[^\n]*)
    | (?P<number>(?:0[xX][0-9a-fA-F]+|\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)(?:ms|[smhdwy])?)
    | (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
    | (?P<variable>\$\w+|\$\{\w+\})
    | (?P<sign>[-+*/%^=!<>~@,(){}\[\]:])
    | (?P<space>\s+)
    """,
    re.VERBOSE,
)


def tokens(promql: str) -> list[tuple[str, str]]:
    """Kinds and texts, blanks and comments left out. Raises ValueError at what PromQL does not have."""
    found, position = [], 0
    while position < len(promql):
        match = TOKEN.match(promql, position)
        if match is None:
            raise ValueError(f"no PromQL at {promql[position : position + 20]!r}")
        assert match.lastgroup is not None
        if match.lastgroup not in ("space", "comment"):
            found.append((match.lastgroup, match.group()))
        position = match.end()
    return found


def metric_names(promql: str) -> set[str]:
    """What is selected: names that are no function, no word of the language, and in no braces, range or label list."""
    return {selector.partition("{")[0] for selector in selectors(promql)}


def selectors(promql: str) -> set[str]:
    """Each name that is selected, with the braces after it."""
    found: set[str] = set()
    depth = 0
    in_labels = False
    stream = tokens(promql)
    for position, (kind, text) in enumerate(stream):
        following = stream[position + 1][1] if position + 1 < len(stream) else ""
        if kind == "sign":
            depth += (text in "{[") - (text in "}]")
            if text == "(" and position and stream[position - 1][1].lower() in LABEL_LISTS:
                in_labels = True
            elif text == ")":
                in_labels = False
        elif kind == "name" and not depth and not in_labels and text.lower() not in WORDS:
            if following.lower() in CALLS:
                continue
            found.add(text + _braces(stream[position + 1 :]))
    return found


def _braces(stream: list[tuple[str, str]]) -> str:
    """The matchers that the stream begins with, if any."""
    if not stream or stream[0][1] != "{":
        return ""
    end = stream.index(("sign", "}"))
    return "".join(text for _, text in stream[: end + 1])


def label_values_name(query: str) -> str:
    """The metric of a variable's ``label_values(metric{...}, label)``."""
    match = re.fullmatch(r"label_values\((.+), *[a-z_]+\)", query)
    assert match is not None, query
    (name,) = metric_names(match.group(1))
    return name
