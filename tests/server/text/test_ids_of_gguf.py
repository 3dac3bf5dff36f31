"""Every kind of vocabulary in a GGUF file gives the ids of its reference, on 2,000 lines.

For SentencePiece that is the sentencepiece library; for byte-level kinds it is transformers, with a tokenizer.json that
describes the same vocabulary in its own words.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from server.text.split_rules import GGUF_RULES
from server.text.tokenizer import Tokenizer
from tests.server.text.gguf_vocabularies import byte_level_metadata, pieces_of, sentencepiece_metadata
from tests.server.text.hf_directories import Directories
from tests.server.text.oracle_process import answers_of
from tests.server.text.tokenizer_kinds import BYTE_LEVEL_KINDS

Ids = Mapping[str, list[list[int]]]


def sentencepiece_ids(path: Path, lines: list[str]) -> list[list[int]]:
    answer: list[list[int]] = answers_of("sentencepiece_oracle.py", [{"encode": lines, "path": str(path)}])[0]
    return answer


def test_demo_model_gives_the_ids_that_sentencepiece_gives(
    default_metadata: Mapping[str, object], default_tokenizer: Tokenizer, corpus: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.model"
    answers_of(
        "sentencepiece_oracle.py", [{"build": pieces_of(default_metadata), "adds_space": False, "path": str(path)}]
    )
    for line, expected in zip(corpus, sentencepiece_ids(path, corpus), strict=True):
        ids = default_tokenizer.encode(line, add_special_tokens=False)
        assert ids == expected, repr(line)
        # U+2581 is how the vocabulary writes a space.
        assert default_tokenizer.decode(ids, skip_special_tokens=False) == line.replace("\u2581", " ")


@pytest.mark.parametrize(
    "name", ["tokenizer.model of Llama 2", "tokenizer.model of Gemma", "tokenizer.model, own pieces"]
)
def test_sentencepiece_bpe_gives_the_ids_that_sentencepiece_gives(
    hf_directories: Directories, corpus: list[str], merge_cache: Path, tmp_path: Path, name: str
) -> None:
    trained = hf_directories.trained[name]
    metadata = sentencepiece_metadata(tmp_path / "model.gguf", trained, "llama")
    tokenizer = Tokenizer.from_gguf(metadata, cache_directory=merge_cache)
    # SentencePiece never reads control tokens from a text.
    plain = [line for line in corpus if "<s>" not in line and "</s>" not in line]
    assert len(plain) > 1900
    for line, expected in zip(plain, sentencepiece_ids(trained.path, plain), strict=True):
        ids = tokenizer.encode(line)
        assert ids == [tokenizer.bos_token_id, *expected], repr(line)
        assert tokenizer.decode(ids) == line.replace("\u2581", " ")


@pytest.mark.parametrize("name", ["tokenizer.model, Unigram", "tokenizer.model, Unigram with bytes"])
def test_sentencepiece_unigram_gives_the_ids_that_transformers_gives(
    hf_directories: Directories, corpus: list[str], reference_ids: Ids, merge_cache: Path, tmp_path: Path, name: str
) -> None:
    metadata = sentencepiece_metadata(tmp_path / "model.gguf", hf_directories.trained[name], "t5")
    tokenizer = Tokenizer.from_gguf(metadata, cache_directory=merge_cache)
    for line, expected in zip(corpus, reference_ids[name], strict=True):
        assert tokenizer.encode(line, add_special_tokens=False) == expected, repr(line)


@pytest.mark.parametrize("pre", BYTE_LEVEL_KINDS)
def test_byte_level_kind_gives_the_ids_that_transformers_gives(
    hf_directories: Directories, corpus: list[str], reference_ids: Ids, merge_cache: Path, tmp_path: Path, pre: str
) -> None:
    metadata = byte_level_metadata(tmp_path / "model.gguf", hf_directories.byte_level, pre)
    tokenizer = Tokenizer.from_gguf(metadata, cache_directory=merge_cache)
    for line, expected in zip(corpus, reference_ids[pre], strict=True):
        assert tokenizer.encode(line) == expected, repr(line)


@pytest.mark.parametrize("pre", {rule: name for name, rule in GGUF_RULES.items() if not rule.composes}.values())
def test_split_rule_loses_no_text(
    hf_directories: Directories, corpus: list[str], merge_cache: Path, tmp_path: Path, pre: str
) -> None:
    metadata = byte_level_metadata(tmp_path / "model.gguf", hf_directories.byte_level, pre)
    tokenizer = Tokenizer.from_gguf(metadata, cache_directory=merge_cache)
    for line in corpus:
        ids = tokenizer.encode(line, add_special_tokens=False)
        assert tokenizer.decode(ids, skip_special_tokens=False) == line


@pytest.mark.parametrize(
    ("pre", "same_as"),
    [
        ("olmo", "gpt-2"),
        ("phi-2", "gpt-2"),
        ("smollm", "starcoder"),
        ("refact", "starcoder"),
        ("command-r", "starcoder"),
        ("llama3", "llama-bpe"),
        ("smaug-bpe", "dbrx"),
        ("deepseek-r1-qwen", "qwen2"),
        ("llama4", "gpt-4o"),
        ("hunyuan-dense", "deepseek-v3"),
        ("poro-chat", "bloom"),
    ],
)
def test_other_names_of_a_split_rule_mean_the_same(pre: str, same_as: str) -> None:
    assert GGUF_RULES[pre] == GGUF_RULES[same_as]
