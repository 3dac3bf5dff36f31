"""What the API refuses, by name, before the engine sees it. Ids like A07 name cases known from other servers."""

from __future__ import annotations

import pytest

from scheduler.request import FinishReason
from server.http.nesting import MAX_DEPTH
from server.openai.chat_message import AssistantMessage

PATHS = ("/v1/completions", "/v1/chat/completions")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [b"[]", b"true", b"null", b"123", b'"x"'])
async def test_a07_a_body_that_is_no_object_is_refused(api, engine, path, body) -> None:
    api.assert_error(await api.http.post(path, content=body), 400)
    assert engine.requests == []


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [b"", b"{", b'{"model": }', b"\xff\xfe", b'{"model":"\\ud800"}', b"[" * 5000])
async def test_malformed_json_is_refused(api, engine, path, body) -> None:
    api.assert_error(await api.http.post(path, content=body), 400, code="invalid_json")
    assert engine.requests == []


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p"])
@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_a25_numbers_that_are_not_finite_are_refused(api, engine, field, literal) -> None:
    body = f'{{"model":"{api.model}","prompt":"hi","{field}":{literal}}}'
    api.assert_error(await api.http.post("/v1/completions", content=body), 400, code="invalid_json")
    assert engine.requests == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("max_tokens", value) for value in (-1, 1.5, "8", True, 2**31, 2**63, 2**70, [])),
        *(("temperature", value) for value in (-0.1, 2.1, "1", True, [])),
        *(("top_p", value) for value in (0, -1, 1.1, "1", True)),
        *(("top_k", value) for value in (-2, 1.5, "5", True, 2**40)),
        *(("min_p", value) for value in (-0.1, 1.1, "0", False)),
        *(("seed", value) for value in (1.5, "5", True, 2**63, -(2**63) - 1)),
        *(("ignore_eos", value) for value in (1, "true")),
        *(("stream", value) for value in (1, "true")),
        *(("user", value) for value in (5, ["me"])),
        *(("stop_token_ids", value) for value in (5, "5", [1] * 257)),
        ("stop_token_ids", {}),
        ("model", 5),
        ("model", ""),
        ("model", None),
    ],
)
async def test_a20_a_value_of_the_wrong_type_or_size_is_refused_by_name(api, engine, field, value) -> None:
    api.assert_error(await api.completion(**{field: value}), 400, param=field)
    assert engine.requests == []


@pytest.mark.parametrize("value", [-1, 1.0, "5", True, None])
async def test_a20_a_wrong_stop_token_is_refused_by_its_place(api, engine, value) -> None:
    api.assert_error(await api.completion(stop_token_ids=[5, value]), 400, param="stop_token_ids[1]")
    assert engine.requests == []


