"""Renders a conversation into the prompt text a model was trained on.

A template is a Jinja program that comes with the model or from the operator. It runs in Jinja's immutable sandbox with
the names such templates rely on (``raise_exception``, ``strftime_now``, ``tojson``, loop controls, ``generation``
blocks). Knows nothing of HTTP or token ids; message contents are plain strings by the time they get here.

Bounds: the size of a template, of a rendered prompt, and of all ``range()`` calls and repetitions of one rendering, so
that a careless template fails instead of filling the memory; its steps, which are the rounds of its loops and its
calls, and their time, so that it ends. They do not make a malicious template safe.
"""

from __future__ import annotations

import json
import operator
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from server.text.errors import ChatTemplateError

MAX_TEMPLATE_CHARACTERS: Final = 1 << 20
MAX_PROMPT_CHARACTERS: Final = 16 << 20
MAX_RANGE_ITEMS: Final = 100_000
MAX_STEPS: Final = 2_000_000  # of one rendering
MAX_SECONDS: Final = 5.0  # of one rendering on a processor
STEPS_BETWEEN_LOOKS: Final = 64  # at the clock

OWN_VARIABLES: Final = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "range", "raise_exception", "strftime_now"}
)
"""Names that a rendering sets, whatever variables it is given."""

_BUDGET: Final = "budget of this rendering"  # no name that a template could write

PLAIN_TRANSCRIPT: Final = (Path(__file__).parent / "plain_transcript.jinja").read_text(encoding="utf-8")
"""A template for base models, which have none of their own."""

PLAIN_TRANSCRIPT_STOPS: Final = tuple(
    f"{gap}{speaker}:" for speaker in ("User", "System", "Assistant", "Tool") for gap in ("\n\n", "\n")
)
"""Stop strings that end the assistant's turn when `PLAIN_TRANSCRIPT` made the prompt: the next speaker's line."""


class _GenerationBlocks(jinja2.ext.Extension):
    """``{% generation %}...{% endgeneration %}``, which marks the assistant's words for training, only renders here."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration is an instance attribute

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Budget:
    """What one rendering may still do."""

    def __init__(self) -> None:
        self._steps = MAX_STEPS
        self._deadline = time.thread_time() + MAX_SECONDS
        self._range_items = MAX_RANGE_ITEMS

    def spend_step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise ChatTemplateError(f"The chat template takes more than {MAX_STEPS} steps.")
        if self._steps % STEPS_BETWEEN_LOOKS == 0 and time.thread_time() > self._deadline:
            raise ChatTemplateError(f"The chat template takes more than {MAX_SECONDS:g} seconds.")

    def range(self, *arguments: int) -> range:
        """A ``range`` whose calls share one budget of items."""
        numbers = range(*arguments)
        self._range_items -= len(numbers)
        if self._range_items < 0:
            raise ChatTemplateError(f"The chat template loops over more than {MAX_RANGE_ITEMS} numbers.")
        return numbers


@jinja2.pass_context
def _counted(context: jinja2.runtime.Context, items: Iterable[Any]) -> Iterator[Any]:
    """The items of a loop, each of which is a step."""
    budget: _Budget = context.parent[_BUDGET]
    for item in items:
        budget.spend_step()
        yield item


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox, with bounds on what one multiplication may make, and with its steps counted."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator_name: str, left: Any, right: Any) -> Any:
        if operator_name == "**":
            raise ChatTemplateError("The chat template uses **, which is switched off.")
        for repeated, times in ((left, right), (right, left)):
            if isinstance(repeated, str | list | tuple) and len(repeated) * times > MAX_PROMPT_CHARACTERS:
                raise ChatTemplateError(f"The chat template makes a text of over {MAX_PROMPT_CHARACTERS} characters.")
        return operator.mul(left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        __context.parent[_BUDGET].spend_step()
        return super().call(__context, __obj, *args, **kwargs)

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in template.find_all(jinja2.nodes.For):
            loop.iter = jinja2.nodes.Filter(loop.iter, "counted", [], [], None, None, lineno=loop.lineno)
        template.set_environment(self)
        return template


def _raise_exception(message: object) -> None:
    raise ChatTemplateError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, where Jinja's own filter escapes it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> jinja2.Environment:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationBlocks]
    )
    environment.filters.update(tojson=_tojson, counted=_counted)
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    return environment


_ENVIRONMENT: Final = _environment()


class ChatTemplate:
    """A compiled chat template. Raises ChatTemplateError if ``source`` is too long or does not compile.

    ``stops`` are stop strings that end the assistant's turn where no special token does.
    """

    def __init__(self, source: str, *, stops: Sequence[str] = ()) -> None:
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise ChatTemplateError(
                f"The chat template has {len(source)} characters, over the limit of {MAX_TEMPLATE_CHARACTERS}."
            )
        self.source = source
        self.stops = tuple(stops)
        try:
            self._template = _ENVIRONMENT.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            reason = (error.message or "it cannot be read").rstrip(".")
            raise ChatTemplateError(f"The chat template is wrong in line {error.lineno}: {reason}.") from error

    @cached_property
    def variables(self) -> frozenset[str]:
        """The names that the template reads from whoever renders it."""
        return frozenset(jinja2.meta.find_undeclared_variables(_ENVIRONMENT.parse(self.source)))

    @classmethod
    def plain_transcript(cls) -> ChatTemplate:
        """The bundled template for base models, with the stop strings that go with it."""
        return cls(PLAIN_TRANSCRIPT, stops=PLAIN_TRANSCRIPT_STOPS)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        special_tokens: Mapping[str, str],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text for ``messages``.

        ``special_tokens`` is `Tokenizer.special_tokens`; ``variables`` are further names for this template (OpenAI
        clients send them as ``chat_template_kwargs``) and give way to the others. Raises ChatTemplateError, with the
        template's own words where the template refused the conversation.
        """
        budget = _Budget()
        context: dict[str, Any] = {
            **(variables or {}),
            **special_tokens,
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "range": budget.range,
            _BUDGET: budget,
        }
        parts: list[str] = []
        length = 0
        try:
            for part in self._template.generate(context):
                length += len(part)
                if length > MAX_PROMPT_CHARACTERS:
                    raise ChatTemplateError(f"The rendered prompt is over {MAX_PROMPT_CHARACTERS} characters long.")
                parts.append(part)
        except ChatTemplateError:
            raise
        except Exception as error:  # a template can raise whatever its expressions raise
            raise ChatTemplateError(f"The chat template failed: {error}.") from error
        return "".join(parts)


class ChatTemplates:
    """The templates of one model by name; mostly there is only ``default``."""

    def __init__(self, templates: Mapping[str, ChatTemplate]) -> None:
        if "default" not in templates:
            raise ChatTemplateError('None of the model\'s chat templates is named "default".')
        self._templates = dict(templates)

    def select(self, *, with_tools: bool = False) -> ChatTemplate:
        """The template for a request: ``tool_use`` if it offers tools and the model has such a template."""
        default = self._templates["default"]
        return self._templates.get("tool_use", default) if with_tools else default
