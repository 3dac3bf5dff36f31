"""The tools that a chat offers to the model, and which of them it must call, as they come in.

Knows the wire format. Functions are the only tools: what else a client may name needs a server that runs it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from server.openai.body import Body

MAX_TOOLS = 128
TOOL_NAME = re.compile(r"[a-zA-Z0-9_.:-]{1,64}", re.ASCII)


def _check_name(name: str) -> str:
    if not TOOL_NAME.fullmatch(name):
        raise ValueError("must be 1 to 64 letters, digits and characters of _ - . :")
    return name


class FunctionDefinition(Body):
    """A function; ``parameters`` is the JSON schema of its arguments, an object."""

    name: Annotated[str, AfterValidator(_check_name)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def arguments_schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments, which are an object also where that goes without saying."""
        return {"type": "object", **(self.parameters or {"properties": {}})}


class ToolDefinition(Body):
    """A tool."""

    type: Literal["function"]
    function: FunctionDefinition

    def template_fields(self) -> dict[str, Any]:
        """The tool as a chat template reads it."""
        function = self.function
        fields: dict[str, Any] = {"name": function.name, "description": function.description or ""}
        fields["parameters"] = function.parameters or function.arguments_schema
        return {"type": "function", "function": fields}


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The one tool that must be called."""

    name: str


Choice = Literal["none", "auto", "required"]
CHOICES: tuple[Choice, ...] = ("none", "auto", "required")
ToolChoice = Choice | NamedTool


def read_tool_choice(value: object) -> ToolChoice | None:
    """``"none"``, ``"auto"``, ``"required"``, or the object that names a function."""
    if value is None:
        return None
    for word in CHOICES:
        if value == word:
            return word
    if not isinstance(value, dict) or value.keys() != {"type", "function"} or value["type"] != "function":
        raise ValueError('must be "none", "auto", "required" or {"type": "function", "function": {"name": "..."}}')
    function = value["function"]
    if not isinstance(function, dict) or function.keys() != {"name"} or not isinstance(function["name"], str):
        raise ValueError('its function has the field "name", a string, and no other')
    return NamedTool(function["name"])
