"""Small vocabularies of every kind that checkpoints come with, trained here and saved in the forms they come in.

Merges of the byte-level kinds are learnt from uncut text, so that they cross every border and each rule of cutting
shows in the ids.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.server.text.oracle_process import answers_of

BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]
CHAT_TOKENS = ["<|im_start|>", "<|im_end|>"]

UNMERGED = ["The", "\u0120eight", "\u0120three", "\u0120already"]
"""Tokens that no merges lead to, unless they were learnt, which only vocabularies that take pieces whole ever use."""

# As the vocabularies' own tokenizer.json have them.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"  # noqa: RUF001 - the vocabulary's own
CJK = r"[一-龥ࠀ-一가-퟿]+"
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",  # noqa: RUF001 - the vocabulary's own
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)


def splits(*expressions: str) -> list[Any]:
    """The steps that cut a text by ``expressions`` and then write it in bytes."""
    cutters = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in expressions]
    return [*cutters, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


def gpt2(*before: Any) -> list[Any]:
    return [*before, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]


@dataclass(frozen=True)
class Bpe:
    """A trained vocabulary: token -> id, and merges in order."""

    ids: Mapping[str, int]
    merges: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class ByteLevelKind:
    """How one family of byte-level vocabularies treats a text."""

    steps: Callable[[], list[Any]]
    takes_wholes: bool = False
    composes: bool = False
    has_bos: bool = False


BYTE_LEVEL_KINDS: Mapping[str, ByteLevelKind] = {
    "gpt-2": ByteLevelKind(gpt2),
    "starcoder": ByteLevelKind(lambda: gpt2(pre_tokenizers.Digits(individual_digits=True))),
    "falcon": ByteLevelKind(
        lambda: [
            *gpt2(pre_tokenizers.Punctuation("contiguous")),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ]
    ),
    "llama-bpe": ByteLevelKind(lambda: splits(LLAMA3), takes_wholes=True, has_bos=True),
    "dbrx": ByteLevelKind(lambda: splits(LLAMA3)),
    "qwen2": ByteLevelKind(lambda: splits(QWEN2), composes=True),
    "stablelm2": ByteLevelKind(lambda: splits(QWEN2)),
    "gpt-4o": ByteLevelKind(lambda: splits(GPT4O)),
    "tekken": ByteLevelKind(lambda: splits(TEKKEN), takes_wholes=True, has_bos=True),
    "deepseek-v3": ByteLevelKind(lambda: splits(*DEEPSEEK_V3)),
    "deepseek-coder": ByteLevelKind(
        lambda: [
            *splits(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK)[:-1],
            pre_tokenizers.Digits(individual_digits=True),
            *splits(),
        ]
    ),
    "bloom": ByteLevelKind(lambda: splits(BLOOM)),
}
"""``tokenizer.ggml.pre`` -> how the tokenizer.json of such vocabularies describes them."""


def train_byte_level(lines: Iterable[str]) -> Bpe:
    """Byte-level BPE, its last tokens ``<|endoftext|>``, ``<s>`` and `CHAT_TOKENS`."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    ordinary = [line for line in lines if "<" not in line]
    backend.train_from_iterator(
        ordinary, trainers.BpeTrainer(vocab_size=2500, initial_alphabet=sorted(alphabet), show_progress=False)
    )
    trained = _bpe(backend)
    ids = {**trained.ids}
    for token in [*UNMERGED, "<|endoftext|>", "<s>", *CHAT_TOKENS]:
        ids.setdefault(token, len(ids))
    return Bpe(ids, trained.merges)


