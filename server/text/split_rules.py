"""How byte-level vocabularies cut a text before merging: one rule for each name that files give to it.

GGUF files name a rule (``tokenizer.ggml.pre``), directories without a ``tokenizer.json`` name a class. A rule's
expressions are those of the vocabulary's own ``tokenizer.json``, in Oniguruma's syntax; each cuts the pieces that the
one before it left, and what none of them matches stays whole. Knows no vocabulary.
"""

# ruff: noqa: RUF001 - the expressions list letters that look alike

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class SplitRule:
    """Which text never merges across which border.

    ``takes_wholes``: a piece that is a token as it stands is not merged from parts. ``adds_bos``: files that do not say
    whether prompts begin with BOS mean that they do. ``composes``: the text is brought into Unicode's form NFC first.
    """

    expressions: tuple[str, ...]
    takes_wholes: bool = False
    adds_bos: bool = False
    composes: bool = False


_ENDINGS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3: Final = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_QWEN2: Final = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35: Final = _QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")

# Words by case: capitals then small letters, with marks and letters that have no case on either side.
_CAPITALS, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}*{_SMALL}+|[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}+{_SMALL}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
)
_GPT4O: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}*{_SMALL}+{_ENDINGS}?|[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}+{_SMALL}*{_ENDINGS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
)

_DEEPSEEK_LETTERS: Final = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴ"
    "ℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK_LLM: Final = (
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-퟿]+",
    r"\p{N}+",
)
_DEEPSEEK_CODER: Final = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")
_DEEPSEEK_V3: Final = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES,
)
_BLOOM: Final = " ?[^(\\s|.,!?…。，、।۔،)]+"

_RULES: Final[Mapping[SplitRule, tuple[str, ...]]] = {
    # What files without a rule mean.
    SplitRule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")): ("default",),
    SplitRule((_GPT2,)): (
        *("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "gigachat", "a.x-4.0", "exaone4"),
        *("mellum", "roberta-bpe", "modern-bert"),
    ),
    SplitRule((r"\p{N}", _GPT2)): (
        *("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
    ),
    SplitRule((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")): ("falcon",),
    SplitRule((_LLAMA3,), takes_wholes=True, adds_bos=True): (
        *("llama-bpe", "llama-v3", "llama3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    ),
    SplitRule((_LLAMA3,)): ("dbrx", "smaug-bpe"),
    SplitRule((_LLAMA3,), takes_wholes=True): ("glm4", "glm5"),
    SplitRule((_QWEN2,), composes=True): ("qwen2", "deepseek-r1-qwen", "kormo", "megrez"),
    SplitRule((_QWEN2,)): ("stablelm2", "hunyuan", "solar-open", "grok-2"),
    SplitRule((_QWEN35,), composes=True): ("qwen35",),
    SplitRule((_TEKKEN,), takes_wholes=True, adds_bos=True): ("tekken",),
    SplitRule((_GPT4O,)): ("gpt-4o", "llama4", "kanana2", "minimax-m2"),
    SplitRule(_DEEPSEEK_LLM): ("deepseek-llm",),
    SplitRule(_DEEPSEEK_CODER): ("deepseek-coder",),
    SplitRule(_DEEPSEEK_V3): ("deepseek-v3", "hunyuan-dense", "joyai-llm"),
    SplitRule((_BLOOM,)): ("bloom", "poro-chat", "gpt3-finnish"),
    SplitRule((_BLOOM, r"\p{N}")): ("viking",),
}

GGUF_RULES: Final[Mapping[str, SplitRule]] = {name: rule for rule, names in _RULES.items() for name in names}
"""``tokenizer.ggml.pre`` -> rule."""

CLASS_RULES: Final[Mapping[str, SplitRule]] = {
    "GPT2Tokenizer": GGUF_RULES["gpt-2"],
    "CodeGenTokenizer": GGUF_RULES["gpt-2"],
    "Qwen2Tokenizer": GGUF_RULES["qwen2"],
}
"""``tokenizer_class`` -> rule, for directories of vocab.json and merges.txt."""
