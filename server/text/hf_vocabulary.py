"""Loads the vocabulary of a model directory in Hugging Face layout.

``tokenizer.json`` is the vocabulary where there is one. Else it is made of ``vocab.json`` and ``merges.txt``, of
``tokenizer.model`` or of ``tekken.json``, as transformers makes it. ``tokenizer_config.json`` names the special tokens;
whether prompts begin with BOS is for ``tokenizer.json`` to say, and for the configuration where there is none. Never
reaches the network, and knows nothing of weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import AddedToken

from server.text.byte_level_backend import compile_byte_level
from server.text.errors import TokenizerError
from server.text.merge_cache import MergeCache, default_cache_directory
from server.text.sentencepiece_backend import SpaceBefore, compile_sentencepiece
from server.text.sentencepiece_file import read_sentencepiece_file
from server.text.sentencepiece_model import PieceType
from server.text.split_rules import CLASS_RULES
from server.text.tekken_file import read_tekken_file
from server.text.token_spelling import TokenSpelling
from server.text.tokenizer_config import TokenizerConfig, read_json, read_tokenizer_config
from server.text.vocabulary import Vocabulary

_RENUMBERING_CLASSES: Final = frozenset(
    f"{name}Tokenizer" for name in ("XGLM", "XLMRoberta", "Camembert", "MBart", "MBart50", "Nllb")
)
_MODEL_CLASSES: Final = {"gpt2": "GPT2Tokenizer", "qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer"}
_ENDOFTEXT: Final = "<|endoftext|>"


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A vocabulary as its file has it, and the configuration with the file's own conventions filled in.

    ``prefix_ids`` and ``suffix_ids`` are what the file itself puts around a text; None where the configuration decides.
    """

    backend: tokenizers.Tokenizer
    spelling: TokenSpelling
    config: TokenizerConfig
    prefix_ids: tuple[int, ...] | None = None
    suffix_ids: tuple[int, ...] | None = None


def load_directory(directory: Path, cache_directory: Path | None = None) -> Vocabulary:
    """The vocabulary in ``directory``; raises TokenizerError if a file is missing, broken or of an unknown kind.

    ``cache_directory`` keeps what is slow to derive (default: `default_cache_directory`).
    """
    cache = MergeCache(cache_directory or default_cache_directory())
    compiled = _compiled(directory, read_tokenizer_config(directory), cache)
    backend, config, spelling = compiled.backend, compiled.config, compiled.spelling
    _add_tokens(backend, config)
    bos = _token_id(backend, config.named, "bos_token")
    eos = _token_id(backend, config.named, "eos_token")
    prefix, suffix = compiled.prefix_ids, compiled.suffix_ids
    if prefix is None:
        prefix = (bos,) if config.adds_bos and bos is not None else ()
    if suffix is None:
        suffix = (eos,) if config.adds_eos and eos is not None else ()
    added = backend.get_added_tokens_decoder()
    special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
    return Vocabulary(
        backend=backend,
        spelling=spelling,
        token_text=lambda token_id: backend.id_to_token(token_id) if token_id >= 0 else None,
        size=max([backend.get_vocab_size(with_added_tokens=True), *(token_id + 1 for token_id in added)]),
        special_ids=special_ids,
        verbatim_ids=frozenset(added) if spelling is TokenSpelling.BYTE_LEVEL else special_ids,
        prefix_ids=prefix,
        suffix_ids=suffix,
        bos_token_id=bos,
        eos_token_ids=() if eos is None else (eos,),
        special_tokens=config.named,
    )


def _compiled(directory: Path, config: TokenizerConfig, cache: MergeCache) -> _Compiled:
    """The first vocabulary that ``directory`` has, in the order in which transformers looks for them."""
    if (directory / "tokenizer.json").is_file():
        return _from_tokenizer_json(directory / "tokenizer.json", config)
    if (directory / "tokenizer.model").is_file():
        return _from_sentencepiece(directory / "tokenizer.model", config, cache)
    if (directory / "vocab.json").is_file() and (directory / "merges.txt").is_file():
        return _from_merges(directory, config)
    if (directory / "tekken.json").is_file():
        return _from_tekken(directory / "tekken.json", config)
    for path in [*sorted(directory.glob("*.tiktoken")), directory / "tiktoken.model"]:
        if path.is_file():
            raise TokenizerError(
                f"{path} is a vocabulary in tiktoken's format, which is not served without a tokenizer.json; save the"
                " tokenizer once with transformers' AutoTokenizer to get one."
            )
    raise TokenizerError(
        f"{directory} has no tokenizer.json, and none of tokenizer.model, vocab.json with merges.txt, and tekken.json."
    )


def _from_tokenizer_json(path: Path, config: TokenizerConfig) -> _Compiled:
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{path} cannot be read: {error}.") from error
    # Training leftovers: a prompt must reach the model whole and unpadded.
    backend.no_truncation()
    backend.no_padding()
    prefix, suffix = _surrounding_ids(backend)
    return _Compiled(backend, _spelling(backend), config, prefix, suffix)


