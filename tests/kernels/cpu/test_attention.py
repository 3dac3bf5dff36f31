"""Both CPU backends compute what the reference computes, for every layout a step can have."""

from __future__ import annotations

import pytest
import torch

RAGGED = [(1, 1), (1, 37), (5, 5), (0, 20), (17, 64), (1, 65), (1, 130)]


def assert_close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype = torch.float32) -> None:
    assert actual.dtype == dtype
    if dtype == torch.float32:
        assert (actual.double() - expected).abs().max().item() < 3e-6
    else:  # nothing but the rounding of the output: half a unit in the last place, and a hair for float32 sums
        unit = {torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
        assert ((actual.double() - expected).abs() <= expected.abs() * unit * 1.01 + 3e-6).all()


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize(("num_q_heads", "num_kv_heads"), [(2, 2), (8, 2), (8, 1)])
def test_matches_the_reference_on_a_ragged_mix(backend, batch_of, head_dim, num_q_heads, num_kv_heads, block_size):
    batch = batch_of(
        RAGGED, num_q_heads=num_q_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=block_size
    )
    assert_close(batch.attend(backend), batch.expected())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [64, 80])
@pytest.mark.parametrize(("num_q_heads", "num_kv_heads"), [(2, 2), (8, 2), (8, 1)])
def test_16_bit_tensors_lose_only_the_rounding_of_the_output(
    backend, batch_of, dtype, head_dim, num_q_heads, num_kv_heads
):
    batch = batch_of(RAGGED, num_q_heads=num_q_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype)
    assert_close(batch.attend(backend), batch.expected(), dtype)


@pytest.mark.parametrize("pages_dtype", [torch.bfloat16, torch.float16])
def test_float32_queries_read_16_bit_pages(backend, batch_of, pages_dtype):
    batch = batch_of(RAGGED, pages_dtype=pages_dtype)
    assert_close(batch.attend(backend), batch.expected())


@pytest.mark.parametrize("group", [3, 5, 6, 7])
def test_odd_numbers_of_query_heads_per_kv_head(backend, batch_of, group):
    batch = batch_of([(1, 30), (9, 40), (1, 300)], num_q_heads=2 * group, num_kv_heads=2)
    assert_close(batch.attend(backend), batch.expected())


@pytest.mark.parametrize("head_dim", [4, 8, 20, 72])
def test_head_dims_that_are_no_multiple_of_16(backend, batch_of, head_dim):
    batch = batch_of(RAGGED, head_dim=head_dim)
    assert_close(batch.attend(backend), batch.expected())


@pytest.mark.parametrize("window", [1, 15, 16, 17, 64])
def test_a_window_hides_what_lies_before_it(backend, batch_of, window):
    lengths = [(1, n) for n in (window - 1, window, window + 1, window + 16, window + 270) if n > 0]
    lengths += [(20, 20 + window), (3, window + 2)]
    batch = batch_of(lengths, window=window)
    assert_close(batch.attend(backend, window=window), batch.expected(window=window))


def test_a_long_window_begins_inside_a_later_split(backend, batch_of):
    batch = batch_of([(1, 256), (1, 257), (1, 258), (12, 600)], window=257)
    assert_close(batch.attend(backend, window=257), batch.expected(window=257))


def test_a_window_longer_than_every_sequence_changes_nothing(backend, batch_of):
    batch = batch_of(RAGGED)
    assert torch.equal(batch.attend(backend, window=10_000), batch.attend(backend))


@pytest.mark.parametrize("softcap", [0.5, 5.0, 50.0])
def test_softcap_bends_the_scores(backend, batch_of, softcap):
    batch = batch_of(RAGGED)
    actual = batch.attend(backend, softcap=softcap, scale=1.0)
    expected = batch.expected(softcap=softcap, scale=1.0)
    assert (actual.double() - expected).abs().max().item() < 1e-5


