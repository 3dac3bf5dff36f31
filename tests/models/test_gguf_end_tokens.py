"""A chat model of a GGUF file ends its turn at its marker, also where no key names it."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from models.gguf_end_tokens import turn_ends
from models.gguf_file import GGUFFile
from models.registry import spec_from_gguf

CHAT = "{{ messages }}"


@pytest.mark.parametrize(
    ("tokens", "ends"),
    [
        (["a", "</s>", "<|im_start|>", "<|im_end|>"], [3]),
        (["<|eom_id|>", "a", "<|eot_id|>"], [0, 2]),
        (["<|end|>", "a", "<|return|>", "<|call|>"], [2, 3]),  # gpt-oss goes on after <|end|>
        (["<|end|>", "a", "<|call|>"], [0]),
        (["a", "b"], []),
    ],
)
def test_markers_are_known_by_their_text(tokens: list[str], ends: list[int]) -> None:
    assert turn_ends({"tokenizer.chat_template": CHAT, "tokenizer.ggml.tokens": tokens}) == ends


def test_a_model_without_a_chat_template_has_no_turns_to_end() -> None:
    assert turn_ends({"tokenizer.ggml.tokens": ["<end_of_turn>"]}) == []


@pytest.mark.parametrize(("eot", "ends"), [(None, (1, 3)), (2, (1, 2))])
def test_a_key_that_names_the_marker_wins(tmp_path: Path, eot: int | None, ends: tuple[int, ...]) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(["a", "</s>", "b", "<|im_end|>"])
    writer.add_chat_template(CHAT)
    writer.add_eos_token_id(1)
    if eot is not None:
        writer.add_eot_token_id(eot)
    writer.add_tensor("token_embd.weight", np.zeros((4, 64), np.float16))
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((64, 64), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert spec_from_gguf(GGUFFile(tmp_path / "m.gguf")).eos_token_ids == ends
