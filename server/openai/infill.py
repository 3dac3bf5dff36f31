"""The prompt of a model that fills in the middle: a prefix, a suffix, and the place between them.

Models that were trained for it have three control tokens, whose names differ by family. Bavarian et al., "Efficient
Training of Language Models to Fill in the Middle", 2022; the order here is prefix, suffix, middle.
"""

from __future__ import annotations

from typing import NamedTuple

from server.text.tokenizer import Tokenizer


class InfillTokens(NamedTuple):
    """Texts of the tokens before the prefix, the suffix and the middle."""

    prefix: str
    suffix: str
    middle: str

    def prompt(self, prefix: str, suffix: str) -> str:
        """What is tokenized so that the model goes on with what belongs between ``prefix`` and ``suffix``."""
        return f"{self.prefix}{prefix}{self.suffix}{suffix}{self.middle}"


KNOWN = (
    InfillTokens("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen 2.5 Coder, CodeGemma
    InfillTokens("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    InfillTokens("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    InfillTokens("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001 (DeepSeek Coder)
    InfillTokens("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    InfillTokens("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
)


def find_infill_tokens(tokenizer: Tokenizer) -> InfillTokens | None:
    """The first known kind of which the vocabulary has all three as tokens of their own."""
    for tokens in KNOWN:
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in tokens]
        if all(len(one) == 1 and tokenizer.is_special(one[0]) for one in ids):
            return tokens
    return None
