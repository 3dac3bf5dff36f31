"""Where a model's chat templates come from: the operator, the model's directory, or its GGUF metadata.

Knows where to look, not what a template means. A model without any yields None: whether chat is then refused or served
with the plain transcript is for the caller to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from server.text.chat_template import ChatTemplate, ChatTemplates
from server.text.errors import ChatTemplateError
from server.text.tokenizer_config import read_json

PLAIN_TRANSCRIPT_NAME: Final = "plain-transcript"

_FOLDERS: Final = ("additional_chat_templates", "chat_templates")


def templates_from_option(option: str) -> ChatTemplates:
    """The template that ``--chat-template`` names: a file, a template in place, or ``plain-transcript``.

    Raises ChatTemplateError if it is none of these.
    """
    if option == PLAIN_TRANSCRIPT_NAME:
        return ChatTemplates({"default": ChatTemplate.plain_transcript()})
    if "{%" in option or "{{" in option:
        return _only(option)
    return _only(_read(Path(option)))


def templates_from_directory(directory: Path) -> ChatTemplates | None:
    """The templates in a model directory.

    ``chat_template.jinja`` comes before what ``tokenizer_config.json`` holds, a text or a list of ``{"name",
    "template"}``, and that before ``chat_template.json``. Files below ``additional_chat_templates`` add templates of
    their names. Raises ChatTemplateError if one does not compile and TokenizerError if a JSON file is broken.
    """
    sources = _main_sources(directory)
    for folder in _FOLDERS:
        sources.update({path.stem: _read(path) for path in sorted((directory / folder).glob("*.jinja"))})
    return ChatTemplates({name: ChatTemplate(source) for name, source in sources.items()}) if sources else None


def _main_sources(directory: Path) -> dict[str, str]:
    path = directory / "chat_template.jinja"
    if path.is_file():
        return {"default": _read(path)}
    for name in ("tokenizer_config.json", "chat_template.json"):
        entry = read_json(directory / name).get("chat_template")
        if isinstance(entry, str):
            return {"default": entry}
        if entry is not None:
            return dict(_named(entry, name))
    return {}


def templates_from_gguf(metadata: Mapping[str, object]) -> ChatTemplates | None:
    """The templates in GGUF metadata: ``tokenizer.chat_template`` and its named companions.

    Raises ChatTemplateError if one does not compile.
    """
    prefix = "tokenizer.chat_template"
    default = metadata.get(prefix)
    if not isinstance(default, str):
        return None
    named = {
        key.removeprefix(prefix + "."): source
        for key in metadata  # values are not asked for in vain: a vocabulary among them takes long to decode
        if key.startswith(prefix + ".") and isinstance(source := metadata[key], str)
    }
    return ChatTemplates({name: ChatTemplate(source) for name, source in {**named, "default": default}.items()})


def _named(entry: object, file_name: str) -> list[tuple[str, str]]:
    """The names and sources in a list of ``{"name", "template"}``."""
    named = [
        (item["name"], item["template"])
        for item in (entry if isinstance(entry, list) else [])
        if isinstance(item, dict) and isinstance(item.get("name"), str) and isinstance(item.get("template"), str)
    ]
    if isinstance(entry, list) and len(named) == len(entry):
        return named
    raise ChatTemplateError(f'The chat_template in {file_name} is neither a text nor a list of {{"name", "template"}}.')


def _only(source: str) -> ChatTemplates:
    return ChatTemplates({"default": ChatTemplate(source)})


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ChatTemplateError(f"The chat template {str(path)!r} cannot be read: {error}.") from error
