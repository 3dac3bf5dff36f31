"""Conversation: what was said, and the next answer to it as it comes.

Knows the chat API's messages; neither terminals nor where answers come from. Invariant: an answer that fails, or is
interrupted before its first word, leaves the conversation as it was.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from server.terminal.chat_source import ChatSource, ChatSourceError
from server.terminal.event_reader import EventReader


@dataclass(frozen=True, slots=True)
class AnswerCost:
    """Of the latest answer: tokens, and seconds to its first and its last word."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    first_seconds: float
    seconds: float

    def __str__(self) -> str:
        rate = (self.output_tokens - 1) / (self.seconds - self.first_seconds) if self.output_tokens > 1 else 0.0
        prompt = f"{self.prompt_tokens} prompt tokens, {self.cached_tokens} of them from pages"
        return f"{prompt}; {self.output_tokens} tokens, the first after {self.first_seconds:.2f} s, {rate:.0f} a second"


class Conversation:
    """``choices`` are further fields of each request, such as a temperature."""

    def __init__(self, source: ChatSource, *, system: str | None = None, choices: dict[str, Any] | None = None) -> None:
        self._source = source
        self._choices = choices or {}
        self.system = system
        self.turns: list[dict[str, str]] = []
        self.cost: AnswerCost | None = None

    def reset(self) -> None:
        """Forget what was said, the system's words excepted."""
        self.turns.clear()
        self.cost = None

    def ask(self, text: str) -> Iterator[str]:
        """The answer as it comes. Raises ChatSourceError; close the iterator, or interrupt it, to abort."""
        said: list[str] = []
        self.turns.append({"role": "user", "content": text})
        try:
            for words in self._answer():
                said.append(words)
                yield words
        except ChatSourceError:
            said.clear()
            raise
        finally:
            if said:
                self.turns.append({"role": "assistant", "content": "".join(said)})
            else:
                self.turns.pop()

    def _answer(self) -> Iterator[str]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        body = {
            "model": self._source.model,
            "messages": system + self.turns,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._choices,
        }
        began = time.monotonic()
        first = None
        reader = EventReader()
        with contextlib.closing(self._source.stream(body)) as chunks:  # type: ignore[type-var]
            for chunk in chunks:
                for event in reader.feed(chunk):
                    if "error" in event:
                        raise ChatSourceError(str(event["error"].get("message", "the answer failed")))
                    for choice in event["choices"]:
                        delta = choice["delta"]
                        if words := (delta.get("reasoning_content") or "") + (delta.get("content") or ""):
                            first = first or time.monotonic()
                            yield words
                    if usage := event.get("usage"):
                        ended = time.monotonic()
                        self.cost = AnswerCost(
                            prompt_tokens=usage["prompt_tokens"],
                            cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
                            output_tokens=usage["completion_tokens"],
                            first_seconds=(first or ended) - began,
                            seconds=ended - began,
                        )