def train_byte_fallback(lines: Iterable[str]) -> Bpe:
    """BPE over characters, with byte pieces, as Llama 2's and Gemma's tokenizer.json have it."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    trainer = trainers.BpeTrainer(
        vocab_size=2000, limit_alphabet=300, show_progress=False, special_tokens=["<unk>", "<s>", "</s>", *BYTE_PIECES]
    )
    backend.train_from_iterator(lines, trainer)
    return _bpe(backend)


def _bpe(backend: tokenizers.Tokenizer) -> Bpe:
    model = json.loads(backend.to_str())["model"]
    return Bpe(model["vocab"], [tuple(merge) for merge in model["merges"]])


def byte_level_backend(bpe: Bpe, kind: ByteLevelKind) -> tokenizers.Tokenizer:
    """What the tokenizer.json of a family holds."""
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=dict(bpe.ids), merges=list(bpe.merges), ignore_merges=kind.takes_wholes)
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(kind.steps())
    if kind.composes:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(token, normalized=False) for token in ["<|endoftext|>", "<s>", *CHAT_TOKENS]]
    )
    if kind.has_bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", bpe.ids["<s>"])]
        )
    return backend


def character_backend(bpe: Bpe, style: str) -> tokenizers.Tokenizer:
    """BPE with byte fallback, prepared as in the tokenizer.json of "llama", "mistral" or "gemma"."""
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=dict(bpe.ids), merges=list(bpe.merges), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    ends = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    if style == "gemma":
        backend.normalizer = normalizers.Replace(" ", "\u2581")
        backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    elif style == "llama":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        ends.append(decoders.Strip(" ", 1, 0))
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", prepend_scheme="first", split=False)
        ends.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(ends)
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bpe.ids["<s>"])])
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in ["<unk>", "<s>", "</s>"]])
    backend.add_tokens([AddedToken("<|user|>", normalized=False), AddedToken("<mark>", lstrip=True, rstrip=True)])
    return backend


def unigram_backend(lines: Sequence[str], *, byte_fallback: bool) -> tokenizers.Tokenizer:
    """Unigram, with NFKC and the words cut before spaces, as in T5's tokenizer.json and its heirs'."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", prepend_scheme="always", split=True)
    specials = ["<pad>", "</s>", "<unk>", *(BYTE_PIECES if byte_fallback else [])]
    trainer = trainers.UnigramTrainer(
        vocab_size=900, unk_token="<unk>", special_tokens=specials, show_progress=False, shrinking_factor=0.5
    )
    backend.train_from_iterator(_of_common_characters(lines), trainer)
    trained = json.loads(backend.to_str())["model"]["vocab"]
    backend.model = models.Unigram([tuple(entry) for entry in trained], unk_id=2, byte_fallback=byte_fallback)
    ends: list[Any] = [decoders.Metaspace("\u2581", prepend_scheme="always", split=True)]
    if byte_fallback:
        ends = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    whole = tokenizers.Tokenizer(backend.model)
    whole.normalizer, whole.pre_tokenizer, whole.decoder = (
        backend.normalizer,
        backend.pre_tokenizer,
        decoders.Sequence(ends),
    )
    whole.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    whole.add_special_tokens([AddedToken(token, normalized=False) for token in ["<pad>", "</s>", "<unk>"]])
    return whole


def _of_common_characters(lines: Sequence[str]) -> list[str]:
    """The lines without rare characters, which the trainers of pieces would make a piece of each."""
    counts = Counter(character for line in lines for character in set(line))
    return [line for line in lines if all(counts[character] > 20 for character in line)]


@dataclass(frozen=True)
class TrainedPieces:
    """A ``tokenizer.model`` at ``path``: pieces, scores and types, and how a text is prepared."""

    path: Path
    pieces: Sequence[tuple[str, float, int]]
    adds_space: bool
    trims_spaces: bool
    normalization: Sequence[int]


def train_sentencepiece(lines: Sequence[str], options: Mapping[Path, Mapping[str, Any]]) -> list[TrainedPieces]:
    """A ``tokenizer.model`` at each path, by SentencePiece's own trainer with these options."""
    known = [line.replace("\n", " ") for line in _of_common_characters(lines)]
    jobs = [{"train": known, "options": chosen, "path": str(path)} for path, chosen in options.items()]
    answers = answers_of("sentencepiece_oracle.py", jobs)
    return [TrainedPieces(path, **answer) for path, answer in zip(options, answers, strict=True)]


def write_tekken(path: Path, bpe: Bpe, characters: Mapping[str, int]) -> None:
    """``bpe`` as a ``tekken.json``, without its special tokens."""
    spelled = [token for token in bpe.ids if token not in ("<|endoftext|>", "<s>", *CHAT_TOKENS)]
    spelled.sort(key=lambda token: (len(token) > 1, bpe.ids[token]))
    content = [bytes(characters[character] for character in token) for token in spelled]
    specials = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    path.write_text(
        json.dumps(
            {
                "config": {
                    "pattern": TEKKEN,
                    "default_vocab_size": len(content) + 10,
                    "default_num_special_tokens": 10,
                    "version": "v7",
                },
                "vocab": [
                    {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
                    for rank, token in enumerate(content)
                ],
                "special_tokens": [
                    {"rank": rank, "token_str": token, "is_control": True} for rank, token in enumerate(specials)
                ],
            }
        )
    )