@pytest.mark.parametrize(
    "fields", [{"seed": 2**63 - 1}, {"seed": -(2**63)}, {"temperature": 2}, {"top_p": 1}, {"min_p": 1}, {"top_k": 0}]
)
async def test_values_at_the_limits_are_taken(api, fields) -> None:
    assert (await api.completion(**fields)).status_code == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("suffix", "end"),
        ("length_penalty", 1.5),
        ("use_beam_search", True),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a26_what_is_not_supported_in_completions_is_refused_by_name(api, engine, field, value, stream) -> None:
    response = await api.completion(**{field: value, "stream": stream})
    message = api.assert_error(response, 400, param=field, code="unsupported_parameter")
    assert field in message
    assert engine.requests == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("logprobs", value) for value in (21, -1, True, 1.0, "5")),
        *(("prompt_logprobs", value) for value in (21, -1, True, 2**40)),
        *(("presence_penalty", value) for value in (-2.1, 2.1, "1", True)),
        *(("frequency_penalty", value) for value in (-2.1, 2.1, "1", True)),
        *(("repetition_penalty", value) for value in (0, -1, 10.1, "1", True)),
        *(("min_tokens", value) for value in (-1, 17, 1.5, True)),
        *(("echo", value) for value in (1, "true")),
        *(("include_stop_str_in_output", value) for value in (1, "true")),
        *(("skip_special_tokens", value) for value in (0, "true")),
        ("suffix", 5),
        ("spaces_between_special_tokens", "x"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a21_what_is_out_of_range_is_refused_before_a_stream_starts(api, engine, field, value, stream) -> None:
    code = "unsupported_parameter" if field == "spaces_between_special_tokens" else None
    api.assert_error(await api.completion(**{field: value, "stream": stream}), 400, param=field, code=code)
    assert engine.requests == []
    assert (await api.completion()).status_code == 200


@pytest.mark.parametrize("path", ["completion", "chat"])
@pytest.mark.parametrize(
    "value",
    [
        {"265": -100}, {"260": 1}, {"3": 5, "999999999": -100}, {"99999999999999999999": 1}, {"3": 100.5},
        {"3": -101}, {"3": True}, {"3": "5"}, {"3": None}, {"x": 1}, {"-1": 1}, {"3.0": 1}, {"": 1}, {"\u0663": 1},
        {"3": 1, "03": 2}, {str(i): 1 for i in range(1025)}, [[3, 5]], 5, "3",
    ],
)  # fmt: skip
async def test_a04_a_logit_bias_that_cannot_be_applied_is_refused(api, engine, path, value) -> None:
    api.assert_error(await getattr(api, path)(logit_bias=value), 400, param="logit_bias")
    assert engine.requests == []


@pytest.mark.parametrize(
    "fields", [{"max_tokens": 0}, {"max_tokens": 0, "logprobs": 1}, {"max_tokens": 0, "echo": False}]
)
async def test_a16_an_answer_of_nothing_is_refused(api, engine, fields) -> None:
    api.assert_error(await api.completion(**fields), 400, param="max_tokens")
    assert engine.requests == []


@pytest.mark.parametrize("fields", [{"min_tokens": 5, "max_tokens": 4}, {"min_tokens": 17}])
async def test_more_min_tokens_than_max_tokens_are_refused(api, engine, fields) -> None:
    message = api.assert_error(await api.completion(**fields), 400, param="min_tokens")
    assert str(fields.get("max_tokens", 16)) in message
    assert engine.requests == []


async def test_a21_prompt_logprobs_do_not_stream(api, engine) -> None:
    api.assert_error(await api.completion(prompt_logprobs=1, stream=True), 400, param="prompt_logprobs")
    assert engine.requests == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("echo", True),
        ("prompt_logprobs", 1),
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("documents", [{"text": "x"}]),
        ("chat_template", "{{ messages }}"),
        ("store", True),
        ("modalities", ["text", "audio"]),
        ("reasoning_effort", "high"),
        ("web_search_options", {}),
    ],
)
async def test_a08_a26_what_is_not_supported_in_chat_is_refused_by_name(api, engine, field, value) -> None:
    api.assert_error(await api.chat(**{field: value}), 400, param=field, code="unsupported_parameter")
    assert engine.requests == []


@pytest.mark.parametrize("path", PATHS)
async def test_a_field_nobody_knows_is_refused_by_name(api, engine, path) -> None:
    response = await api.http.post(path, json={"model": api.model, "prompt": "x", "messages": [], "temprature": 1})
    # chat does not know "prompt", nor completions "messages"; the first of them is named
    assert response.status_code == 400
    assert response.json()["error"]["param"] in {"prompt", "messages", "temprature"}
    api.assert_error(await api.completion(temprature=1), 400, param="temprature", code="unknown_parameter")
    api.assert_error(await api.chat(temprature=1), 400, param="temprature", code="unknown_parameter")
    assert engine.requests == []


async def test_fields_that_ask_for_nothing_pass_in_completions(api) -> None:
    response = await api.completion(
        n=1, best_of=1, echo=False, logprobs=None, suffix=None, presence_penalty=0, frequency_penalty=0.0,
        logit_bias=None, user="me", stop=None, stream=False, stream_options=None, seed=None,
        response_format={"type": "text"},
    )  # fmt: skip
    assert response.status_code == 200