def test_long_sequences_cross_many_splits(backend, batch_of):
    batch = batch_of([(1, 2049), (2, 1024), (1, 1023), (1, 4)], head_dim=32)
    assert_close(batch.attend(backend), batch.expected())


def test_scores_far_apart_do_not_overflow(backend, batch_of):
    batch = batch_of(RAGGED)
    actual = batch.attend(backend, scale=300.0)
    assert (actual.double() - batch.expected(scale=300.0)).abs().max().item() < 1e-3


def test_a_batch_without_tokens_yields_an_empty_output(backend, batch_of):
    assert batch_of([(0, 20)]).attend(backend).shape == (0, 4, 64)
    assert batch_of([]).attend(backend).shape == (0, 4, 64)


def test_query_rows_after_the_last_sequence_are_zero(backend, batch_of):
    batch = batch_of([(3, 20)])
    padded = torch.cat([batch.query, torch.ones(2, 4, 64)])
    output = backend.attend(padded, batch.key_pages, batch.value_pages, batch.metadata, scale=1.0)
    assert torch.equal(output[3:], torch.zeros(2, 4, 64))


def test_queries_may_be_slices_of_a_fused_projection(backend, batch_of):
    batch = batch_of(RAGGED)
    fused = torch.cat([batch.query.flatten(1), torch.randn(batch.query.shape[0], 128)], dim=1)
    view = fused[:, : 4 * 64].unflatten(1, (4, 64))
    output = backend.attend(view, batch.key_pages, batch.value_pages, batch.metadata, scale=0.125)
    assert torch.equal(output, batch.attend(backend))


def test_pages_may_be_strided(backend, batch_of):
    batch = batch_of(RAGGED)
    both = torch.stack([batch.key_pages, batch.value_pages], dim=1)
    output = backend.attend(batch.query, both[:, 0], both[:, 1], batch.metadata, scale=0.125)
    assert torch.equal(output, batch.attend(backend))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(1, 4, 32)}, "does not fit pages"),
        ({"query": torch.zeros(1, 4, 64, dtype=torch.float64)}, "float32, bfloat16 or float16"),
        ({"query": torch.zeros(1, 64, 4).transpose(1, 2)}, "contiguous in query"),
        ({"key_pages": torch.zeros(5, 1, 16, 64)[:, :, ::2]}, r"\[pages, kv_heads, block_size, head_dim\]"),
        ({"scale": 0.0}, "must be positive"),
        ({"window": 0}, "must be positive"),
        ({"softcap": -1.0}, "must be positive"),
    ],
)
def test_wrong_arguments_are_named(native, batch_of, change, message):
    batch = batch_of([(1, 20)])
    arguments = {"query": batch.query, "key_pages": batch.key_pages, "value_pages": batch.value_pages, "scale": 1.0}
    with pytest.raises(ValueError, match=message):
        native.attend(**{**arguments, **change}, metadata=batch.metadata)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("block_table", torch.full((1, 3), 99, dtype=torch.int32), "block_table is no page"),
        ("block_table", torch.zeros((1, 3), dtype=torch.int64), "block_table"),
        ("seq_lens", torch.tensor([99], dtype=torch.int32), "do not fit each other"),
        ("seq_lens", torch.tensor([0], dtype=torch.int32), "do not fit each other"),
        ("query_start_loc", torch.tensor([0, 2], dtype=torch.int32), "do not fit each other"),
        ("query_start_loc", torch.tensor([0, 1], dtype=torch.int64), "query_start_loc"),
    ],
)
def test_a_layout_that_would_read_outside_the_pages_is_refused(native, batch_of, field, value, message):
    from dataclasses import replace

    batch = batch_of([(1, 20)])
    metadata = replace(batch.metadata, **{field: value})
    with pytest.raises(ValueError, match=message):
        native.attend(batch.query, batch.key_pages, batch.value_pages, metadata, scale=1.0)
