from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from server.text.errors import TokenizerError
from server.text.token_spelling import BYTE_LEVEL_ALPHABET
from server.text.tokenizer import Tokenizer


def save(directory: Path, backend: tokenizers.Tokenizer, config: dict[str, Any] | None = None) -> Path:
    backend.save(str(directory / "tokenizer.json"))
    if config is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def byte_level_backend() -> tokenizers.Tokenizer:
    vocabulary = {character: index for index, character in enumerate(BYTE_LEVEL_ALPHABET)}
    vocabulary["he"] = 256
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[("h", "e")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<bos>", special=True), AddedToken("<eos>", special=True)])
    backend.add_tokens([AddedToken("<naïf>", normalized=False)])
    return backend


def begin_with_bos(backend: tokenizers.Tokenizer) -> None:
    backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 257)])


def sentencepiece_backend() -> tokenizers.Tokenizer:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "h", "e", "\u2581h"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=[("\u2581", "h")], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


TEXTS = ["he he", " he", "  he", "👋🏽 漢 ď", "\n\n1. Alice has 20", "", "<naïf>he", "\x00\x7f"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("backend", [byte_level_backend, sentencepiece_backend])
def test_directory_round_trips_text_and_its_bytes(tmp_path: Path, backend: Any, text: str) -> None:
    tokenizer = Tokenizer.from_directory(save(tmp_path, backend()))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    prefix = b" " if backend is sentencepiece_backend and text else b""
    assert b"".join(map(tokenizer.token_bytes, ids)) == prefix + text.encode()


def test_directory_without_special_token_rules_adds_none(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(save(tmp_path, byte_level_backend()))
    assert tokenizer.encode("he") == [256]
    assert tokenizer.bos_token_id is None
    assert tokenizer.eos_token_ids == ()
    assert tokenizer.vocab_size == 260


def test_post_processor_decides_on_bos_and_can_be_switched_off_per_call(tmp_path: Path) -> None:
    backend = byte_level_backend()
    begin_with_bos(backend)
    tokenizer = Tokenizer.from_directory(save(tmp_path, backend, {"bos_token": "<bos>", "eos_token": "<eos>"}))
    assert tokenizer.encode("he") == [257, 256]
    assert tokenizer.encode("") == [257]
    assert tokenizer.encode("he", add_special_tokens=False) == [256]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (257, (258,))


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize(("post_processor", "expected"), [(True, [257, 256]), (False, [256])])
def test_post_processor_has_the_last_word_over_add_bos_token_in_the_configuration(
    tmp_path: Path, wanted: bool, expected: list[int], post_processor: bool
) -> None:
    backend = byte_level_backend()
    if post_processor:
        begin_with_bos(backend)
    config = {"bos_token": {"content": "<bos>"}, "add_bos_token": wanted}
    assert Tokenizer.from_directory(save(tmp_path, backend, config)).encode("he") == expected


def test_b02_text_and_its_ids_are_the_same_prompt(tmp_path: Path) -> None:
    backend = byte_level_backend()
    begin_with_bos(backend)
    tokenizer = Tokenizer.from_directory(save(tmp_path, backend, {"bos_token": "<bos>"}))
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert tokenizer.encode(tokenizer.decode(ids)) == ids


def test_b18_b12_token_bytes_join_to_the_text_where_a_token_is_part_of_a_character(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(save(tmp_path, byte_level_backend()))
    text = "\n1. 👋 has 20"
    pieces = [tokenizer.token_bytes(i) for i in tokenizer.encode(text)]
    assert b"\xf0" in pieces
    assert b"".join(pieces) == text.encode()


def test_chat_prompt_never_begins_with_bos_twice(tmp_path: Path) -> None:
    backend = byte_level_backend()
    begin_with_bos(backend)
    tokenizer = Tokenizer.from_directory(save(tmp_path, backend, {"bos_token": "<bos>"}))
    assert tokenizer.encode_chat("<bos>he") == [257, 256]
    assert tokenizer.encode_chat("he") == [257, 256]
    assert tokenizer.encode_chat("") == [257]


def test_chat_prompt_gets_no_bos_from_a_tokenizer_that_adds_none(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(save(tmp_path, byte_level_backend(), {"bos_token": "<bos>"}))
    assert tokenizer.encode_chat("he") == [256]
    assert tokenizer.encode_chat("<bos>he") == [257, 256]


def test_chat_prompt_never_ends_with_the_eos_that_plain_prompts_get(tmp_path: Path) -> None:
    backend = byte_level_backend()
    backend.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 258)])
    tokenizer = Tokenizer.from_directory(save(tmp_path, backend, {"eos_token": "<eos>"}))
    assert tokenizer.encode("he") == [256, 258]
    assert tokenizer.encode_chat("he") == [256]


def test_special_token_text_in_a_prompt_becomes_the_token_and_is_skipped_in_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(save(tmp_path, byte_level_backend()))
    ids = tokenizer.encode("he<eos>he")
    assert ids == [256, 258, 256]
    assert tokenizer.decode(ids) == "hehe"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "he<eos>he"


def test_id_without_a_token_has_no_bytes(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(save(tmp_path, byte_level_backend()))
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""
    assert tokenizer.token_bytes(-1) == b""
    assert not tokenizer.is_special(tokenizer.vocab_size)


def test_truncation_stored_in_the_file_does_not_cut_prompts(tmp_path: Path) -> None:
    backend = byte_level_backend()
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    assert Tokenizer.from_directory(save(tmp_path, backend)).encode("hehehe") == [256, 256, 256]


def test_lone_surrogate_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(save(tmp_path, byte_level_backend()))
    with pytest.raises(TokenizerError, match="lone surrogate"):
        tokenizer.encode("a\ud800")


def test_special_tokens_are_named_for_templates(tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<bos>"}, "eos_token": "<eos>", "pad_token": None, "add_bos_token": True}
    tokenizer = Tokenizer.from_directory(save(tmp_path, byte_level_backend(), config))
    assert tokenizer.special_tokens == {"bos_token": "<bos>", "eos_token": "<eos>"}


def test_directory_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"has no tokenizer\.json"):
        Tokenizer.from_directory(tmp_path / "absent")


def test_broken_files_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.from_directory(tmp_path)
    save(tmp_path, byte_level_backend())
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json must hold a JSON object"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json cannot be read"):
        Tokenizer.from_directory(tmp_path)


def test_special_token_that_the_vocabulary_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="'<nope>' as eos_token"):
        Tokenizer.from_directory(save(tmp_path, byte_level_backend(), {"eos_token": "<nope>"}))


