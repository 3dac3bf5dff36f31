"""The most bytes a token can stand for, and the vocabularies of which nothing is certain."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from server.text.length_bound import longest_token_bytes, text_bytes
from server.text.token_spelling import BYTE_LEVEL_ALPHABET, METASPACE, TokenSpelling
from server.text.vocabulary import Vocabulary


def vocabulary(*added: AddedToken, spelling: TokenSpelling = TokenSpelling.SENTENCEPIECE) -> Vocabulary:
    """All bytes, then a run of three spaces made by merging."""
    if spelling is TokenSpelling.BYTE_LEVEL:
        pieces, space = [*BYTE_LEVEL_ALPHABET], "\u0120"
    else:
        pieces, space = [*(f"<0x{byte:02X}>" for byte in range(256)), METASPACE], METASPACE
    pieces += [space * 2, space * 3]
    merges = [(space, space), (space * 2, space)]
    ids = {piece: index for index, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=merges, byte_fallback=True))
    if spelling is TokenSpelling.BYTE_LEVEL:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    else:
        backend.normalizer = normalizers.Replace(" ", METASPACE)
    backend.add_tokens(list(added))
    none: frozenset[int] = frozenset()
    size = backend.get_vocab_size()
    return Vocabulary(backend, spelling, backend.id_to_token, size, none, none, (), (), None, (), {})


@pytest.mark.parametrize("spelling", [TokenSpelling.BYTE_LEVEL, TokenSpelling.SENTENCEPIECE])
@pytest.mark.parametrize("text", [" " * 30, METASPACE * 30, "字" * 9, "a\0 b"])
def test_no_text_has_fewer_tokens_than_its_bytes_by_the_bound(spelling, text) -> None:
    vocab = vocabulary(spelling=spelling)
    assert longest_token_bytes(vocab) == 3
    assert len(vocab.backend.encode(text).ids) * 3 >= text_bytes(text)


def test_an_added_token_counts_as_it_is_written() -> None:
    assert longest_token_bytes(vocabulary(AddedToken("<turn字>", normalized=False))) == 9


def test_nothing_is_certain_where_text_may_vanish_or_join() -> None:
    assert longest_token_bytes(vocabulary(AddedToken("<m>", lstrip=True))) is None
    for normalizer in (normalizers.NFC(), normalizers.Strip(), normalizers.Replace("a", "")):
        vocab = vocabulary()
        vocab.backend.normalizer = normalizer
        assert longest_token_bytes(vocab) is None
    vocab = vocabulary()
    vocab.backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    assert longest_token_bytes(vocab) is None
    assert longest_token_bytes(replace(vocabulary(), spelling=TokenSpelling.SENTENCEPIECE_WITHOUT_BYTES)) is not None
    vocab.backend.pre_tokenizer = None  # type: ignore[assignment]
    vocab.backend.model = models.BPE(vocab={"a": 0, "<unk>": 1}, merges=[], unk_token="<unk>", fuse_unk=True)
    assert longest_token_bytes(vocab) is None
