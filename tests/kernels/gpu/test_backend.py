from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kernels import composed
from kernels.attention import AttentionBackend, AttentionMetadata, KVPages
from kernels.gpu.backend import TritonBackend
from kernels.gpu.dense_gemm import dense_gemm
from kernels.gpu.moe_gemm import fixed_grouped_gemm, grouped_gemm

BACKEND: AttentionBackend = TritonBackend()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("pages_dtype", [None, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize(
    "query_lens", [[1, 1, 1], [6, 1, 5], [12, 17, 2], [1, 0, 3]], ids=["decodes", "mixed", "prompts", "empty row"]
)
def test_steps_of_every_kind_equal_the_reference(
    query_lens: list[int], pages_dtype: torch.dtype | None, dtype: torch.dtype, make_batch: Callable
) -> None:
    shape = {"num_q_heads": 4, "num_kv_heads": 2, "dtype": dtype, "pages_dtype": pages_dtype}
    batch = make_batch([40, 33, 17], query_lens, window=24, **shape)
    query = batch.query
    output = BACKEND.attend(query, batch.pages, batch.metadata, scale=batch.scale, window=24, softcap=30.0)
    assert (output.shape, output.dtype) == (query.shape, query.dtype)
    batch.check(output, softcap=30.0)


@pytest.mark.parametrize("pages_dtype", [torch.float32, torch.int8, torch.float8_e4m3fn])
def test_a_decode_has_the_same_bits_beside_a_prefill_chunk(pages_dtype: torch.dtype, make_batch: Callable) -> None:
    batch = make_batch([90, 40], [1, 8], pages_dtype=pages_dtype)
    mixed = BACKEND.attend(batch.query, batch.pages, batch.metadata, scale=batch.scale)
    only = AttentionMetadata(
        query_start_loc=batch.metadata.query_start_loc[:2],
        seq_lens=batch.metadata.seq_lens[:1],
        block_table=batch.metadata.block_table[:1],
        slot_mapping=batch.metadata.slot_mapping,
        max_query_len=1,
        max_seq_len=90,
    )
    alone = BACKEND.attend(batch.query[:1], batch.pages, only, scale=batch.scale)
    assert torch.equal(mixed[:1], alone)


@pytest.mark.parametrize("window", [None, 20])
def test_g10_a_sequence_grown_token_by_token_matches_dense_attention(window: int | None, device: torch.device) -> None:
    """Store and attend, first a chunk, then one token a step, across pages; behind a window pages are given up."""
    length, chunk, block_size = 38, 14, 16
    query, key, value = torch.randn(3, length, 1, 64, generator=torch.Generator().manual_seed(0))
    distance = torch.arange(length)[:, None] - torch.arange(length)
    mask = (distance >= 0) & (distance < (window or length))
    dense = torch.nn.functional.scaled_dot_product_attention(
        *(tensor.double().transpose(0, 1) for tensor in (query, key, value)), attn_mask=mask
    ).transpose(0, 1)

    pages = torch.full((2, 5, 1, block_size, 64), float("nan"), device=device)
    block_table = torch.tensor([[3, 1, 4]], dtype=torch.int32)
    steps = [(0, chunk), *((position, position + 1) for position in range(chunk, length))]
    for start, end in steps:
        slots = [int(block_table[0, p // block_size]) * block_size + p % block_size for p in range(start, end)]
        metadata = AttentionMetadata(
            query_start_loc=torch.tensor([0, end - start], dtype=torch.int32, device=device),
            seq_lens=torch.tensor([end], dtype=torch.int32, device=device),
            block_table=block_table.to(device),
            slot_mapping=torch.tensor(slots, device=device),
            max_query_len=end - start,
            max_seq_len=end,
        )
        new = slice(start, end)
        BACKEND.store_kv(key[new].to(device), value[new].to(device), KVPages(*pages), metadata.slot_mapping)
        output = BACKEND.attend(query[new].to(device), KVPages(*pages), metadata, scale=64**-0.5, window=window)
        torch.testing.assert_close(output.cpu().double(), dense[new], rtol=0, atol=5e-6)
        if window is not None:  # the next row sees positions from end - window + 1 on
            for column in range((end - window + 1) // block_size):
                pages[:, block_table[0, column]] = float("nan")
                block_table[0, column] = 0


def test_a_batch_may_be_a_view_into_larger_tables(make_batch: Callable) -> None:
    batch = make_batch([30, 40, 20])
    metadata = batch.metadata
    table = torch.full((5, 7), 10**6, dtype=torch.int32, device=batch.query.device)
    table[:3, : metadata.block_table.shape[1]] = metadata.block_table
    moved = replace(metadata, block_table=table[:3])
    arguments = (batch.query, batch.pages)
    batch.check(BACKEND.attend(*arguments, moved, scale=batch.scale))


def test_float_weights_have_a_product_of_their_own_in_deterministic_mode_only() -> None:
    assert TritonBackend(is_deterministic=True).dense_product is dense_gemm
    assert BACKEND.dense_product is None
    assert TritonBackend(is_deterministic=True).expert_product is fixed_grouped_gemm
    assert BACKEND.expert_product is grouped_gemm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_between_products_equal_those_of_torch(dtype: torch.dtype, device: torch.device) -> None:
    x, branch = torch.randn(2, 3, 128, generator=torch.Generator().manual_seed(0)).to(dtype).to(device)
    weight = torch.linspace(-1, 1, 128, device=device)
    near = {"rtol": 2.0**-7, "atol": 1e-6} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(BACKEND.normed(x, weight, 1e-5), composed.normed(x, weight, 1e-5), **near)
    expected = composed.add_normed(x.clone(), branch, weight, 1e-5)
    torch.testing.assert_close(BACKEND.add_normed(x.clone(), branch, weight, 1e-5), expected, **near)
    (normed, total), expected = (one.normed_sum(x, branch, weight, 1e-5) for one in (BACKEND, composed))
    torch.testing.assert_close(normed, expected[0], **near)
    assert torch.equal(total, expected[1])
    for activation in ("silu", "gelu", "gelu_tanh", "swiglu_oai"):
        near_gated = {"rtol": 2.0**-6, "atol": 1e-2} if dtype == torch.bfloat16 else near
        expected = composed.gated(x, activation)
        torch.testing.assert_close(BACKEND.gated(x, activation), expected, **near_gated)
