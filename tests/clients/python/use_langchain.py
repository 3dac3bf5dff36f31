"""langchain-openai against a server."""

from __future__ import annotations

import json
import os
from typing import Literal

import openai
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, ConfigDict


class Verdict(BaseModel):
    """What to do. Nothing else may be in it: a random model would go on for ever."""

    model_config = ConfigDict(extra="forbid")

    colour: Literal["red", "green"]
    sure: bool


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

longer = ChatOpenAI(**WHERE, temperature=0, max_tokens=1200)
for method in ("function_calling", "json_schema"):
    assert isinstance(longer.with_structured_output(Verdict, method=method).invoke("Hello"), Verdict)
[call] = longer.bind_tools([Verdict], tool_choice="required", parallel_tool_calls=False).invoke("Hello").tool_calls
assert (call["name"], set(call["args"])) == ("Verdict", {"colour", "sure"})
streamed = longer.bind_tools([Verdict], tool_choice="required", parallel_tool_calls=False).stream("Hello")
gathered = next(streamed)
for chunk in streamed:
    gathered += chunk
assert gathered.tool_calls[0]["args"] == call["args"]

# without the check it sends texts; with it, ids of another vocabulary
embeddings = OpenAIEmbeddings(**WHERE, check_embedding_ctx_length=False)
first, other = embeddings.embed_documents(["Hello", "Hello world"])
assert first == embeddings.embed_query("Hello") != other

try:
    ChatOpenAI(**{**WHERE, "api_key": "wrong"}).invoke("Hello")
except openai.AuthenticationError:
    pass
else:
    raise AssertionError("a wrong key raised nothing")
print("ok")
