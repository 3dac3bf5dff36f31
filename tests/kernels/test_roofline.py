"""Bytes and FLOPs against sums done by hand, and floors against data sheets."""

from __future__ import annotations

import pytest

from kernels.roofline import (
    A100,
    DATA_SHEETS,
    H100,
    H200,
    MI300X,
    AttentionShape,
    Cost,
    cascade,
    decode,
    gate,
    gemm,
    grouped_gemm,
    prefill,
    quantised_gemm,
    reduce,
    rms_norm,
    rotate,
    sample,
    store_kv,
)

LLAMA_8B = AttentionShape(num_q_heads=32, num_kv_heads=8, head_dim=128)
INT8_PAGES = AttentionShape(num_q_heads=32, num_kv_heads=8, head_dim=128, page_bytes=1)
TINY = AttentionShape(num_q_heads=2, num_kv_heads=1, head_dim=4)


def test_a_token_of_llama_8b_takes_4_kib_in_a_layer() -> None:
    assert LLAMA_8B.stored_bytes == 2 * 8 * 128 * 2 == 4096
    assert INT8_PAGES.stored_bytes == 2 * 8 * (128 + 4) == 2112
    assert LLAMA_8B.row_bytes == 8192


def test_storing_reads_and_writes_every_key_and_value() -> None:
    assert store_kv(LLAMA_8B, 10) == Cost(10 * (4096 + 4096))
    assert store_kv(INT8_PAGES, 10) == Cost(10 * (4096 + 2112))


def test_decode_reads_each_sequences_pages_once() -> None:
    # one row of 32 heads in, one out; 1,000 + 24 tokens; q k and weights v: 2 x 2 x 128 per key in 32 heads
    assert decode(LLAMA_8B, [1000, 24]) == Cost(2 * 2 * 8192 + 1024 * 4096, 1024 * 32 * 512)
    assert decode(LLAMA_8B, [1000, 24], window=100) == Cost(2 * 2 * 8192 + 124 * 4096, 124 * 32 * 512)
    assert decode(LLAMA_8B, []) == Cost(0)


def test_a_shared_prefix_crosses_the_bus_once_and_is_multiplied_by_all() -> None:
    apart = decode(LLAMA_8B, [1010, 1020])
    shared = cascade(LLAMA_8B, 1000, [10, 20])
    assert apart.flops == shared.flops
    assert apart.bytes - shared.bytes == 1000 * 4096


def test_reducing_reads_float32_partials() -> None:
    # 2 heads x 3 splits x (4 elements + 1 log-sum-exp) x 4 bytes, and a row of 2 x 4 elements of 2 bytes
    assert reduce(TINY, 1, 3) == Cost(120 + 16)


def test_prefill_multiplies_each_row_with_what_it_sees() -> None:
    # rows 1, 2, 3 see 1 + 2 + 3 keys; 2 heads x 4 elements x 4
    assert prefill(TINY, [3], [3]) == Cost(3 * 2 * 16 + 3 * 16, 6 * 32)
    # a chunk of 2 behind 3 sees 4 + 5
    assert prefill(TINY, [2], [5]) == Cost(2 * 2 * 16 + 5 * 16, 9 * 32)
    # with a window of 2: 2 + 2, and of the keys those of positions 2, 3, 4
    assert prefill(TINY, [2], [5], window=2) == Cost(2 * 2 * 16 + 3 * 16, 4 * 32)
    assert prefill(TINY, [3, 2, 0], [3, 5, 9]) == prefill(TINY, [3], [3]) + prefill(TINY, [2], [5])


def test_small_kernels_move_their_rows_in_and_out() -> None:
    assert rms_norm(10, 64) == Cost(10 * 64 * 2 * 2 + 256)
    assert rms_norm(10, 64, has_residual=True) == Cost(10 * 64 * 2 * 4 + 256)
    assert rotate(10, 4, 64, 32) == Cost(10 * (2 * 4 * 64 * 2 + 16 * 2 * 4))
    assert gate(10, 64) == Cost(10 * 3 * 64 * 2)
    assert sample(256, 262_144) == Cost(256 * (1_048_576 + 8))


def test_products_read_their_weight_once() -> None:
    assert gemm(3, 5, 7) == Cost((3 * 7 + 3 * 5 + 5 * 7) * 2, 2 * 3 * 5 * 7)
    assert grouped_gemm([3, 0, 1], 5, 7) == gemm(3, 5, 7) + gemm(1, 5, 7)
    assert quantised_gemm(1, 64, 128, bits=8) == Cost(64 * 128 + 64 * 4 + 192 * 2, 2 * 64 * 128)
    assert quantised_gemm(1, 64, 128, bits=4, group=32) == Cost(64 * 64 + 64 * 4 * 4 + 192 * 2, 2 * 64 * 128)


@pytest.mark.parametrize(("sheet", "microseconds"), [(A100, 500.0), (H100, 304.3), (H200, 212.4), (MI300X, 192.4)])
def test_moving_a_gigabyte_takes_what_the_data_sheet_says(sheet: object, microseconds: float) -> None:
    assert sheet in DATA_SHEETS
    floor = sheet.floor_seconds(Cost(1_019_500_000))  # type: ignore[attr-defined]
    assert floor * 1e6 == pytest.approx(microseconds, rel=1e-3)


def test_the_slower_of_memory_and_matrix_units_decides() -> None:
    assert A100.floor_seconds(Cost(2_039_000, 312_000_000)) == pytest.approx(1e-6)
    assert A100.floor_seconds(Cost(2_039_000, 624_000_000)) == pytest.approx(2e-6)
    assert A100.floor_seconds(Cost(0, 624_000_000), operand_bytes=1) == pytest.approx(1e-6)


def test_a_step_of_llama_8b_at_batch_1_is_bound_by_its_weights() -> None:
    """8.03 billion parameters of 2 bytes, at 4.8 TB/s: 3.3 ms; its matrix units would need 0.02 ms."""
    step = gemm(1, 8_030_000_000 // 4096, 4096)
    assert H200.floor_seconds(step) == pytest.approx(3.346e-3, rel=1e-3)
