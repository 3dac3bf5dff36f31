"""Which tokenizer and chat template a checkpoint gets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from models.checkpoint import CheckpointFormat, resolve_checkpoint
from server.text.chat_template import PLAIN_TRANSCRIPT
from server.text.errors import ChatTemplateError, TokenizerError
from server.text_parts import load_text_parts


@pytest.fixture
def directory(tiny_llama_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_llama_dir, tmp_path / "model"))


def test_a_directory_without_a_template_gets_none(directory: Path) -> None:
    parts = load_text_parts(resolve_checkpoint(str(directory)), None)
    assert parts.tokenizer.decode(parts.tokenizer.encode("Hello world")) == "Hello world"
    assert parts.chat_template is None


def test_a_directorys_own_template_is_used_and_the_users_wins(directory: Path) -> None:
    config = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": "own"}))
    checkpoint = resolve_checkpoint(str(directory))
    own = load_text_parts(checkpoint, None).chat_template
    users = load_text_parts(checkpoint, "{{ 'users' }}").chat_template
    assert own is not None
    assert users is not None
    assert (own.source, users.source) == ("own", "{{ 'users' }}")


def test_a_template_for_tools_is_used_for_them_where_there_is_one(directory: Path) -> None:
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text())
    sources = {"default": "own", "tool_use": "tools"}
    entries = [{"name": name, "template": template} for name, template in sources.items()]
    path.write_text(json.dumps(config | {"chat_template": entries}))
    parts = load_text_parts(resolve_checkpoint(str(directory)), None)
    assert parts.chat_template is not None
    assert parts.tool_use_template is not None
    assert (parts.chat_template.source, parts.tool_use_template.source) == ("own", "tools")


@pytest.mark.slow
def test_only_the_demo_model_gets_the_plain_transcript_by_itself(default_gguf: Path) -> None:
    demo = load_text_parts(resolve_checkpoint(None), None).chat_template
    same_file = load_text_parts(resolve_checkpoint(str(default_gguf)), None).chat_template
    assert demo is not None
    assert demo.source == PLAIN_TRANSCRIPT
    assert demo.stops
    assert same_file is None


def test_what_cannot_be_loaded_is_an_error_with_a_sentence(directory: Path) -> None:
    checkpoint = resolve_checkpoint(str(directory))
    assert checkpoint.format is CheckpointFormat.SAFETENSORS
    with pytest.raises(ChatTemplateError):
        load_text_parts(checkpoint, "/no/such/file.jinja")
    (directory / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError):
        load_text_parts(checkpoint, None)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (
            "{{ m",
            "The chat template is wrong in line 1: unexpected end of template, expected 'end of print statement'. ",
        ),
        ([{"name": "rag", "template": "x"}], 'None of the model\'s chat templates is named "default". '),
    ],
)
def test_a_models_own_template_that_cannot_be_used_says_whose_it_is_and_how_to_give_another(
    directory: Path, template: object, words: str
) -> None:
    config = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    checkpoint = resolve_checkpoint(str(directory))
    with pytest.raises(ChatTemplateError) as refused:
        load_text_parts(checkpoint, None)
    assert str(refused.value) == f"{directory}: {words}Another can be given with --chat-template."
    assert load_text_parts(checkpoint, "{{ 'users' }}").chat_template is not None
