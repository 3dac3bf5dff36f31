"""The demo model's vocabulary, compiled once, and small vocabularies of either kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from models.gguf_file import GGUFFile
from server.text.token_spelling import BYTE_LEVEL_ALPHABET
from server.text.tokenizer import Tokenizer
from tests.server.text.hf_directories import WITHOUT_BOS, Directories
from tests.server.text.multilingual_corpus import corpus as corpus_lines
from tests.transformers_process import TransformersProcess

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


@pytest.fixture(scope="session")
def default_metadata(default_gguf: Path) -> Mapping[str, object]:
    return GGUFFile(default_gguf).metadata


@pytest.fixture(scope="session")
def default_tokenizer(default_metadata: Mapping[str, object], tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_gguf(default_metadata, cache_directory=tmp_path_factory.mktemp("tokenizers"))


@pytest.fixture(scope="session")
def corpus() -> list[str]:
    """2,000 lines in many scripts."""
    return corpus_lines()


@pytest.fixture(scope="session")
def hf_directories(corpus: list[str], tmp_path_factory: pytest.TempPathFactory) -> Directories:
    """A vocabulary of each kind, trained on the corpus."""
    return Directories(tmp_path_factory.mktemp("vocabularies"), corpus)


@pytest.fixture(scope="session")
def reference_ids(
    hf_directories: Directories, corpus: list[str], transformers: TransformersProcess
) -> Mapping[str, list[list[int]]]:
    """The ids of all lines by transformers, by the directory's name."""
    return {
        name: transformers.ask(
            "token ids", directory=str(path), lines=corpus, add_special_tokens=name not in WITHOUT_BOS
        )
        for name, path in hf_directories.paths.items()
    }


@pytest.fixture(scope="session")
def merge_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for derived merges."""
    return tmp_path_factory.mktemp("merges")


@pytest.fixture
def sentencepiece_metadata() -> dict[str, object]:
    """Control tokens 0-2, a user-defined chat mark, all bytes, and a handful of scored pieces."""
    pieces = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL), ("<|user|>", 0.0, USER_DEFINED)]
    pieces += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    scored = ["he", "ll", "hell", "hello", "\u2581hello", "\u2581w", "or", "\u2581", "h", "e", "l", "o", "w", "r"]
    pieces += [(piece, -float(rank), NORMAL) for rank, piece in enumerate(scored)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [piece for piece, _, _ in pieces],
        "tokenizer.ggml.scores": [score for _, score, _ in pieces],
        "tokenizer.ggml.token_type": [kind for _, _, kind in pieces],
    }


@pytest.fixture
def byte_level_metadata() -> dict[str, object]:
    """One token for each byte, a few merges, one control token and one user-defined token."""
    tokens = list(BYTE_LEVEL_ALPHABET)
    merges = ["h e", "l l", "he ll", "hell o", "\u0120 hello", "1 2", "12 3", "\u0120 \u0120", "! !"]
    tokens += [merge.replace(" ", "") for merge in merges]
    tokens += ["<|end|>", "<naïf>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL] * (len(tokens) - 2) + [CONTROL, USER_DEFINED],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": len(tokens) - 2,
    }
