"""Compiles a byte-level BPE vocabulary into a tokenizer of the `tokenizers` library.

A text is cut by the vocabulary's split rule, then merged within each part. Knows no files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from server.text.split_rules import SplitRule


def compile_byte_level(
    ids: Mapping[str, int], merges: Sequence[tuple[str, str]], rule: SplitRule
) -> tokenizers.Tokenizer:
    """The tokenizer of the tokens ``ids``, which ``merges`` make in this order; without any added token."""
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=dict(ids), merges=list(merges), ignore_merges=rule.takes_wholes, fuse_unk=False)
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *([pre_tokenizers.Punctuation("contiguous")] if rule.parts_punctuation else []),
            *_cutters(rule.expressions),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            *_cutters(rule.byte_expressions),
        ]
    )
    if rule.composes:
        backend.normalizer = normalizers.NFC()
    return backend


def _cutters(expressions: Sequence[str]) -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.Split(tokenizers.Regex(expression), "isolated") for expression in expressions]
