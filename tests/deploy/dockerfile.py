"""Dockerfile: a recipe of an image, read into stages of instructions, and its context, read from .dockerignore.

Knows the grammar of instructions (comments, continued lines, ARG, FROM ... AS, COPY --from), not what commands do.
"""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

INSTRUCTIONS = (
    *("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "RUN", "SHELL"),
    *("STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
)


@dataclass(frozen=True, slots=True)
class Instruction:
    """``flags`` are its --name=value words, ``text`` is what follows them."""

    name: str
    flags: dict[str, str]
    text: str

    @property
    def words(self) -> list[str]:
        """Of the text, which may be a JSON list."""
        return list(json.loads(self.text)) if self.text.startswith("[") else shlex.split(self.text)


@dataclass(slots=True)
class Stage:
    """``base`` is an image or an earlier stage."""

    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, name: str) -> list[Instruction]:
        return [one for one in self.instructions if one.name == name]


class Dockerfile:
    """Raises ValueError for a line that is no instruction."""

    def __init__(self, text: str) -> None:
        self.arguments: dict[str, str] = {}
        self.stages: dict[str, Stage] = {}
        stage: Stage | None = None
        for one in map(_instruction, _lines(text)):
            if one.name == "FROM":
                base, _, name = _substituted(one.text, self.arguments).partition(" AS ")
                stage = Stage(name or str(len(self.stages)), base)
                self.stages[stage.name] = stage
            elif stage is None:
                if one.name != "ARG":
                    raise ValueError(f"{one.name} before FROM")
                name, _, value = one.text.partition("=")
                self.arguments[name] = value
            else:
                stage.instructions.append(one)

    def lineage(self, name: str) -> list[Instruction]:
        """Every instruction of a stage and of the stages it is made from, oldest first."""
        stage = self.stages[name]
        inherited = self.lineage(stage.base) if stage.base in self.stages else []
        return [*inherited, *stage.instructions]


def context_keeps(ignore_file: str, path: str) -> bool:
    """Whether the build context has ``path``: the last pattern that matches it, or a folder it is in, decides."""
    kept = True
    parents = [str(Path(path)), *(str(parent) for parent in Path(path).parents if str(parent) != ".")]
    for line in ignore_file.splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        again, pattern = pattern.startswith("!"), pattern.removeprefix("!").rstrip("/")
        if any(_matches(one, pattern) for one in parents):
            kept = again
    return kept


def _matches(path: str, pattern: str) -> bool:
    if pattern.startswith("**/"):
        parts = path.split("/")
        return any(_matches("/".join(parts[i:]), pattern[3:]) for i in range(len(parts)))
    return path.count("/") == pattern.count("/") and fnmatch.fnmatchcase(path, pattern)


def _lines(text: str) -> list[str]:
    """Instructions, each on one line; comments may stand between the parts of one."""
    kept = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return [line.strip() for line in re.sub(r"\\\n", " ", kept).splitlines() if line.strip()]


def _instruction(line: str) -> Instruction:
    name, _, rest = line.partition(" ")
    if name not in INSTRUCTIONS or not rest.strip():
        raise ValueError(f"no instruction: {line}")
    flags = {}
    while match := re.match(r"\s*--([a-z-]+)=(\S+)", rest):
        flags[match[1]] = match[2]
        rest = rest[match.end() :]
    return Instruction(name, flags, rest.strip())


def _substituted(text: str, arguments: dict[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], text)
