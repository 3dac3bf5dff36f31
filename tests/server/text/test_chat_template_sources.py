from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from server.text.chat_template import ChatTemplates
from server.text.chat_template_sources import templates_from_directory, templates_from_gguf, templates_from_option
from server.text.errors import ChatTemplateError, TokenizerError


def source(templates: ChatTemplates | None, *, with_tools: bool = False) -> str:
    assert templates is not None
    return templates.select(with_tools=with_tools).source


def test_option_names_a_file_a_template_or_the_plain_transcript(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("file {{ messages }}")
    assert source(templates_from_option(str(path))) == "file {{ messages }}"
    assert source(templates_from_option("{{ messages }}")) == "{{ messages }}"
    plain = templates_from_option("plain-transcript").select()
    assert "\nUser:" in plain.stops
    with pytest.raises(ChatTemplateError, match=r"absent\.jinja' cannot be read"):
        templates_from_option(str(tmp_path / "absent.jinja"))


def test_directory_prefers_the_jinja_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "config"}))
    assert source(templates_from_directory(tmp_path)) == "config"
    (tmp_path / "chat_template.jinja").write_text("jinja")
    assert source(templates_from_directory(tmp_path)) == "jinja"


def test_directory_reads_a_list_of_named_templates(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    templates = templates_from_directory(tmp_path)
    assert source(templates) == "d"
    assert source(templates, with_tools=True) == "t"


def test_directory_without_other_templates_reads_the_json_file(tmp_path: Path) -> None:
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert source(templates_from_directory(tmp_path)) == "json"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "config"}))
    assert source(templates_from_directory(tmp_path)) == "config"


@pytest.mark.parametrize("folder", ["additional_chat_templates", "chat_templates"])
def test_folder_adds_templates_by_name(tmp_path: Path, folder: str) -> None:
    (tmp_path / "chat_template.jinja").write_text("jinja")
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "tool_use.jinja").write_text("with tools")
    (tmp_path / folder / "notes.txt").write_text("{% no template")
    templates = templates_from_directory(tmp_path)
    assert source(templates) == "jinja"
    assert source(templates, with_tools=True) == "with tools"


def test_folder_without_a_default_template_is_refused(tmp_path: Path) -> None:
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    with pytest.raises(ChatTemplateError, match='is named "default"'):
        templates_from_directory(tmp_path)


def test_e01_model_without_a_template_has_none(tmp_path: Path, default_metadata: Mapping[str, object]) -> None:
    assert templates_from_directory(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert templates_from_directory(tmp_path) is None
    assert templates_from_gguf(default_metadata) is None


@pytest.mark.parametrize("entry", [7, ["x"], [{"name": "default"}], [{"name": "default", "template": 7}]])
def test_template_entry_of_a_wrong_shape_is_refused(tmp_path: Path, entry: object) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": entry}))
    with pytest.raises(ChatTemplateError, match="neither a text nor a list"):
        templates_from_directory(tmp_path)


def test_broken_configuration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(TokenizerError, match="cannot be read"):
        templates_from_directory(tmp_path)


def test_gguf_metadata_holds_a_default_and_named_templates() -> None:
    templates = templates_from_gguf(
        {
            "general.name": "x",
            "tokenizer.chat_template": "d",
            "tokenizer.chat_template.tool_use": "t",
            "tokenizer.chat_templates": ["tool_use"],
        }
    )
    assert source(templates) == "d"
    assert source(templates, with_tools=True) == "t"
