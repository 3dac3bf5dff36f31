"""Every kind of vocabulary in a model directory gives the ids that transformers gives, on 2,000 lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from server.text.tokenizer import Tokenizer
from tests.server.text.hf_directories import NAMES, WITHOUT_BOS, Directories


def load(directories: Directories, name: str, cache: Path) -> Tokenizer:
    return Tokenizer.from_directory(directories.paths[name], cache_directory=cache)


@pytest.mark.parametrize("name", NAMES)
def test_directory_gives_the_ids_that_transformers_gives(
    hf_directories: Directories,
    corpus: list[str],
    reference_ids: Mapping[str, list[list[int]]],
    merge_cache: Path,
    name: str,
) -> None:
    tokenizer = load(hf_directories, name, merge_cache)
    add_special_tokens = name not in WITHOUT_BOS
    for line, expected in zip(corpus, reference_ids[name], strict=True):
        assert tokenizer.encode(line, add_special_tokens=add_special_tokens) == expected, repr(line)


COMPOSING = {
    *("qwen2", "vocab.json of Qwen 2"),
    *("unigram", "unigram with bytes", "tokenizer.model, Unigram"),
}
"""These write some characters in another form."""


@pytest.mark.parametrize("name", [name for name in NAMES if name not in COMPOSING])
def test_ids_decode_to_the_line_they_came_from(
    hf_directories: Directories, corpus: list[str], merge_cache: Path, name: str
) -> None:
    tokenizer = load(hf_directories, name, merge_cache)
    # Vocabularies that add a space to a text lose one where tokens part it, and U+2581 is how they write it.
    plain = [line for line in corpus if line[0] != " " and not any(map(line.__contains__, ["<", "INST", "\u2581"]))]
    assert len(plain) > 1500
    for line in plain:
        assert tokenizer.decode(tokenizer.encode(line)) == line


def test_directory_without_added_tokens_decoder_reads_the_older_files(
    hf_directories: Directories, merge_cache: Path
) -> None:
    tokenizer = load(hf_directories, "vocab.json with the older files", merge_cache)
    start, end = tokenizer.token_id("<|im_start|>"), tokenizer.token_id("<|im_end|>")
    assert start is not None
    assert end == start + 1
    assert tokenizer.encode("<|im_start|><|im_end|>") == [start, end]
    assert tokenizer.bos_token_id == start
    assert tokenizer.special_tokens["eos_token"] == "<|endoftext|>"
    assert (tokenizer.is_special(start), tokenizer.is_special(end)) == (True, False)
