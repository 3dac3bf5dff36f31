"""Reasoning in chats, apart from the answer: plain and streamed, counted, and told to the template."""

from __future__ import annotations

import pytest

from scheduler.request import FinishReason
from server.text.chat_template import ChatTemplate

THINKING = ChatTemplate(
    "{% for m in messages %}[{{ m.role }}]"
    "{% if m.reasoning_content is defined %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
OPENING = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}[assistant]<think>\n")
THOUGHT = "<think>\nHm. So.\n</think>\n\nFour."


@pytest.fixture(autouse=True)
def thinking(state) -> None:
    state.chat_template = THINKING


async def both(api, engine, text: str, finish=FinishReason.STOP, **fields):
    """(content, reasoning, finish reason), the same plain and streamed."""
    engine.answer(text, finish)
    [choice] = (await api.chat(**fields)).json()["choices"]
    message = choice["message"]
    plain = (message["content"], message.get("reasoning_content"), choice["finish_reason"])
    engine.answer(text, finish)
    events = api.events((await api.chat(stream=True, **fields)).text)[:-1]
    deltas = [event["choices"][0]["delta"] for event in events]
    assert all(delta.get("content", "x") and delta.get("reasoning_content", "x") for delta in deltas[1:])
    streamed = ["".join(delta.get(name, "") for delta in deltas) for name in ("content", "reasoning_content")]
    assert plain == (streamed[0], streamed[1] or None, events[-1]["choices"][0]["finish_reason"])
    return plain


async def test_reasoning_is_parted_from_the_answer(api, engine) -> None:
    assert await both(api, engine, THOUGHT) == ("Four.", "Hm. So.", "stop")
    assert await both(api, engine, "Four.") == ("Four.", None, "stop")


async def test_reasoning_that_the_prompt_has_opened(api, engine, state) -> None:
    state.chat_template = OPENING
    assert await both(api, engine, "Hm.\n</think>\nFour.") == ("Four.", "Hm.", "stop")


async def test_an_answer_cut_while_it_reasons_has_no_content(api, engine) -> None:
    assert await both(api, engine, "<think>\nHm", FinishReason.LENGTH) == ("", "Hm", "length")


async def test_a_message_without_reasoning_has_no_such_field(api, engine) -> None:
    engine.answer("Four.", FinishReason.STOP)
    message = (await api.chat()).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Four.", "refusal": None}


async def test_tags_are_content_for_a_model_that_does_not_know_them(api, engine, state) -> None:
    state.chat_template = ChatTemplate("{{ messages[0].content }}")
    assert await both(api, engine, THOUGHT) == (THOUGHT, None, "stop")
    state.reasoning_parser = "think"
    assert await both(api, engine, THOUGHT) == ("Four.", "Hm. So.", "stop")


async def test_the_reasoning_parser_can_be_switched_off(api, engine, state) -> None:
    state.reasoning_parser = "none"
    assert await both(api, engine, THOUGHT) == (THOUGHT, None, "stop")


async def test_usage_counts_the_tokens_of_reasoning_tags_included(api, engine) -> None:
    for text, expected in ((THOUGHT, len("<think>\nHm. So.\n</think>")), ("Four.", 0)):
        engine.answer(text, FinishReason.STOP)
        usage = (await api.chat()).json()["usage"]
        assert usage["completion_tokens"] == len(text) + 1
        assert usage["completion_tokens_details"] == {"reasoning_tokens": expected}


async def test_reasoning_comes_before_calls(api, engine, state) -> None:
    state.chat_template = ChatTemplate("{{ tools }}<think></think><tool_call>")
    tools = [{"type": "function", "function": {"name": "f"}}]
    engine.answer('<think>A <tool_call>?</think><tool_call>{"name": "f"}</tool_call>', FinishReason.STOP)
    [choice] = (await api.chat(tools=tools)).json()["choices"]
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == (None, "A <tool_call>?")
    assert [call["function"] for call in message["tool_calls"]] == [{"name": "f", "arguments": "{}"}]
    assert choice["finish_reason"] == "tool_calls"


async def test_n_choices_reason_for_themselves(api, engine) -> None:
    engine.answer(THOUGHT, FinishReason.STOP)
    engine.answer("Five.", FinishReason.STOP)
    body = (await api.chat(n=2)).json()
    messages = [choice["message"] for choice in body["choices"]]
    assert [message.get("reasoning_content") for message in messages] == ["Hm. So.", None]
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": len("<think>\nHm. So.\n</think>")}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_earlier_reasoning_reaches_the_template(api, engine, name) -> None:
    answer = {"role": "assistant", "content": "4", name: "Hm."}
    await api.chat(messages=[{"role": "user", "content": "2+2"}, answer, {"role": "user", "content": "so"}])
    prompt = engine.tokenizer.decode(engine.requests[0].prompt_token_ids)
    assert prompt == "[user]2+2[assistant]<think>Hm.</think>4[user]so[assistant]"


async def test_thinking_is_switched_off_by_a_variable_or_by_the_effort(api, engine) -> None:
    for fields in ({"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}):
        assert await both(api, engine, "Four.", **fields) == ("Four.", None, "stop")
        prompt = engine.tokenizer.decode(engine.requests[-1].prompt_token_ids)
        assert prompt == "[user]hi[assistant]<think>\n\n</think>\n\n"


async def test_an_effort_reaches_a_template_that_knows_efforts_and_is_refused_by_others(api, engine, state) -> None:
    response = await api.chat(reasoning_effort="high")
    api.assert_error(response, 400, param="reasoning_effort", code="unsupported_parameter")
    state.chat_template = ChatTemplate("{{ reasoning_effort }}")
    await api.chat(reasoning_effort="high")
    assert engine.tokenizer.decode(engine.requests[-1].prompt_token_ids) == "high"


async def test_an_answer_that_goes_on_with_reasoning_begins_inside_of_it(api, engine) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "<think>Hm"}]
    assert await both(api, engine, ", so.</think>4", messages=messages, continue_final_message=True) == (
        "4",
        ", so.",
        "stop",
    )