def _from_sentencepiece(path: Path, config: TokenizerConfig, cache: MergeCache) -> _Compiled:
    if config.tokenizer_class in _RENUMBERING_CLASSES:
        raise TokenizerError(
            f"{path} belongs to a {config.tokenizer_class}, which renumbers its pieces; that is not served without a"
            " tokenizer.json."
        )
    model = read_sentencepiece_file(path)
    backend = compile_sentencepiece(model, cache, space_before=_space_before(config))
    ids = {"bos_token": model.bos_id, "eos_token": model.eos_id, "unk_token": model.unknown_id}
    named = {name: model.pieces[i] for name, i in ids.items() if 0 <= i < len(model.pieces)}
    has_bytes = model.byte_fallback and bool(model.ids_of(PieceType.BYTE))
    spelling = TokenSpelling.SENTENCEPIECE if has_bytes else TokenSpelling.SENTENCEPIECE_WITHOUT_BYTES
    return _Compiled(backend, spelling, replace(config, named={**named, **config.named}))


def _space_before(config: TokenizerConfig) -> SpaceBefore:
    """As transformers 5 has it, whose LlamaTokenizer adds no space to one that is there."""
    is_llama = config.tokenizer_class == "LlamaTokenizer"
    is_legacy = not is_llama if config.is_legacy is None else config.is_legacy
    if not is_legacy:
        return SpaceBefore.FIRST_STRETCH_WITHOUT_ONE
    return SpaceBefore.EVERY_STRETCH_WITHOUT_ONE if is_llama else SpaceBefore.EVERY_STRETCH


def _from_merges(directory: Path, config: TokenizerConfig) -> _Compiled:
    kind = config.tokenizer_class or _MODEL_CLASSES.get(read_json(directory / "config.json").get("model_type", ""))
    if kind is None or kind not in CLASS_RULES:
        known = ", ".join(CLASS_RULES)
        raise TokenizerError(
            f"{directory} has vocab.json and merges.txt, but no tokenizer.json to say how a text is cut, and its"
            f" tokenizer_class ({kind}) is none of {known}."
        )
    vocabulary = read_json(directory / "vocab.json")
    path = directory / "merges.txt"
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{path} cannot be read: {error}.") from error
    merges = []
    for line in lines:
        if line.strip() and not line.startswith("#version"):
            left, separator, right = line.rstrip("\r").partition(" ")
            if not separator or not {left, right, left + right} <= vocabulary.keys():
                raise TokenizerError(f"The line {line!r} of {path} does not join two tokens into a third.")
            merges.append((left, right))
    names = ("eos_token", "unk_token", "pad_token" if kind == "Qwen2Tokenizer" else "bos_token")
    named = dict.fromkeys(names, _ENDOFTEXT) if _ENDOFTEXT in vocabulary else {}
    backend = compile_byte_level(vocabulary, merges, CLASS_RULES[kind])
    return _Compiled(backend, TokenSpelling.BYTE_LEVEL, replace(config, named={**named, **config.named}))


def _from_tekken(path: Path, config: TokenizerConfig) -> _Compiled:
    tekken = read_tekken_file(path)
    backend = compile_byte_level(tekken.ids, tekken.merges, tekken.rule)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tekken.specials])
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    named = {name: text for name, text in names.items() if text in tekken.ids}
    config = replace(config, named={**named, **config.named}, adds_bos=True)
    return _Compiled(backend, TokenSpelling.BYTE_LEVEL, config)


def _add_tokens(backend: tokenizers.Tokenizer, config: TokenizerConfig) -> None:
    """Add to ``backend`` what the configuration says of tokens it has, and the tokens that follow on its last."""
    known = {token_id: repr(token) for token_id, token in backend.get_added_tokens_decoder().items()}
    for token_id, token in sorted(config.added.items()):
        place = backend.token_to_id(token.content)
        if place is None and token_id == backend.get_vocab_size(with_added_tokens=True):
            place = token_id
        if place == token_id and known.get(token_id) != repr(token):
            backend.add_tokens([token])
    added = config.added or backend.get_added_tokens_decoder()
    by_text = {token.content: token for token in added.values()}
    for text in dict.fromkeys([*config.named.values(), *config.specials]):
        if backend.token_to_id(text) is not None:
            token = by_text.get(text) or AddedToken(text, normalized=False)
            token.special = True
            backend.add_special_tokens([token])


def _token_id(backend: tokenizers.Tokenizer, named: Mapping[str, str], name: str) -> int | None:
    text = named.get(name)
    if text is None:
        return None
    token_id: int | None = backend.token_to_id(text)
    if token_id is None:
        raise TokenizerError(f"tokenizer_config.json names {text!r} as {name}, but the vocabulary has no such token.")
    return token_id


def _surrounding_ids(backend: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the post-processor puts before and after a text."""
    bare: list[int] = backend.encode("a", add_special_tokens=False).ids
    full: list[int] = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    return (), ()


def _spelling(backend: tokenizers.Tokenizer) -> TokenSpelling:
    """How the vocabulary spells bytes, told from its decoder."""
    description = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else {}
    kinds = set(_decoder_kinds(description))
    if "ByteLevel" in kinds:
        return TokenSpelling.BYTE_LEVEL
    if kinds & {"Metaspace", "Replace"}:
        if "ByteFallback" in kinds:
            return TokenSpelling.SENTENCEPIECE
        return TokenSpelling.SENTENCEPIECE_WITHOUT_BYTES
    found = ", ".join(sorted(kinds)) or "none"
    raise TokenizerError(f"The decoder in tokenizer.json ({found}) is not supported; ByteLevel and Metaspace are.")


def _decoder_kinds(description: Mapping[str, Any]) -> Iterator[str]:
    if description.get("type") == "Sequence":
        for part in description["decoders"]:
            yield from _decoder_kinds(part)
    elif "type" in description:
        yield description["type"]
