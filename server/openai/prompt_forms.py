"""The prompt of a completion, in any of the four forms that the API allows."""

from __future__ import annotations

from typing import Any

MAX_PROMPTS = 1024
PROMPT_FORMS = "must be a string, a list of strings, a list of token ids, or a list of lists of token ids"

Prompt = str | list[int]
PromptForms = str | list[str] | list[int] | list[list[int]]


def read_token_ids(value: list[Any]) -> list[int]:
    """Token ids, of which there is at least one."""
    if any(type(token_id) is not int for token_id in value):
        raise ValueError(f"{PROMPT_FORMS}; not a mixture")
    if min(value) < 0:
        raise ValueError(f"token ids are not negative, but {min(value)} is")
    return value


def read_prompts(value: object) -> tuple[Prompt, ...]:
    """One prompt per choice, from any of the four forms the API allows."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise ValueError(PROMPT_FORMS)
    if not value or any(isinstance(item, (str, list)) and not item for item in value):
        raise ValueError("must not be empty")
    if all(isinstance(item, str) for item in value):
        prompts: tuple[Prompt, ...] = tuple(value)
    elif all(isinstance(item, list) for item in value):
        prompts = tuple(read_token_ids(item) for item in value)
    else:
        prompts = (read_token_ids(value),)
    if len(prompts) > MAX_PROMPTS:
        raise ValueError(f"at most {MAX_PROMPTS} prompts in one request, not {len(prompts)}")
    return prompts
