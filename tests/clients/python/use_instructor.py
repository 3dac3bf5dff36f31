"""Instructor against a server: answers that are objects of a class, by a tool and by a JSON schema."""

from __future__ import annotations

import os
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel, ConfigDict


class Verdict(BaseModel):
    """What to do. Nothing else may be in it: a random model would go on for ever."""

    model_config = ConfigDict(extra="forbid")

    colour: Literal["red", "green"]
    sure: bool


client = OpenAI(base_url=os.environ["OCTAVO_URL"], api_key=os.environ["OCTAVO_KEY"], max_retries=0)
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    verdict = instructor.from_openai(client, mode=mode).chat.completions.create(
        model=os.environ["OCTAVO_MODEL"],
        messages=[{"role": "user", "content": "Hello"}],
        response_model=Verdict,
        max_retries=0,
        temperature=0,
        max_tokens=1200,
    )
    assert isinstance(verdict, Verdict)
print("ok")
