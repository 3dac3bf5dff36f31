"""The oracle is proven here against torch's own attention; everything else is proven against the oracle."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels import reference
from kernels.attention import KVPages, Preparation
from kernels.quantisation import quantise

BLOCK_SIZE = 16


def paged(tensor: torch.Tensor) -> torch.Tensor:
    """[tokens, heads, dim] laid out in pages 0, 1, 2, ...; slots past the end hold NaN."""
    num_pages = -(-tensor.shape[0] // BLOCK_SIZE)
    pages = torch.full((num_pages * BLOCK_SIZE, *tensor.shape[1:]), float("nan"), dtype=tensor.dtype)
    pages[: tensor.shape[0]] = tensor
    return pages.unflatten(0, (num_pages, BLOCK_SIZE)).transpose(1, 2).contiguous()


def qkv(length: int, num_q_heads: int = 4, num_kv_heads: int = 4, head_dim: int = 32) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(length)
    heads = (num_q_heads, num_kv_heads, num_kv_heads)
    return tuple(torch.randn(length, n, head_dim, dtype=torch.float64, generator=generator) for n in heads)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: float | torch.Tensor | None
) -> torch.Tensor:
    """All of one sequence at once; ``query`` holds its last rows."""
    length = key.shape[0]
    return reference.paged_attention(
        query,
        KVPages(paged(key), paged(value)),
        query_start_loc=torch.tensor([0, query.shape[0]], dtype=torch.int32),
        seq_lens=torch.tensor([length], dtype=torch.int32),
        block_table=torch.arange(-(-length // BLOCK_SIZE), dtype=torch.int32)[None],
        scale=query.shape[2] ** -0.5,
        **options,
    )


def dense(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    q, k, v = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
    output = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
    return output[0].transpose(0, 1)


def assert_equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 40])
def test_a_whole_prompt_equals_causal_attention(length: int, num_kv_heads: int) -> None:
    query, key, value = qkv(length, num_kv_heads=num_kv_heads)
    assert_equal(attend(query, key, value), dense(query, key, value))


@pytest.mark.parametrize("window", [1, 15, 16, 17, 39, 40, 41])
def test_a_window_equals_attention_with_an_explicit_mask(window: int) -> None:
    query, key, value = qkv(40, num_kv_heads=2)
    distance = torch.arange(40)[:, None] - torch.arange(40)
    mask = (distance >= 0) & (distance < window)
    assert_equal(attend(query, key, value, window=window), dense(query, key, value, mask))


@pytest.mark.parametrize("rows", [1, 2, 17])
def test_the_rows_of_a_step_are_the_last_of_the_sequence(rows: int) -> None:
    query, key, value = qkv(40)
    assert_equal(attend(query[-rows:], key, value), dense(query, key, value)[-rows:])


def test_softcap_equals_attention_over_bent_scores() -> None:
    query, key, value = qkv(20)
    scores = torch.einsum("qhd,khd->hqk", query, key) * 32**-0.5
    bent = 2.0 * torch.tanh(scores / 2.0)
    bent = bent.masked_fill(torch.ones(20, 20).triu(1).bool(), float("-inf"))
    expected = torch.einsum("hqk,khd->qhd", bent.softmax(-1), value)
    assert_equal(attend(query, key, value, softcap=2.0), expected)


def test_a_sink_is_a_position_whose_value_is_zero() -> None:
    """Keys of zeros before the text, seen by every row, score 0; so does a sink of 0. Other sinks scale its weight."""
    query, key, value = qkv(20)
    zeros = torch.zeros(1, 4, 32, dtype=torch.float64)
    padded = dense(torch.cat([zeros, query]), torch.cat([zeros, key]), torch.cat([zeros, value]))[1:]
    assert_equal(attend(query, key, value, sinks=torch.zeros(4)), padded)
    twice = [torch.cat([zeros, zeros, rows]) for rows in (query, key, value)]
    # A sink of log 2 weighs as two positions, one of -inf as none.
    heads = torch.tensor([2.0, 1.0, 0.0, 2.0], dtype=torch.float64).log()
    mixed = attend(query, key, value, sinks=heads)
    assert_equal(mixed[:, 1], padded[:, 1])
    assert_equal(mixed[:, [0, 3]], dense(*twice)[2:][:, [0, 3]])
    assert_equal(mixed[:, 2], dense(query, key, value)[:, 2])


def test_sinks_are_neither_scaled_nor_capped() -> None:
    query, key, value = qkv(8)
    output = attend(query * 1e-9, key, value, softcap=1e-6, sinks=torch.full((4,), 3.0))  # other scores are all but 0
    shares = 1.0 / (torch.arange(1, 9) + torch.tensor(3.0).exp())
    torch.testing.assert_close(output, shares[:, None, None] * value.cumsum(0), rtol=0, atol=1e-6)


def test_padding_of_length_0_gets_zeros() -> None:
    query, key, value = qkv(5)
    pages = KVPages(paged(key), paged(value))
    output = reference.paged_attention(
        query[:2],
        pages,
        query_start_loc=torch.tensor([0, 1, 2], dtype=torch.int32),
        seq_lens=torch.tensor([0, 5], dtype=torch.int32),
        block_table=torch.zeros(2, 1, dtype=torch.int32),
        scale=0.2,
        sinks=torch.zeros(4),
    )
    assert torch.equal(output[0], torch.zeros(4, 32, dtype=torch.float64))
    assert output[1].abs().min() > 0


def test_rotary_turns_pairs_like_complex_numbers_and_keeps_their_length() -> None:
    rows = torch.randn(3, 2, 8, dtype=torch.float64)
    angles = torch.randn(3, 1, 4, dtype=torch.float64)
    rotated = reference.prepare(rows, None, Preparation(rotation=(angles.cos(), angles.sin())))
    expected = torch.complex(rows[..., :4], rows[..., 4:]) * torch.polar(torch.ones_like(angles), angles)
    assert_equal(rotated, torch.cat([expected.real, expected.imag], dim=-1))


def test_elements_behind_the_pairs_are_normed_and_not_turned() -> None:
    rows, weight = torch.randn(3, 2, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    normed = torch.nn.functional.rms_norm(rows, (8,), weight, eps=1e-2)
    rotation = (torch.zeros(3, 1, 3), torch.ones(3, 1, 3))  # a quarter turn of three pairs
    turned = reference.prepare(rows, weight, Preparation(eps=1e-2, rotation=rotation))
    assert_equal(turned, torch.cat([-normed[..., 3:6], normed[..., :3], normed[..., 6:]], dim=-1))


def test_heads_are_normed_before_they_are_rotated() -> None:
    rows, weight = torch.randn(3, 2, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    normed = torch.nn.functional.rms_norm(rows, (8,), weight, eps=1e-2)
    assert_equal(reference.prepare(rows, weight, Preparation(eps=1e-2)), normed)
    rotation = (torch.zeros(3, 1, 4), torch.ones(3, 1, 4))  # a quarter turn
    turned = reference.prepare(rows, weight, Preparation(eps=1e-2, rotation=rotation))
    assert_equal(turned, torch.cat([-normed[..., 4:], normed[..., :4]], dim=-1))


def test_ragged_sequences_over_shuffled_pages_equal_each_sequence_alone() -> None:
    lengths, rows = [33, 5, 20], [3, 5, 1]
    sequences = [qkv(length, num_kv_heads=2) for length in lengths]
    pages = [torch.full((8, 2, BLOCK_SIZE, 32), float("nan"), dtype=torch.float64) for _ in range(2)]
    block_table = torch.tensor([[5, 1, 7], [2, 0, 0], [6, 3, 0]], dtype=torch.int32)
    for sequence, (_, key, value) in enumerate(sequences):
        slots = [int(block_table[sequence, p // 16]) * 16 + p % 16 for p in range(key.shape[0])]
        reference.store_kv(key, value, KVPages(*pages), torch.tensor(slots))
    output = reference.paged_attention(
        torch.cat([query[-count:] for (query, _, _), count in zip(sequences, rows, strict=True)]),
        KVPages(*pages),
        query_start_loc=torch.tensor([0, 3, 8, 9], dtype=torch.int32),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        block_table=block_table,
        scale=32**-0.5,
    )
    expected = [dense(*tensors)[-count:] for tensors, count in zip(sequences, rows, strict=True)]
    assert_equal(output, torch.cat(expected))


def test_store_skips_slots_of_minus_one_and_rounds_to_the_pages() -> None:
    key, value = torch.randn(2, 3, 2, 8)
    keys, values = torch.zeros(2, 2, 2, BLOCK_SIZE, 8, dtype=torch.bfloat16)
    reference.store_kv(key, value, KVPages(keys, values), torch.tensor([17, -1, 0]))
    assert torch.equal(keys[[1, 0], :, [1, 0]], key[[0, 2]].bfloat16())
    assert torch.equal(values[[1, 0], :, [1, 0]], value[[0, 2]].bfloat16())
    assert keys.count_nonzero() == values.count_nonzero() == 2 * 2 * 8


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantised_pages_equal_pages_of_their_dequantised_rows(dtype: torch.dtype) -> None:
    query, key, value = qkv(40, num_kv_heads=2)
    shape = (3, 2, BLOCK_SIZE, 32)
    quantised = KVPages(*torch.zeros(2, *shape, dtype=dtype), *torch.zeros(2, *shape[:3]))
    reference.store_kv(key, value, quantised, torch.arange(40))
    plain = KVPages(*torch.zeros(2, *shape, dtype=torch.float64))
    for rows, pages in ((key, plain.key), (value, plain.value)):
        codes, scales = quantise(rows, dtype)
        slots = (torch.arange(40) // BLOCK_SIZE, slice(None), torch.arange(40) % BLOCK_SIZE)
        pages[slots] = codes.double() * scales.double()[..., None]
    layout = (
        torch.tensor([0, 40], dtype=torch.int32),
        torch.tensor([40], dtype=torch.int32),
        torch.arange(3, dtype=torch.int32)[None],
    )
    outputs = [reference.paged_attention(query, pages, *layout, scale=0.2) for pages in (quantised, plain)]
    assert_equal(*outputs)
    assert (outputs[1] - dense(query, key, value)).abs().max() > 1e-4  # and not those of the rows before
