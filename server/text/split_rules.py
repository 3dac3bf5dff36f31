"""How byte-level vocabularies cut a text before merging: one rule for each name that files give to it.

GGUF files name a rule (``tokenizer.ggml.pre``), directories without a ``tokenizer.json`` name a class. A rule's
expressions are those of the vocabulary's own ``tokenizer.json``, in Oniguruma's syntax; each cuts the pieces that the
one before it left, and what none of them matches stays whole. Knows no vocabulary.
"""

# ruff: noqa: RUF001 - the expressions list letters that look alike

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class SplitRule:
    """Which text never merges across which border.

    ``parts_punctuation``: runs of it are cut out before all else. ``byte_expressions`` cut once more what the others
    left, when every byte of it is written as a character. ``takes_wholes``: a piece that is a token as it stands is not
    merged from parts. ``adds_bos``: files that do not say whether prompts begin with BOS mean that they do.
    ``composes``: the text is brought into Unicode's form NFC first.
    """

    expressions: tuple[str, ...]
    parts_punctuation: bool = False
    byte_expressions: tuple[str, ...] = ()
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

# Most letters that have a case. As numbers, since some of them are not in Unicode's composed form.
_CASED: Final = (
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C "
    "38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B "
    "1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 "
    "1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 "
    "2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B "
    "2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 "
    "FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF "
    "1E900-1E943"
)
_DEEPSEEK_LETTERS: Final = re.sub(r"[0-9A-F]+", r"\\x{\g<0>}", _CASED).replace(" ", "")
_DEEPSEEK_LLM: Final = (
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-퟿]+",
    r"\p{N}",
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
    SplitRule((_GPT2,), parts_punctuation=True, byte_expressions=(r"\p{N}+", r"[0-9][0-9][0-9]")): ("falcon",),
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