def test_decoder_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    backend = byte_level_backend()
    backend.decoder = decoders.WordPiece()
    with pytest.raises(TokenizerError, match=r"\(WordPiece\) is not supported"):
        Tokenizer.from_directory(save(tmp_path, backend))


def test_special_token_that_only_the_configuration_names_is_cut_out_of_the_text(tmp_path: Path) -> None:
    backend = byte_level_backend()
    vocabulary = {**backend.get_vocab(with_added_tokens=False), "<tool>": 257, "<end>": 258}
    plain = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[("h", "e")]))
    plain.pre_tokenizer, plain.decoder = backend.pre_tokenizer, backend.decoder
    config = {"eos_token": "<end>", "additional_special_tokens": ["<tool>"]}
    tokenizer = Tokenizer.from_directory(save(tmp_path, plain, config))
    assert tokenizer.encode("he<tool>he<end>") == [256, 257, 256, 258]
    assert tokenizer.is_special(257)


def test_configuration_has_the_last_word_on_how_an_added_token_takes_spaces(tmp_path: Path) -> None:
    entry = {"content": "<naïf>", "rstrip": True, "special": True, "normalized": False}
    config = {"added_tokens_decoder": {"259": entry}}
    tokenizer = Tokenizer.from_directory(save(tmp_path, byte_level_backend(), config))
    assert tokenizer.encode("he<naïf>  he") == [256, 259, 256]
    assert tokenizer.is_special(259)


def test_added_tokens_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    config = {"added_tokens_decoder": {"seven": {"content": "<x>"}}}
    with pytest.raises(TokenizerError, match=r"added_tokens_decoder in .*tokenizer_config\.json cannot be read"):
        Tokenizer.from_directory(save(tmp_path, byte_level_backend(), config))


def merges_directory(directory: Path, merges: str, **config: Any) -> Path:
    vocabulary = {character: index for index, character in enumerate(BYTE_LEVEL_ALPHABET)}
    (directory / "vocab.json").write_text(json.dumps({**vocabulary, "he": 256}))
    (directory / "merges.txt").write_text(merges)
    for name, content in config.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def test_merges_without_a_configuration_are_cut_as_the_model_type_says(tmp_path: Path) -> None:
    directory = merges_directory(tmp_path, "#version: 0.2\nh e\n", config={"model_type": "gpt2"})
    assert Tokenizer.from_directory(directory).encode("hehe") == [256, 256]


@pytest.mark.parametrize(
    ("merges", "config", "message"),
    [
        ("h e\n", {"tokenizer_class": "BartTokenizer"}, r"tokenizer_class \(BartTokenizer\) is none of GPT2Tokenizer"),
        ("h e\n", {}, r"tokenizer_class \(None\) is none of"),
        ("h z\n", {"tokenizer_class": "GPT2Tokenizer"}, r"'h z' of .*merges\.txt does not join"),
    ],
)
def test_merges_that_cannot_be_served_are_refused(
    tmp_path: Path, merges: str, config: dict[str, str], message: str
) -> None:
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_directory(merges_directory(tmp_path, merges, tokenizer_config=config))


def test_tiktoken_vocabulary_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "qwen.tiktoken").write_text("IQ== 0\n")
    with pytest.raises(TokenizerError, match=r"qwen\.tiktoken is a vocabulary in tiktoken's format"):
        Tokenizer.from_directory(tmp_path)


def test_broken_tekken_vocabulary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text(json.dumps({"config": {}}))
    with pytest.raises(TokenizerError, match=r"tekken\.json is no vocabulary of the tekken kind"):
        Tokenizer.from_directory(tmp_path)


def test_sentencepiece_vocabulary_whose_class_renumbers_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "XGLMTokenizer"}))
    with pytest.raises(TokenizerError, match="belongs to a XGLMTokenizer, which renumbers its pieces"):
        Tokenizer.from_directory(tmp_path)
