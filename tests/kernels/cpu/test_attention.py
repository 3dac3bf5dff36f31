"""Both CPU backends compute what the reference computes, for every layout a step can have."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.attention import AttentionMetadata, KVPages

INT8 = {
    "key": torch.zeros(5, 1, 16, 64, dtype=torch.int8),
    "value": torch.zeros(5, 1, 16, 64, dtype=torch.int8),
    "key_scales": torch.zeros(5, 1, 16),
    "value_scales": torch.zeros(5, 1, 16),
}
QUANTISED = [torch.int8, torch.float8_e4m3fn]
RAGGED = [(1, 1), (1, 37), (5, 5), (0, 20), (17, 64), (1, 65), (1, 130)]


def assert_close(
    actual: torch.Tensor,
    expected: torch.Tensor,
    dtype: torch.dtype = torch.float32,
    allowed: torch.Tensor | float = 0.0,
) -> None:
    """Off by no more than ``allowed`` and the rounding of the output: half a unit in the last place."""
    assert actual.dtype == dtype
    unit = {torch.float32: 0.0, torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
    hair = 3e-6  # for float32 sums
    assert ((actual.double() - expected).abs() <= expected.abs() * unit * 1.01 + allowed + hair).all()


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("head_dim", [24, 64, 80, 96, 128, 256])
@pytest.mark.parametrize(("num_q_heads", "num_kv_heads"), [(2, 2), (8, 2), (8, 1)])
def test_matches_the_reference_on_a_ragged_mix(backend, batch_of, head_dim, num_q_heads, num_kv_heads, block_size):
    batch = batch_of(
        RAGGED, num_q_heads=num_q_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=block_size
    )
    assert_close(batch.attend(backend), batch.expected())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [24, 64, 80, 96])
@pytest.mark.parametrize(("num_q_heads", "num_kv_heads"), [(2, 2), (8, 2), (8, 1)])
def test_16_bit_tensors_lose_only_roundings_to_their_dtype(
    backend, batch_of, dtype, head_dim, num_q_heads, num_kv_heads
):
    batch = batch_of(RAGGED, num_q_heads=num_q_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype)
    expected, allowed = batch.rounded_expected(backend)
    assert_close(batch.attend(backend), expected, dtype, allowed)


@pytest.mark.parametrize("pages_dtype", [torch.bfloat16, torch.float16])
def test_float32_queries_read_16_bit_pages(backend, batch_of, pages_dtype):
    batch = batch_of(RAGGED, pages_dtype=pages_dtype)
    expected, allowed = batch.rounded_expected(backend)
    assert_close(batch.attend(backend), expected, allowed=allowed)


@pytest.mark.parametrize("pages_dtype", [torch.bfloat16, *QUANTISED])
@pytest.mark.parametrize("head_dim", [32, 64, 96, 256])
def test_products_of_bfloat16_numbers_are_as_good_as_the_pages(native, batch_of, head_dim, pages_dtype):
    """Rounding queries and weights costs no more than rounding keys and values to bfloat16 does."""
    lengths = [(1, 700), (90, 300)]
    batch = batch_of(lengths, head_dim=head_dim, pages_dtype=pages_dtype)
    error = (batch.attend(native).double() - batch.expected()).abs()
    exact, rounded = (
        batch_of(lengths, head_dim=head_dim, pages_dtype=dtype) for dtype in (torch.float32, torch.bfloat16)
    )
    of_pages = (rounded.expected() - exact.expected()).abs()
    assert error.mean() < 1.1 * of_pages.mean()
    assert error.max() < 2 * of_pages.max()


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_products_of_bytes_are_nearly_exact(native, batch_of, head_dim):
    """Queries and weights have 16 bits: with 8 the error is a hundred times as large."""
    batch = batch_of([(1, 700), (20, 300)], head_dim=head_dim, pages_dtype=torch.int8)
    assert (batch.attend(native).double() - batch.expected()).abs().mean() < 1e-5


@pytest.mark.parametrize("head_dim", [64, 512])
@pytest.mark.parametrize("code", [127, -127])
def test_sums_of_the_largest_codes_fit(native_each_variant, batch_of, head_dim, code):
    """All products of a key, and of a column of values, are as large as they can be, and of one sign."""
    batch = batch_of([(1, 64), (20, 130)], head_dim=head_dim, pages_dtype=torch.int8)
    batch.query.fill_(3.0 if code > 0 else -3.0)
    batch.pages.key.fill_(127)
    batch.pages.value.fill_(code)
    batch.pages.key_scales.fill_(0.01)
    batch.pages.value_scales.fill_(0.01)
    output = batch.attend(native_each_variant)
    assert_close(output, torch.full_like(output, code * 0.01).double(), allowed=1e-4)


def all_codes(scale: float) -> tuple[torch.Tensor, KVPages]:
    """Every number that e4m3 has, times ``scale``, and a page whose slot 0 has them as key and value, slot 1 zeros."""
    codes = torch.arange(256, dtype=torch.uint8)
    codes[[127, 255]] = 0  # no numbers
    page = torch.zeros(1, 1, 16, 256, dtype=torch.uint8)
    page[0, 0, 0] = codes
    page = page.view(torch.float8_e4m3fn)
    scales = torch.full((1, 1, 16), scale)
    return codes.view(torch.float8_e4m3fn).double() * scale, KVPages(page, page.clone(), scales, scales.clone())


def layout(num_seqs: int, seq_len: int) -> AttentionMetadata:
    """One query row a sequence, over page 0."""
    return AttentionMetadata(
        query_start_loc=torch.arange(num_seqs + 1, dtype=torch.int32),
        seq_lens=torch.full((num_seqs,), seq_len, dtype=torch.int32),
        block_table=torch.zeros((num_seqs, 1), dtype=torch.int32),
        slot_mapping=torch.full((num_seqs,), -1),
        max_query_len=1,
        max_seq_len=seq_len,
    )


@pytest.mark.parametrize("num_q_heads", [1, 4, 16])
@pytest.mark.parametrize("scale", [2.0**-60, 2.0**-9, 2.0**60])
def test_every_code_of_fp8_is_read_as_a_value(native_each_variant, num_q_heads, scale):
    numbers, pages = all_codes(scale)
    output = native_each_variant.attend(torch.ones(1, num_q_heads, 256), pages, layout(1, 1), scale=1.0)
    assert torch.equal(output[0].double(), numbers.expand(num_q_heads, -1))


@pytest.mark.parametrize("num_q_heads", [1, 4, 256])
def test_every_code_of_fp8_is_read_as_a_key(native_each_variant, num_q_heads):
    """A query that has a single element weighs slot 0 by the sigmoid of that element of its key."""
    numbers, pages = all_codes(2.0**-6)
    pages.value.zero_()
    pages.value[0, 0, 0] = 1.0
    query = torch.eye(256).reshape(256 // num_q_heads, num_q_heads, 256)
    output = native_each_variant.attend(query, pages, layout(len(query), 2), scale=1.0)
    expected = numbers.sigmoid() * 2.0**-6
    rounding = 2**-8 if native_each_variant.library.variant.has_bf16 else 1e-6  # of weights to bfloat16
    assert ((output.reshape(256, 256).double() - expected[:, None]).abs() <= expected[:, None] * rounding).all()


@pytest.mark.parametrize("head_dim", [64, 128])
def test_queries_that_int8_pages_cannot_be_multiplied_with(native, batch_of, head_dim):
    """One of zeros takes the mean of all values, a tiny one nearly so, an infinite one spoils its own row alone."""
    batch = batch_of([(4, 100)], head_dim=head_dim, pages_dtype=torch.int8)
    batch.query[0] = 0.0
    batch.query[1] *= 1e-38
    batch.query[2, :, 5] = float("inf")
    output = batch.attend(native)
    assert output[2].isnan().all()
    assert_close(output[[0, 1, 3]], batch.expected()[[0, 1, 3]], allowed=1e-4)


@pytest.mark.parametrize("pages_dtype", QUANTISED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [20, 64, 80, 96])
@pytest.mark.parametrize(("num_q_heads", "num_kv_heads"), [(2, 2), (8, 2)])
def test_quantised_pages_read_as_scale_times_code(
    backend, batch_of, head_dim, num_q_heads, num_kv_heads, dtype, pages_dtype
):
    shape = {"num_q_heads": num_q_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
    batch = batch_of(RAGGED, dtype=dtype, pages_dtype=pages_dtype, **shape)
    expected, allowed = batch.rounded_expected(backend)
    assert_close(batch.attend(backend), expected, dtype, allowed)


@pytest.mark.parametrize("pages_dtype", QUANTISED)
@pytest.mark.parametrize("options", [{"window": 17}, {"window": 300}, {"softcap": 0.5}, {"window": 40, "softcap": 5.0}])
def test_quantised_pages_under_windows_and_softcaps(backend, batch_of, options, pages_dtype):
    lengths = [(1, 16), (1, 17), (1, 18), (1, 320), (20, 40), (9, 600), (3, 19)]
    batch = batch_of(lengths, pages_dtype=pages_dtype, block_size=32, window=options.get("window"))
    expected, allowed = batch.rounded_expected(backend, **options)
    assert_close(batch.attend(backend, **options), expected, allowed=allowed)


@pytest.mark.parametrize("pages_dtype", QUANTISED)
def test_rows_of_zeros_and_of_very_different_sizes(backend, batch_of, pages_dtype):
    """Keys of zeros share the weight evenly; values from 1e-6 to 1e6 keep their own scales."""
    batch = batch_of([(1, 40), (20, 50)], pages_dtype=pages_dtype)
    batch.pages.key_scales[batch.pages.key_scales.isfinite()] = 0.0
    batch.pages.value_scales.mul_(10.0 ** torch.arange(-6, 6, 12 / 16))
    expected, allowed = batch.rounded_expected(backend)
    error = (batch.attend(backend).double() - expected).abs()
    assert (error <= expected.abs() * 1e-5 + 1e-2 + allowed).all()
    assert expected.abs().max() > 1e3


@pytest.mark.parametrize("pages_dtype", QUANTISED)
def test_a_key_that_reads_as_nan_shows_in_the_rows_that_see_it(backend, batch_of, pages_dtype):
    batch = batch_of([(1, 20), (1, 20)], pages_dtype=pages_dtype)
    page = int(batch.metadata.block_table[0, 1])
    batch.pages.key_scales[page, 0, 2] = float("nan")
    output = batch.attend(backend)
    assert output[0].isnan().all()
    assert not output[1].isnan().any()


@pytest.mark.parametrize("sinks", [None, torch.zeros(4)])
@pytest.mark.parametrize("pages_dtype", QUANTISED)
def test_a_key_that_reads_as_nan_shows_where_it_is_all_that_is_seen_of_a_split(native, batch_of, pages_dtype, sinks):
    batch = batch_of([(1, 257)], pages_dtype=pages_dtype)
    batch.pages.key_scales[int(batch.metadata.block_table[0, 16]), 0, 0] = float("nan")
    assert batch.attend(native, sinks=sinks).isnan().all()


@pytest.mark.parametrize("head_dim", [20, 64])
def test_a_value_that_reads_as_nan_shows_however_little_it_weighs(native, batch_of, head_dim):
    batch = batch_of([(1, 40)], head_dim=head_dim, pages_dtype=torch.int8)
    batch.query.mul_(1000.0)
    batch.pages.value_scales[int(batch.metadata.block_table[0, 0]), 0, 5] = float("nan")
    assert batch.attend(native).isnan().all()


def test_a_value_that_reads_as_nan_is_nothing_to_rows_that_do_not_see_it(native, batch_of):
    batch = batch_of([(20, 40)], pages_dtype=torch.int8)
    expected = batch.attend(native)
    batch.pages.value_scales[int(batch.metadata.block_table[0, 2]), 0, 3] = float("nan")  # position 35
    output = batch.attend(native)
    assert torch.equal(output[:15], expected[:15])
    assert output[15:].isnan().all()


@pytest.mark.parametrize("pages_dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("group", [1, 2, 3, 4])
@pytest.mark.parametrize("window", [None, 7])
def test_a_value_that_is_infinite_is_nothing_to_rows_that_do_not_see_it(
    native_each_variant, batch_of, pages_dtype, group, window
):
    if pages_dtype == torch.bfloat16 and native_each_variant.library.variant.has_bf16:
        pytest.skip("products of bfloat16 numbers weigh keys by pairs, for all rows of a block")
    batch = batch_of([(20, 40)], num_q_heads=group, num_kv_heads=1, pages_dtype=pages_dtype, window=window)
    expected = batch.attend(native_each_variant, window=window)
    batch.pages.value[int(batch.metadata.block_table[0, 1]), 0, 13] = float("inf")  # position 29: row 9
    output = batch.attend(native_each_variant, window=window)
    last = 20 if window is None else 9 + window
    assert torch.equal(output[:9], expected[:9])
    assert not output[9:last].isfinite().any()
    assert torch.equal(output[last:], expected[last:])


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


SINKS = torch.tensor([-2.0, 0.0, 1.0, 3.0, 50.0, float("-inf")])


@pytest.mark.parametrize("options", [{}, {"window": 17}, {"softcap": 2.0}, {"window": 300, "softcap": 0.5}])
def test_sinks_take_their_share(backend, batch_of, options):
    lengths = [(1, 1), (1, 40), (20, 33), (1, 700), (3, 1100)]
    batch = batch_of(lengths, num_q_heads=6, num_kv_heads=2, window=options.get("window"))
    assert_close(batch.attend(backend, sinks=SINKS, **options), batch.expected(sinks=SINKS, **options))


@pytest.mark.parametrize("pages_dtype", [torch.float32, torch.bfloat16, torch.float16, *QUANTISED])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [20, 64])
def test_every_variant_and_dtype_knows_sinks(native_each_variant, batch_of, head_dim, dtype, pages_dtype):
    shape = {"num_q_heads": 6, "num_kv_heads": 2, "head_dim": head_dim, "dtype": dtype, "pages_dtype": pages_dtype}
    batch = batch_of([(1, 1), (1, 40), (20, 33), (1, 700)], **shape)
    expected, allowed = batch.rounded_expected(native_each_variant, sinks=SINKS)
    assert_close(batch.attend(native_each_variant, sinks=SINKS), expected, dtype, allowed)


def test_sinks_of_16_bits_are_read_as_the_numbers_they_are(backend, batch_of):
    batch = batch_of(RAGGED)
    sinks = torch.tensor([-1.0, 0.3, 0.7, 2.1]).bfloat16()
    assert torch.equal(batch.attend(backend, sinks=sinks), batch.attend(backend, sinks=sinks.float()))


def test_a_sink_far_above_all_scores_leaves_nothing_and_one_far_below_everything(backend, batch_of):
    batch = batch_of(RAGGED)
    output = batch.attend(backend, sinks=torch.tensor([1e4, -1e4, 3e38, -3e38]))
    assert torch.equal(output[:, ::2], torch.zeros_like(output[:, ::2]))
    assert torch.equal(output[:, 1::2], batch.attend(backend)[:, 1::2])


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
    output = backend.attend(padded, batch.pages, batch.metadata, scale=1.0)
    assert torch.equal(output[3:], torch.zeros(2, 4, 64))


def test_queries_may_be_slices_of_a_fused_projection(backend, batch_of):
    batch = batch_of(RAGGED)
    fused = torch.cat([batch.query.flatten(1), torch.randn(batch.query.shape[0], 128)], dim=1)
    view = fused[:, : 4 * 64].unflatten(1, (4, 64))
    output = backend.attend(view, batch.pages, batch.metadata, scale=0.125)
    assert torch.equal(output, batch.attend(backend))


@pytest.mark.parametrize("pages_dtype", [torch.float32, *QUANTISED])
def test_pages_may_be_strided(backend, batch_of, pages_dtype):
    batch = batch_of(RAGGED, pages_dtype=pages_dtype)
    pages = batch.pages
    strided = list(torch.stack([pages.key, pages.value], dim=1).unbind(1))
    if pages.key_scales is not None:
        strided += torch.stack([pages.key_scales, pages.value_scales], dim=1).unbind(1)
    output = backend.attend(batch.query, KVPages(*strided), batch.metadata, scale=0.125)
    assert torch.equal(output, batch.attend(backend))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(1, 4, 32)}, "does not fit pages"),
        ({"query": torch.zeros(1, 4, 64, dtype=torch.float64)}, "float32, bfloat16 or float16"),
        ({"query": torch.zeros(1, 64, 4).transpose(1, 2)}, "contiguous in query"),
        ({"key": torch.zeros(5, 1, 16, 64)[:, :, ::2]}, r"\[pages, kv_heads, block_size, head_dim\]"),
        ({"key_scales": torch.zeros(5, 1, 16)}, "are not quantised and take no key_scales"),
        (INT8 | {"value_scales": None}, "value_scales must be .* not missing"),
        (INT8 | {"key_scales": torch.zeros(5, 1, 8)}, "key_scales must be .* one per quantised row"),
        (INT8 | {"key_scales": torch.zeros(5, 16, 1).mT}, "each page of key_scales must be contiguous"),
        (INT8 | {"key": torch.zeros(5, 1, 16, 64).half()}, "of one dtype"),
        ({"scale": 0.0}, "must be positive"),
        ({"window": 0}, "must be positive"),
        ({"sinks": torch.zeros(3)}, r"sinks \[3\] float32 on cpu must be 4 contiguous float32 numbers"),
        ({"softcap": -1.0}, "must be positive"),
    ],
)
def test_wrong_arguments_are_named(native, batch_of, change, message):
    batch = batch_of([(1, 20)])
    pages = replace(batch.pages, **{name: value for name, value in change.items() if name in KVPages.__slots__})
    options = {name: value for name, value in change.items() if name not in KVPages.__slots__}
    arguments = {"query": batch.query, "pages": pages, "scale": 1.0, "metadata": batch.metadata}
    with pytest.raises(ValueError, match=message):
        native.attend(**{**arguments, **options})


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
    batch = batch_of([(1, 20)])
    metadata = replace(batch.metadata, **{field: value})
    with pytest.raises(ValueError, match=message):
        native.attend(batch.query, batch.pages, metadata, scale=1.0)
