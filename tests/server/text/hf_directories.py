"""Model directories in Hugging Face layout with a vocabulary of each kind, and nothing else of a model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from server.text.token_spelling import BYTE_LEVEL_ALPHABET
from tests.server.text.tokenizer_kinds import (
    BYTE_LEVEL_KINDS,
    CHAT_TOKENS,
    Bpe,
    byte_level_backend,
    character_backend,
    train_byte_fallback,
    train_byte_level,
    train_sentencepiece,
    unigram_backend,
    write_tekken,
)

LLAMA_OPTIONS = {
    "model_type": "bpe",
    "vocab_size": 1500,
    "byte_fallback": True,
    "character_coverage": 0.9999,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "allow_whitespace_only_pieces": True,
    "split_digits": True,
}
"""How Llama 2's tokenizer.model was trained, but for its size."""

NAMES = (
    *BYTE_LEVEL_KINDS,
    *("llama", "mistral", "gemma", "unigram", "unigram with bytes", "tekken.json"),
    *("vocab.json of GPT-2", "vocab.json of Qwen 2", "vocab.json with the older files"),
    *("tokenizer.model of Llama 2", "tokenizer.model, legacy", "tokenizer.model, not legacy"),
    *("tokenizer.model, unconfigured", "tokenizer.model, own pieces", "tokenizer.model of Gemma"),
    *("tokenizer.model, Unigram", "tokenizer.model, Unigram with bytes"),
)
"""What `Directories.paths` has."""

WITHOUT_BOS = {"tekken.json"}
"""transformers puts no BOS before these, which the models were trained with; the text's own ids are compared."""


class Directories:
    """All the directories, by name, below ``root``.

    ``byte_level`` is the vocabulary that the byte-level ones share; ``trained`` has SentencePiece's own ones.
    """

    def __init__(self, root: Path, lines: Sequence[str]) -> None:
        self._root = root
        self.paths: dict[str, Path] = {}
        self.byte_level = train_byte_level(lines)
        for name, kind in BYTE_LEVEL_KINDS.items():
            config = {"eos_token": "<|endoftext|>", "bos_token": "<s>", "additional_special_tokens": CHAT_TOKENS}
            directory = self._add(name, {"tokenizer_class": "PreTrainedTokenizerFast", **config})
            byte_level_backend(self.byte_level, kind).save(str(directory / "tokenizer.json"))
        characters = train_byte_fallback(lines)
        for style in ("llama", "mistral", "gemma"):
            directory = self._add(style, {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"})
            character_backend(characters, style).save(str(directory / "tokenizer.json"))
        for name, byte_fallback in (("unigram", False), ("unigram with bytes", True)):
            directory = self._add(name, {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"})
            unigram_backend(lines, byte_fallback=byte_fallback).save(str(directory / "tokenizer.json"))
        self._add_merges()
        self._add_sentencepiece(lines)
        write_tekken(self._add("tekken.json") / "tekken.json", self.byte_level, BYTE_LEVEL_ALPHABET)

    def _add(self, name: str, config: Mapping[str, Any] | None = None) -> Path:
        directory = self.paths[name] = self._root / name.replace(" ", "-")
        directory.mkdir()
        if config is not None:
            (directory / "tokenizer_config.json").write_text(json.dumps(config))
        return directory

    def _add_merges(self) -> None:
        """vocab.json and merges.txt, as GPT-2 has them, and as Qwen 2 has them with the added tokens beside."""
        ids = self.byte_level.ids
        decoder = {ids[token]: {"content": token, "special": True, "normalized": False} for token in CHAT_TOKENS}
        config = {"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": decoder}
        _write_merges(self._add("vocab.json of GPT-2", config), self.byte_level)
        plain = {token: number for token, number in ids.items() if token not in ["<|endoftext|>", "<s>", *CHAT_TOKENS]}
        decoder = {
            len(plain) + index: {"content": token, "special": index < 2, "normalized": False}
            for index, token in enumerate(["<|endoftext|>", *CHAT_TOKENS])
        }
        config = {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": decoder, "eos_token": "<|endoftext|>"}
        _write_merges(self._add("vocab.json of Qwen 2", config), Bpe(plain, self.byte_level.merges))
        directory = self._add("vocab.json with the older files", {"tokenizer_class": "GPT2Tokenizer"})
        _write_merges(directory, Bpe({**plain, "<|endoftext|>": len(plain)}, self.byte_level.merges))
        (directory / "special_tokens_map.json").write_text(json.dumps({"bos_token": CHAT_TOKENS[0]}))
        (directory / "added_tokens.json").write_text(
            json.dumps({token: len(plain) + 1 + index for index, token in enumerate(CHAT_TOKENS)})
        )

    def _add_sentencepiece(self, lines: Sequence[str]) -> None:
        """tokenizer.model in several ways of training and of configuring."""
        bos = {"add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>"}
        backend = {"tokenizer_class": "TokenizersBackend"}
        own = {"user_defined_symbols": ["<|user|>", "▁▁▁"]}
        gemma = {"add_dummy_prefix": False, "user_defined_symbols": ["<|user|>", "▁▁", "▁▁▁", "<mark>"]}
        unigram = {"model_type": "unigram", "vocab_size": 1000}
        options = {
            "tokenizer.model of Llama 2": LLAMA_OPTIONS,
            "tokenizer.model, own pieces": {**LLAMA_OPTIONS, **own},
            "tokenizer.model of Gemma": {**LLAMA_OPTIONS, **gemma},
            "tokenizer.model, Unigram": {**unigram, "normalization_rule_name": "nmt_nfkc"},
            "tokenizer.model, Unigram with bytes": {**LLAMA_OPTIONS, **unigram, "add_dummy_prefix": False},
        }
        configs = {"tokenizer.model of Llama 2": {**bos, "tokenizer_class": "LlamaTokenizer"}}
        paths = {self._add(name, configs.get(name, backend)) / "tokenizer.model": name for name in options}
        trained = train_sentencepiece(lines, {path: options[name] for path, name in paths.items()})
        self.trained = dict(zip(paths.values(), trained, strict=True))
        content = self.trained["tokenizer.model of Llama 2"].path.read_bytes()
        for name, config in {
            "tokenizer.model, legacy": {**bos, "tokenizer_class": "LlamaTokenizer", "legacy": True},
            "tokenizer.model, not legacy": {**bos, **backend, "legacy": False},
            "tokenizer.model, unconfigured": backend,
        }.items():
            (self._add(name, config) / "tokenizer.model").write_bytes(content)


def _write_merges(directory: Path, bpe: Bpe) -> None:
    (directory / "vocab.json").write_text(json.dumps(bpe.ids))
    lines = ["#version: 0.2", *(" ".join(merge) for merge in bpe.merges)]
    (directory / "merges.txt").write_text("\n".join(lines) + "\n")
