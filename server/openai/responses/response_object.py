"""ResponseObject: one response as the API shows it, while it is made and when it is over.

Knows what was asked; what was answered is handed to it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from server.errors import ApiError
from server.generation.generation_group import Usage
from server.openai.chat_body import ChatBody
from server.openai.responses.items import Item
from server.openai.responses.response_body import FunctionChoice, ResponseBody

LENGTH = "length"  # the finish reason of an answer that was cut
RATE_LIMITED = 429
OF_CLIENT = ("prompt_cache_key", "safety_identifier", "user")  # shown where the client gave them


@dataclass(frozen=True, slots=True)
class ResponseObject:
    """``chat`` is what ``body`` asks for; ``created`` is in seconds since 1970."""

    id: str
    created: int
    model: str
    body: ResponseBody
    chat: ChatBody

    def in_progress(self) -> dict[str, Any]:
        return self._shown("in_progress", [])

    def ended(self, finish_reason: str, output: Sequence[Item], usage: Usage) -> dict[str, Any]:
        """The whole response: completed, or incomplete where it was cut."""
        cut = finish_reason == LENGTH
        shown = self._shown("incomplete" if cut else "completed", [item.shown() for item in output])
        if cut:
            shown["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            shown["completed_at"] = int(time.time())
        return shown | {"usage": response_usage(usage)}

    def failed(self, error: ApiError, output: Sequence[Item]) -> dict[str, Any]:
        """A response that ended without a result, after its first event was sent."""
        code = "rate_limit_exceeded" if error.status == RATE_LIMITED else "server_error"
        shown = self._shown("failed", [item.shown() for item in output])
        return shown | {"error": {"code": code, "message": error.message}}

    def _shown(self, status: str, output: list[dict[str, object]]) -> dict[str, Any]:
        body, chat = self.body, self.chat
        choice = body.tool_choice
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": False,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": None,
            "metadata": body.metadata or {},
            "model": self.model,
            "output": output,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": None if body.reasoning is None else body.reasoning.effort, "summary": None},
            "service_tier": "default",
            "store": body.is_stored,
            "temperature": 1.0 if chat.temperature is None else chat.temperature,
            "text": {"format": self._format()},
            "tool_choice": choice.model_dump() if isinstance(choice, FunctionChoice) else choice or "auto",
            "tools": [tool.model_dump() for tool in body.tools or []],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": 1.0 if chat.top_p is None else chat.top_p,
            "truncation": "disabled",
            "usage": None,
            **{name: value for name in OF_CLIENT if (value := getattr(body, name)) is not None},
        }

    def _format(self) -> dict[str, Any]:
        if self.body.text is None or self.body.text.format is None:
            return {"type": "text"}
        return self.body.text.format.model_dump(by_alias=True, exclude_none=True)


def response_usage(usage: Usage) -> dict[str, object]:
    """The API's usage object. Thoughts count as output, and apart where the model marks them."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
