"""Writes vocabularies as GGUF metadata, by the gguf package's own writer, and reads them back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf import GGUFWriter

from models.gguf_file import GGUFFile
from tests.server.text.tokenizer_kinds import CHAT_TOKENS, Bpe, TrainedPieces

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4


def byte_level_metadata(path: Path, bpe: Bpe, pre: str) -> Mapping[str, object]:
    """A byte-level vocabulary whose last four tokens are control tokens, with the split rule ``pre``."""
    writer = _writer(path, "gpt2")
    tokens = sorted(bpe.ids, key=bpe.ids.__getitem__)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL if token in ("<|endoftext|>", "<s>", *CHAT_TOKENS) else NORMAL for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in bpe.merges])
    writer.add_bos_token_id(bpe.ids["<s>"])
    writer.add_eos_token_id(bpe.ids["<|endoftext|>"])
    return _written(path, writer)


def sentencepiece_metadata(path: Path, trained: TrainedPieces, kind: str) -> Mapping[str, object]:
    """The vocabulary of a tokenizer.model as "llama" or "t5"."""
    writer = _writer(path, kind)
    pieces, scores, types = zip(*trained.pieces, strict=True)
    writer.add_token_list(pieces)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_add_space_prefix(trained.adds_space)
    writer.add_unk_token_id(types.index(UNKNOWN))
    writer.add_bos_token_id(pieces.index("<s>"))
    writer.add_eos_token_id(pieces.index("</s>"))
    if kind == "t5":
        writer.add_remove_extra_whitespaces(trained.trims_spaces)
        writer.add_precompiled_charsmap(trained.normalization)
    return _written(path, writer)


def pieces_of(metadata: Mapping[str, object]) -> list[tuple[str, float, int]]:
    """The pieces that a GGUF vocabulary of the kind "llama" came from, with scores and types.

    Control tokens, which a text may name, are user-defined among them: SentencePiece itself never reads them from a
    text.
    """
    keys: dict[str, Any] = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    types = [USER_DEFINED if kind == CONTROL else kind for kind in keys["token_type"]]
    types[keys["unknown_token_id"]] = UNKNOWN
    return list(zip((token.replace(" ", "\u2581") for token in keys["tokens"]), keys["scores"], types, strict=True))


def _writer(path: Path, kind: str) -> GGUFWriter:
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    return writer


def _written(path: Path, writer: GGUFWriter) -> Mapping[str, object]:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFFile(path).metadata
