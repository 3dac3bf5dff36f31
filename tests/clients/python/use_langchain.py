"""langchain-openai against a server."""

from __future__ import annotations

import json
import os

import openai
from langchain_openai import ChatOpenAI, OpenAI

EXPECTED = json.loads(os.environ["OCTAVO_EXPECTED"])
WHERE = {
    "base_url": os.environ["OCTAVO_URL"],
    "api_key": os.environ["OCTAVO_KEY"],
    "model": os.environ["OCTAVO_MODEL"],
    "max_retries": 0,
}
SHORT = {"temperature": 0, "max_tokens": 16}

chat = ChatOpenAI(**WHERE, **SHORT)
assert chat.invoke("Hello").content == EXPECTED["chat"]
chunks = list(chat.stream("Hello", stream_usage=True))
assert "".join(chunk.content for chunk in chunks) == EXPECTED["chat"]
assert any(chunk.usage_metadata for chunk in chunks)

assert OpenAI(**WHERE, **SHORT).invoke("Hello") == EXPECTED["completion"]

responses = ChatOpenAI(**WHERE, **SHORT, use_responses_api=True)
assert responses.invoke("Hello").content[0]["text"] == EXPECTED["chat"]
texts = [block["text"] for chunk in responses.stream("Hello") for block in chunk.content if "text" in block]
assert "".join(texts) == EXPECTED["chat"]

try:
    ChatOpenAI(**{**WHERE, "api_key": "wrong"}).invoke("Hello")
except openai.AuthenticationError:
    pass
else:
    raise AssertionError("a wrong key raised nothing")
print("ok")
