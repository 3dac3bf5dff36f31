"""LiteLLM against a server."""

from __future__ import annotations

import json
import os

import litellm

EXPECTED = json.loads(os.environ["OCTAVO_EXPECTED"])
ASKED = {
    "model": f"openai/{os.environ['OCTAVO_MODEL']}",
    "api_base": os.environ["OCTAVO_URL"],
    "api_key": os.environ["OCTAVO_KEY"],
    "num_retries": 0,
}
HELLO = [{"role": "user", "content": "Hello"}]
SHORT = {"max_tokens": 16, "temperature": 0}

plain = litellm.completion(**ASKED, **SHORT, messages=HELLO)
assert plain.choices[0].message.content == EXPECTED["chat"]
assert plain.choices[0].finish_reason == "length"

chunks = list(litellm.completion(**ASKED, **SHORT, messages=HELLO, stream=True, stream_options={"include_usage": True}))
assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == EXPECTED["chat"]
assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens

text = litellm.text_completion(**{**ASKED, "model": f"text-completion-openai/{os.environ['OCTAVO_MODEL']}"},
                               **SHORT, prompt="Hello")  # fmt: skip
assert text.choices[0].text == EXPECTED["completion"]

made = litellm.responses(**ASKED, input="Hello", max_output_tokens=16, temperature=0)
assert made.output[0].content[0].text == EXPECTED["chat"]
events = list(litellm.responses(**ASKED, input="Hello", max_output_tokens=16, temperature=0, stream=True))
deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
assert "".join(deltas) == EXPECTED["chat"]

parameters = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["red", "green"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
tools = [{"type": "function", "function": {"name": "paint", "parameters": parameters}}]
called = litellm.completion(
    **ASKED,
    messages=HELLO,
    max_tokens=1200,
    temperature=0,
    tools=tools,
    tool_choice="required",
    parallel_tool_calls=False,
).choices[0]
assert called.finish_reason == "tool_calls"
assert json.loads(called.message.tool_calls[0].function.arguments)["colour"] in ("red", "green")

vectors = litellm.embedding(**ASKED, input=["Hello", "Hello world"], encoding_format="float")
assert len(vectors.data) == 2


def raised(**fields: object) -> Exception:
    try:
        litellm.completion(**{**ASKED, "messages": HELLO, **fields})
    except Exception as error:
        return error
    raise AssertionError(f"{fields} raised nothing")


assert isinstance(raised(model="openai/other"), litellm.NotFoundError)
assert isinstance(raised(api_key="wrong"), litellm.AuthenticationError)
assert isinstance(raised(max_tokens=5000), litellm.ContextWindowExceededError)
assert isinstance(raised(extra_body={"no_such_field": 1}), litellm.BadRequestError)
print("ok")
