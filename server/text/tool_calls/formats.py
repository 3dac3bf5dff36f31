"""ToolCallFormat: the ways of writing tool calls that Octavo reads, and which of them a model was taught.

A model's chat template shows how its calls are written, because it writes earlier ones that way.
"""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from server.text.tool_calls import hermes, llama, mistral, pythonic
from server.text.tool_calls.hermes import HermesParser
from server.text.tool_calls.llama import LlamaParser
from server.text.tool_calls.mistral import MistralParser
from server.text.tool_calls.parser import ToolCallParser, ToolOffer
from server.text.tool_calls.plain_json import PlainJsonParser
from server.text.tool_calls.pythonic import PythonicParser

MISTRAL_ID_CHARACTERS: Final = 9  # its templates refuse any other length


def _make_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _make_mistral_id() -> str:
    alphabet = string.ascii_letters + string.digits
    return "".join(secrets.choice(alphabet) for _ in range(MISTRAL_ID_CHARACTERS))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFrame:
    """What stands around calls ``{"name": ..., "arguments": ...}`` where nothing but calls is written.

    ``begin`` and ``end`` around each; ``before`` and ``after`` around them all and ``separator`` between two, where
    there may be several.
    """

    begin: str = ""
    end: str = ""
    separator: str
    before: str = ""
    after: str = ""


JSON_ARRAY: Final = CallFrame(before="[", separator=", ", after="]")


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """One way of writing calls. ``markers`` must be seen by the parser, also where they are control tokens.

    ``frame``: how a model can be made to write so; None where it is made to write `PLAIN_JSON` instead.
    """

    name: str
    parser: Callable[[ToolOffer], ToolCallParser]
    markers: tuple[str, ...] = ()
    make_id: Callable[[], str] = _make_id
    frame: CallFrame | None = None


HERMES: Final = ToolCallFormat(
    "hermes",
    HermesParser,
    (hermes.CALL, hermes.CALL_END),
    frame=CallFrame(begin=f"{hermes.CALL}\n", end=f"\n{hermes.CALL_END}", separator="\n"),
)
LLAMA: Final = ToolCallFormat("llama3_json", LlamaParser, (llama.CALL,))
MISTRAL: Final = ToolCallFormat(
    "mistral", MistralParser, (mistral.CALL, mistral.ARGUMENTS, mistral.CALL_ID), _make_mistral_id
)
PYTHONIC: Final = ToolCallFormat("pythonic", PythonicParser, (pythonic.BEGIN, pythonic.END))
PLAIN_JSON: Final = ToolCallFormat("json", PlainJsonParser, frame=JSON_ARRAY)

FORMATS: Final[Mapping[str, ToolCallFormat]] = {one.name: one for one in (HERMES, LLAMA, MISTRAL, PYTHONIC, PLAIN_JSON)}

_KNOWS_TOOLS: Final = re.compile(r"\btools\b")
_LLAMA_OBJECT: Final = re.compile(r'\{\\?["\']name\\?["\']:.{0,60}\\?["\']parameters\\?["\']', re.DOTALL)
_PYTHONIC_LIST: Final = re.compile(r"\[\w+\(\w+=")


def knows_tools(template: str) -> bool:
    """Whether a chat template shows tools to the model."""
    return _KNOWS_TOOLS.search(template) is not None


def detect_format(template: str) -> ToolCallFormat | None:
    """The format that a chat template writes calls in: plain JSON where it knows no tools, None for an unknown one."""
    if not knows_tools(template):
        return PLAIN_JSON
    if mistral.CALL in template:
        return MISTRAL
    if hermes.CALL in template:
        return None if "<function=" in template else HERMES
    if pythonic.BEGIN in template or _PYTHONIC_LIST.search(template):
        return PYTHONIC
    if llama.CALL in template or _LLAMA_OBJECT.search(template):
        return LLAMA
    return None
