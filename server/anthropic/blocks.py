"""Blocks: what a message consists of in Anthropic's API, as they come in.

Caching marks (``cache_control``) pass: prompts are cached without being asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainValidator

from server.errors import bad_request
from server.openai.body import Body, NeutralValues, validate_body

PARAGRAPH = "\n\n"  # between the texts of neighbouring blocks


class CacheControl(Body):
    """Where a client would have its prompt cached, and for how long."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Block(Body):
    """What all blocks may have."""

    NEUTRAL: ClassVar[NeutralValues] = {"citations": ([],), "caller": ({"type": "direct"},)}

    cache_control: CacheControl | None = None


class TextBlock(Block):
    type: Literal["text"]
    text: str


class ThinkingBlock(Block):
    """What the assistant thought in an earlier turn. Nothing is signed here, so that no signature is checked."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class ToolUseBlock(Block):
    """A call of a tool by the assistant in an earlier turn."""

    type: Literal["tool_use"]
    id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    input: dict[str, Any]


def read_text(value: object) -> str:
    """A text, or text blocks as its paragraphs."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(block, dict) for block in value):
        raise ValueError("must be a string or a list of text blocks")
    texts = []
    for block in value:
        if block.get("type") != "text":
            raise ValueError(f"unsupported block type {str(block.get('type'))[:40]!r}: this server reads text only")
        surplus = block.keys() - {"type", "text", "cache_control", "citations"}
        if surplus or block.get("citations") or not isinstance(block.get("text"), str):
            raise ValueError('a text block has a "text", which is a string, and no other field but "cache_control"')
        texts.append(block["text"])
    return PARAGRAPH.join(texts)


class ToolResultBlock(Block):
    """What the client's tool returned; ``content`` is its text."""

    type: Literal["tool_result"]
    tool_use_id: str = Field(min_length=1)
    content: Annotated[str, PlainValidator(read_text, str | list[dict[str, Any]])] = ""
    is_error: bool | None = None

    @property
    def shown(self) -> str:
        """What the model reads: a chat has no other place for an error than the text."""
        return f"Error: {self.content}" if self.is_error else self.content


UserBlock = TextBlock | ToolResultBlock
AssistantBlock = TextBlock | ThinkingBlock | ToolUseBlock
KINDS: Mapping[str, Mapping[str, type[UserBlock | AssistantBlock]]] = {
    "user": {"text": TextBlock, "tool_result": ToolResultBlock},
    "assistant": {"text": TextBlock, "thinking": ThinkingBlock, "tool_use": ToolUseBlock},
}


def read_blocks(role: str, content: str | list[Any], at: str) -> list[UserBlock | AssistantBlock]:
    """The blocks of a message of this role, which is at ``at`` in the request; ApiError 400 for a wrong one."""
    if isinstance(content, str):
        return [TextBlock(type="text", text=content)]
    kinds = KINDS[role]
    blocks = []
    for index, fields in enumerate(content):
        place = f"{at}.content[{index}]"
        kind = fields.get("type") if isinstance(fields, dict) else None
        if not isinstance(kind, str) or kind not in kinds:
            message = f"{place}.type: unsupported block type {str(kind)[:40]!r} in a message of the {role}"
            raise bad_request(f"{message}; this server knows {', '.join(kinds)}", f"{place}.type")
        blocks.append(validate_body(kinds[kind], fields, place))
    return blocks
