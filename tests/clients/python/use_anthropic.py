"""The anthropic package against a server."""

from __future__ import annotations

import json
import os

import anthropic

EXPECTED = json.loads(os.environ["OCTAVO_EXPECTED"])
MODEL = os.environ["OCTAVO_MODEL"]
HELLO = [{"role": "user", "content": "Hello"}]
ASKED = {"model": MODEL, "messages": HELLO, "max_tokens": 16, "extra_body": {"temperature": 0}}
WHERE = {"base_url": os.environ["OCTAVO_URL"].removesuffix("/v1"), "max_retries": 0}

client = anthropic.Anthropic(**WHERE, api_key=os.environ["OCTAVO_KEY"])
plain = client.messages.create(**ASKED)
assert [(block.type, block.text) for block in plain.content] == [("text", EXPECTED["chat"])]
assert (plain.stop_reason, plain.usage.output_tokens) == ("max_tokens", 16)

with client.messages.stream(**ASKED) as stream:
    assert "".join(stream.text_stream) == EXPECTED["chat"]
    final = stream.get_final_message()
assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 16)

counted = client.messages.count_tokens(model=MODEL, messages=HELLO)
assert counted.input_tokens == plain.usage.input_tokens + plain.usage.cache_read_input_tokens

bearer = anthropic.Anthropic(**WHERE, auth_token=os.environ["OCTAVO_KEY"], api_key=None)
assert bearer.messages.create(**ASKED).content == plain.content

schema = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["red", "green"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
tools = [{"name": "paint", "description": "Paints.", "input_schema": schema}]
longer = {**ASKED, "max_tokens": 1200, "tools": tools}
called = client.messages.create(**longer, tool_choice={"type": "any", "disable_parallel_tool_use": True})
assert called.stop_reason == "tool_use"
[call] = called.content
assert call.type == "tool_use"
assert call.input["colour"] in ("red", "green")
with client.messages.stream(**longer, tool_choice={"type": "tool", "name": "paint"}) as stream:
    [streamed] = stream.get_final_message().content
assert (streamed.name, streamed.input) == (call.name, call.input)
result = {"type": "tool_result", "tool_use_id": call.id, "content": "done"}
answered = [*HELLO, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
assert client.messages.create(**{**longer, "messages": answered}).content[0].type == "text"


def raised(client: anthropic.Anthropic, **fields: object) -> Exception:
    try:
        client.messages.create(**{**ASKED, **fields})
    except Exception as error:
        return error
    raise AssertionError(f"{fields} raised nothing")


assert isinstance(raised(client, model="other"), anthropic.NotFoundError)
assert isinstance(raised(client, max_tokens=5000), anthropic.BadRequestError)
assert isinstance(raised(client, thinking={"type": "enabled", "budget_tokens": 2048}), anthropic.BadRequestError)
assert isinstance(raised(anthropic.Anthropic(**WHERE, api_key="wrong")), anthropic.AuthenticationError)
print("ok")
