"""A conversation over the chat API: what is sent, what is kept, and what an interruption leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from server.terminal.chat_source import ChatSourceError
from server.terminal.conversation import Conversation
from server.terminal.event_reader import EventReader


def event(content: str) -> bytes:
    return b"data: " + orjson.dumps({"choices": [{"index": 0, "delta": {"content": content}}]}) + b"\n\n"


USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
END = b"data: " + orjson.dumps({"choices": [], "usage": USAGE}) + b"\n\ndata: [DONE]\n\n"


class ScriptedSource:
    """Answers with given chunks, and keeps what it was asked; ``aborted`` counts streams closed early."""

    model = "m"

    def __init__(self, *answers: list[bytes | Exception]) -> None:
        self.answers = list(answers)
        self.bodies: list[dict[str, Any]] = []
        self.aborted = 0

    def stream(self, body: dict[str, Any]) -> Iterator[bytes]:
        self.bodies.append(orjson.loads(orjson.dumps(body)))
        ended = False
        try:
            for chunk in self.answers.pop(0):
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk
            ended = True
        finally:
            self.aborted += not ended

    def close(self) -> None: ...


def test_each_turn_is_sent_with_all_before_it() -> None:
    source = ScriptedSource([event("Hel"), event("lo"), END], [event("Yes"), END])
    talk = Conversation(source, system="be brief", choices={"temperature": 0.0})
    assert list(talk.ask("hi")) == ["Hel", "lo"]
    assert list(talk.ask("sure?")) == ["Yes"]
    first, second = source.bodies
    assert first == {
        "model": "m",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
    }
    assert second["messages"][1:] == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "sure?"},
    ]
    assert talk.cost is not None
    assert (talk.cost.prompt_tokens, talk.cost.cached_tokens, talk.cost.output_tokens) == (9, 4, 3)


def test_an_interrupted_answer_is_aborted_and_kept_as_far_as_it_came() -> None:
    source = ScriptedSource([event("Hel"), event("lo"), END])
    talk = Conversation(source)
    answer = talk.ask("hi")
    assert next(answer) == "Hel"
    answer.close()  # type: ignore[attr-defined]
    assert source.aborted == 1
    assert talk.turns == [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hel"}]


@pytest.mark.parametrize("failure", [ChatSourceError("gone"), b'data: {"error":{"message":"gone"}}\n\n'])
def test_an_answer_that_fails_leaves_nothing(failure: Exception | bytes) -> None:
    source = ScriptedSource([event("Hel"), failure, END], [event("Yes"), END])
    talk = Conversation(source)
    with pytest.raises(ChatSourceError, match="gone"):
        list(talk.ask("hi"))
    assert talk.turns == []
    assert list(talk.ask("again")) == ["Yes"]


def test_reset_keeps_the_system_prompt() -> None:
    talk = Conversation(ScriptedSource([event("a"), END]), system="s")
    list(talk.ask("hi"))
    talk.reset()
    assert (talk.turns, talk.system, talk.cost) == ([], "s", None)


def test_events_are_read_however_the_bytes_are_cut() -> None:
    stream = b": queued position=1\n\n" + event("漢👋") + event("x") + END
    whole = list(EventReader().feed(stream))
    assert [one["choices"][0]["delta"]["content"] for one in whole[:2]] == ["漢👋", "x"]
    for cut in range(len(stream) + 1):
        reader = EventReader()
        assert [*reader.feed(stream[:cut]), *reader.feed(stream[cut:])] == whole
