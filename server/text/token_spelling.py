"""From a token's spelling in its vocabulary to the exact bytes it stands for.

Two spellings cover the field. *Byte-level* vocabularies (GPT-2 and its heirs) write each byte as one printable
character. *SentencePiece* vocabularies write a space as U+2581 and a byte without a piece of its own as ``<0xNN>``.
Knows nothing of ids, special tokens or models.
"""

from __future__ import annotations

import enum
import re
from typing import Final

METASPACE: Final = "\u2581"

_BYTE_PIECE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenSpelling(enum.Enum):
    """How a vocabulary writes bytes as text."""

    BYTE_LEVEL = "byte-level"
    SENTENCEPIECE = "sentencepiece"
    SENTENCEPIECE_WITHOUT_BYTES = "sentencepiece without byte pieces"


def _byte_level_alphabet() -> dict[str, int]:
    """Character -> byte: printable Latin-1 stands for itself, the other 68 bytes follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


BYTE_LEVEL_ALPHABET: Final = _byte_level_alphabet()


def spelled_bytes(piece: str, spelling: TokenSpelling) -> bytes:
    """The bytes that ``piece`` stands for; a byte-level piece outside the alphabet stands for its own UTF-8."""
    if spelling is TokenSpelling.BYTE_LEVEL:
        try:
            return bytes([BYTE_LEVEL_ALPHABET[character] for character in piece])
        except KeyError:
            return piece.encode("utf-8", "replace")
    if spelling is TokenSpelling.SENTENCEPIECE and (match := _BYTE_PIECE.fullmatch(piece)):
        return bytes([int(match[1], 16)])
    return piece.replace(METASPACE, " ").encode("utf-8", "replace")