async def test_fields_that_ask_for_nothing_pass_in_chat(api) -> None:
    response = await api.chat(
        n=1, logprobs=False, top_logprobs=None, presence_penalty=0, frequency_penalty=0, logit_bias={}, tools=[],
        tool_choice="auto", parallel_tool_calls=True, response_format={"type": "text"}, store=False, metadata=None,
        modalities=["text"], service_tier="auto", user="me", safety_identifier="x", prompt_cache_key="y",
    )  # fmt: skip
    assert response.status_code == 200


@pytest.mark.parametrize("stream", [None, False])
async def test_stream_options_without_a_stream_are_refused(api, stream) -> None:
    response = await api.completion(stream=stream, stream_options={"include_usage": True})
    api.assert_error(response, 400, param="stream_options")


async def test_a_missing_field_is_named(api) -> None:
    response = await api.http.post("/v1/completions", json={"model": api.model})
    api.assert_error(response, 400, param="prompt", code="missing_parameter")


@pytest.mark.parametrize("request_name", ["completion", "chat"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a12_an_unknown_model_is_a_404(api, engine, request_name, stream) -> None:
    response = await getattr(api, request_name)(model="does-not-exist", stream=stream)
    message = api.assert_error(response, 404, param="model", code="model_not_found")
    assert "does-not-exist" in message
    assert engine.requests == []


async def test_an_error_about_a_long_field_name_stays_short(api) -> None:
    response = await api.completion(**{"x" * 5000: 1})
    assert response.status_code == 400
    assert len(response.text) < 500


def nested(levels: int, bottom: str = "1") -> str:
    return '{"a":' * levels + bottom + "}" * levels


@pytest.mark.parametrize("levels", [241, 300, 1000])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", '{{"model":"{model}","prompt":"hi","x":{deep}}}'),
        (
            "/v1/chat/completions",
            '{{"model":"{model}","messages":[{{"role":"user","content":"hi"}}],"tools":'
            '[{{"type":"function","function":{{"name":"f","parameters":{deep}}}}}]}}',
        ),
        (
            "/v1/responses",
            '{{"model":"{model}","input":"hi","tools":[{{"type":"function","name":"f","parameters":{deep}}}]}}',
        ),
        ("/tokenize", '{{"messages":[{{"role":"user","content":"hi"}}],"chat_template_kwargs":{deep}}}'),
    ],
)
async def test_a_body_that_is_nested_deeper_than_answers_can_show_is_refused(api, engine, path, body, levels) -> None:
    content = body.format(model=api.model, deep=nested(levels))
    message = api.assert_error(await api.http.post(path, content=content), 400, code="invalid_json")
    assert "240 levels" in message
    assert engine.requests == []


def test_arguments_of_an_earlier_call_that_are_nested_too_deep_are_text_to_the_template() -> None:
    function = {"name": "f", "arguments": nested(400)}
    call = {"id": "a", "type": "function", "function": function}
    message = AssistantMessage.model_validate({"role": "assistant", "tool_calls": [call]})
    assert message.template_fields()["tool_calls"] == [call]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_that_is_nested_as_deep_as_may_be_is_shown_again(api, engine, stream) -> None:
    engine.answer("ok", FinishReason.STOP)
    deep = nested(MAX_DEPTH - 4, "{}")
    tool = f'{{"type":"function","name":"f","parameters":{deep}}}'
    body = (
        f'{{"model":"{api.model}","input":"hi","tool_choice":"none","stream":{str(stream).lower()},"tools":[{tool}]}}'
    )
    response = await api.http.post("/v1/responses", content=body)
    assert response.status_code == 200, response.text
    assert f'"parameters":{deep}' in response.text


async def test_what_a_client_sent_is_shown_in_part_only(api, engine) -> None:
    message = api.assert_error(await api.completion(model="m" * 5000), 404, param="model", code="model_not_found")
    assert len(message) < 400
    message = api.assert_error(await api.completion(**{"": 1}), 400, code="unknown_parameter")
    assert message == "unknown parameter: ''"
    assert engine.requests == []
