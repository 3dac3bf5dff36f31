"""Compiles the vocabulary in a GGUF file's metadata into a tokenizer.

Reads the keys ``tokenizer.ggml.*`` (GGUF specification, "Tokenizer") from a plain mapping; opens no model file. Two
kinds are known: "llama", SentencePiece BPE with a score for each piece, and "gpt2", byte-level BPE with a merge list.

SentencePiece joins, again and again, the two neighbours whose union has the best score, the leftmost on a tie. The
`tokenizers` library wants a ranked list of pairs instead, so each piece contributes every split of it into two known
pieces, in falling order of score. The result differs from SentencePiece in one corner: two *overlapping* candidates
for the *same* piece, as in a run of one repeated character, are ranked by their split and not by their position.
User-defined pieces are cut out of the text first, longest match first, as SentencePiece does; pieces marked unused are
never produced.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from server.text.errors import TokenizerError
from server.text.merge_cache import MergeCache, default_cache_directory
from server.text.token_spelling import METASPACE, TokenSpelling
from server.text.vocabulary import Vocabulary

_PREFIX: Final = "tokenizer.ggml."
_MERGE_RULES_VERSION: Final = "1"

_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2: Final = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

# Which text never merges across which border: each expression cuts the pieces the one before it left.
_SPLITS: Final[Mapping[str, tuple[str, ...]]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "llama-bpe": (_LLAMA3,),
    "llama-v3": (_LLAMA3,),
    "llama3": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "deepseek-r1-qwen": (_QWEN2,),
    "smollm": (r"\p{N}", _GPT2),
}
_LLAMA3_NAMES: Final = frozenset({"llama-bpe", "llama-v3", "llama3"})
_NFC_NAMES: Final = frozenset({"qwen2", "deepseek-r1-qwen"})


class _TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class _Metadata:
    """Typed access to ``tokenizer.ggml.*``."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata

    def get(self, name: str, default: Any = None) -> Any:
        return self._metadata.get(_PREFIX + name, default)

    def require(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise TokenizerError(f"The GGUF metadata has no {_PREFIX}{name}, so its vocabulary cannot be read.")
        return value


def load_gguf(metadata: Mapping[str, object], cache_directory: Path | None = None) -> Vocabulary:
    """Compile the vocabulary described by GGUF ``metadata``.

    ``cache_directory`` keeps what is slow to derive (default: `default_cache_directory`). Raises TokenizerError for a
    missing key, an unknown kind of tokenizer or an unknown pre-tokenizer.
    """
    keys = _Metadata(metadata)
    kind = keys.require("model")
    tokens: Sequence[str] = keys.require("tokens")
    types: Sequence[int] = keys.get("token_type") or [_TokenType.NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise TokenizerError(f"The GGUF metadata has {len(tokens)} tokens but {len(types)} token types.")
    if kind == "llama":
        cache = MergeCache(cache_directory or default_cache_directory())
        backend, spelling = _sentencepiece(keys, tokens, types, cache), TokenSpelling.SENTENCEPIECE
    elif kind == "gpt2":
        backend, spelling = _byte_level(keys, tokens), TokenSpelling.BYTE_LEVEL
    else:
        raise TokenizerError(f'The GGUF tokenizer model "{kind}" is not supported; "llama" and "gpt2" are.')
    special_ids = _ids_of(types, _TokenType.CONTROL, _TokenType.UNKNOWN)
    user_defined_ids = _ids_of(types, _TokenType.USER_DEFINED)
    # A space inside a user-defined piece is written either way; text has only the plain one.
    user_defined = [tokens[i] for i in user_defined_ids]
    if kind == "llama":
        user_defined = [text.replace(METASPACE, " ") for text in user_defined]
    backend.add_special_tokens(
        [AddedToken(tokens[i], normalized=False, special=True) for i in special_ids if tokens[i]]
    )
    backend.add_tokens([AddedToken(text, normalized=False, special=False) for text in user_defined if text])
    return _vocabulary(keys, backend, spelling, tokens, special_ids, user_defined_ids)


def _vocabulary(
    keys: _Metadata,
    backend: tokenizers.Tokenizer,
    spelling: TokenSpelling,
    tokens: Sequence[str],
    special_ids: Sequence[int],
    user_defined_ids: Sequence[int],
) -> Vocabulary:
    """Add the facts about single tokens to a compiled ``backend``."""
    is_sentencepiece = spelling is TokenSpelling.SENTENCEPIECE
    # SentencePiece files may leave out what was the convention of the first of them.
    conventions = {"bos": 1, "eos": 2, "unknown": 0} if is_sentencepiece else {}
    ids: dict[str, int] = {}
    for name in ("bos", "eos", "unknown", "padding", "eot", "eom"):
        token_id = keys.get(f"{name}_token_id", conventions.get(name))
        if isinstance(token_id, int) and 0 <= token_id < len(tokens):
            ids[name] = token_id
    bos, eos = ids.get("bos"), ids.get("eos")
    adds_bos = keys.get("add_bos_token", is_sentencepiece or keys.get("pre") in _LLAMA3_NAMES)
    variables = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    return Vocabulary(
        backend=backend,
        spelling=spelling,
        token_text=lambda token_id: tokens[token_id] if 0 <= token_id < len(tokens) else None,
        size=len(tokens),
        special_ids=frozenset(special_ids),
        verbatim_ids=frozenset(special_ids if is_sentencepiece else [*special_ids, *user_defined_ids]),
        prefix_ids=(bos,) if adds_bos and bos is not None else (),
        suffix_ids=(eos,) if keys.get("add_eos_token", False) and eos is not None else (),
        bos_token_id=bos,
        eos_token_ids=tuple(dict.fromkeys(ids[name] for name in ("eos", "eot", "eom") if name in ids)),
        special_tokens={variables[name]: tokens[token_id] for name, token_id in ids.items() if name in variables},
    )


def _ids_of(types: Sequence[int], *wanted: _TokenType) -> list[int]:
    # Plain ints: comparing enum members a quarter of a million times shows in the start-up time.
    values = tuple(int(kind) for kind in wanted)
    return [index for index, kind in enumerate(types) if kind in values]


def _first_ids(tokens: Sequence[str]) -> dict[str, int]:
    """Token -> id; the first one where padding repeats a token."""
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) != len(tokens):
        ids = dict(zip(reversed(tokens), range(len(tokens) - 1, -1, -1), strict=True))
    return ids


def _sentencepiece(
    keys: _Metadata, tokens: Sequence[str], types: Sequence[int], cache: MergeCache
) -> tokenizers.Tokenizer:
    """SentencePiece BPE: the whole text is one word, spaces are U+2581, unknown characters fall back to bytes."""
    scores: Sequence[float] = keys.require("scores")
    if len(scores) != len(tokens):
        raise TokenizerError(f"The GGUF metadata has {len(tokens)} tokens but {len(scores)} scores.")
    vocabulary = _first_ids(tokens)
    key = _merges_key(tokens, types, scores)
    pairs = cache.load(key)
    if pairs is None:
        pairs = _merges_by_score(tokens, types, scores, vocabulary)
        cache.store(key, pairs)
    texts = map(tokens.__getitem__, pairs)
    unknown = keys.get("unknown_token_id", 0)
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=list(zip(texts, texts, strict=True)),
            unk_token=tokens[unknown] if 0 <= unknown < len(tokens) else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces: normalizers.Normalizer = normalizers.Replace(" ", METASPACE)
    if keys.get("add_space_prefix", True):
        spaces = normalizers.Sequence([normalizers.Prepend(METASPACE), spaces])
    backend.normalizer = spaces
    return backend


def _merges_key(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> str:
    """Names the merge list of a vocabulary: equal keys, equal merges."""
    digest = hashlib.sha256(f"{_MERGE_RULES_VERSION} {sys.byteorder} {array('i').itemsize}".encode())
    for part in (array("I", map(len, tokens)), array("i", types), array("d", scores)):
        digest.update(part)
    digest.update("".join(tokens).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _merges_by_score(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float], vocabulary: Mapping[str, int]
) -> array[int]:
    """Every split of every piece into two pieces, best score first, as flat id pairs."""
    normal = [index for index, kind in enumerate(types) if kind == 1]
    piece_ids = {token: vocabulary[token] for token in map(tokens.__getitem__, normal)}
    pairs = array("i")
    append = pairs.append
    for index in sorted(normal, key=scores.__getitem__, reverse=True):
        piece = tokens[index]
        # Their order among themselves decides only the corner described above; merging from the left leaves the
        # longer part on the left.
        for border in range(len(piece) - 1, 0, -1):
            left = piece[:border]
            if left in piece_ids:
                right = piece[border:]
                if right in piece_ids:
                    append(piece_ids[left])
                    append(piece_ids[right])
    return pairs


def _byte_level(keys: _Metadata, tokens: Sequence[str]) -> tokenizers.Tokenizer:
    """Byte-level BPE: text is split by the pre-tokenizer's expressions, then merged within each part."""
    name = keys.get("pre", "default")
    if name not in _SPLITS:
        known = ", ".join(_SPLITS)
        raise TokenizerError(f'The GGUF pre-tokenizer "{name}" is not supported; these are: {known}.')
    vocabulary = _first_ids(tokens)
    merges: list[tuple[str, str]] = []
    for merge in keys.require("merges"):
        left, separator, right = merge.partition(" ")
        if not separator or not {left, right, left + right} <= vocabulary.keys():
            raise TokenizerError(f"The GGUF merge {merge!r} does not join two tokens into a third.")
        merges.append((left, right))
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, ignore_merges=name in _LLAMA3_NAMES, fuse_unk=False)
    )
    splits: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(tokenizers.Regex(expression), "isolated") for expression in _SPLITS[name]
    ]
    splits.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    backend.pre_tokenizer = pre_tokenizers.Sequence(splits)
    if name in _NFC_NAMES:
        backend.normalizer = normalizers.NFC()
    return backend
