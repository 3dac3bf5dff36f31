"""Reads ``tekken.json``, the byte-level vocabulary that Mistral publishes beside or instead of a ``tokenizer.json``.

It is a list of byte strings by rank, of which the first ids are kept free for special tokens, and the expression that
cuts a text. Knows the file's fields; its merges follow from the ranks.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from server.text.errors import TokenizerError
from server.text.ranked_merges import NamedPairs, splits_in_two
from server.text.split_rules import SplitRule
from server.text.token_spelling import BYTE_LEVEL_ALPHABET
from server.text.tokenizer_config import read_json

_CHARACTERS: Final = {byte: character for character, byte in BYTE_LEVEL_ALPHABET.items()}

# Files of the first version do not list their special tokens.
_FIRST_SPECIALS: Final = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)


@dataclass(frozen=True, slots=True)
class Tekken:
    """Tokens in byte-level spelling and their ids, merges in order, and the special tokens from id 0 on."""

    ids: Mapping[str, int]
    merges: Sequence[tuple[str, str]]
    specials: Sequence[str]
    rule: SplitRule


def read_tekken_file(path: Path) -> Tekken:
    """The vocabulary in ``path``; raises TokenizerError if it is broken."""
    content = read_json(path)
    try:
        return _tekken(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TokenizerError(f"{path} is no vocabulary of the tekken kind: {error!r}.") from error


def _tekken(content: Mapping[str, Any]) -> Tekken:
    config = content["config"]
    num_specials = config["default_num_special_tokens"]
    listed = content.get("special_tokens")
    specials = dict(enumerate(_FIRST_SPECIALS))
    if listed:
        specials = {token["rank"]: token["token_str"] for token in listed}
    spelled_specials = [specials.get(rank, f"<SPECIAL_{rank}>") for rank in range(num_specials)]
    entries = content["vocab"]
    if (size := config.get("default_vocab_size")) is not None:
        entries = entries[: size - num_specials]
    ranked = [base64.b64decode(entry["token_bytes"]) for entry in entries]
    ranks = {token: rank for rank, token in enumerate(ranked)}
    spelled = ["".join(map(_CHARACTERS.__getitem__, token)) for token in ranked]
    ids = dict(zip(spelled, range(num_specials, num_specials + len(spelled)), strict=True))
    ids.update(zip(spelled_specials, range(num_specials), strict=True))  # these win where a token is written the same
    return Tekken(
        ids=ids,
        merges=NamedPairs(splits_in_two(ranked, ranks), spelled),
        specials=spelled_specials,
        rule=SplitRule((config["pattern"],), takes_wholes=True, adds_bos=True),
    )
