"""What is too long for the context of 512 tokens whatever it says, and is refused before it is tokenized."""

from __future__ import annotations

import pytest

CODE = "context_length_exceeded"


@pytest.fixture
def untokenized(monkeypatch: pytest.MonkeyPatch, byte_tokenizer) -> None:
    def encode(text: str) -> list[int]:
        raise AssertionError("a text that can never fit was tokenized")

    monkeypatch.setattr(byte_tokenizer, "_encode", encode)


@pytest.mark.usefixtures("untokenized")
async def test_a_text_that_no_tokens_could_make_short_enough(api, byte_tokenizer) -> None:
    assert byte_tokenizer.longest_token_bytes == len("<|end|>")
    response = await api.completion(prompt=" " * (512 * 7 + 1))
    message = api.assert_error(response, 400, param="prompt", code=CODE)
    assert "3585 bytes" in message
    assert "512 tokens" in message
    response = await api.chat(messages=[{"role": "user", "content": "字" * 1200}])
    api.assert_error(response, 400, param="messages", code=CODE)


async def test_a_text_at_the_bound_is_counted_exactly(api) -> None:
    message = api.assert_error(await api.completion(prompt="<|end|>" * 512), 400, param="prompt", code=CODE)
    assert "512 tokens" in message
    assert (await api.completion(prompt="<|end|>" * 300, max_tokens=1)).status_code == 200


@pytest.mark.parametrize("prompt", [[-1] * 513, [[1], [-1] * 513], [[None] * 513]])
async def test_more_token_ids_than_the_context_are_refused_unread(api, prompt) -> None:
    assert "513 token ids" in api.assert_error(await api.completion(prompt=prompt), 400, param="prompt", code=CODE)


async def test_more_messages_than_the_context_has_tokens_are_refused_unread(api) -> None:
    response = await api.chat(messages=[{"role": "nobody"}] * 513)
    assert "513 messages" in api.assert_error(response, 400, param="messages", code=CODE)
