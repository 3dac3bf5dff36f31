from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kernels import reference
from kernels.attention import KVPages, Preparation
from kernels.gpu.store_kv import BLOCK_TOKENS, prepare_and_store, store_kv
from kernels.quantisation import dequantise

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
QUANTISED = [torch.int8, torch.float8_e4m3fn]


def empty_pages(num_pages: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> KVPages:
    shape = (num_pages, num_kv_heads, 16, head_dim)
    tensors = [torch.full(shape, -7.0).to(dtype) for _ in range(2)]
    if dtype in QUANTISED:
        tensors += [torch.full(shape[:3], -7.0) for _ in range(2)]
    return KVPages(*tensors)


def on(device: torch.device, pages: KVPages) -> KVPages:
    tensors = (pages.key, pages.value, pages.key_scales, pages.value_scales)
    return KVPages(*(None if tensor is None else tensor.to(device) for tensor in tensors))


def assert_same_pages(actual: KVPages, expected: KVPages) -> None:
    for name in ("key", "value", "key_scales", "value_scales"):
        one, other = getattr(actual, name), getattr(expected, name)
        if one is not None:
            bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[one.dtype.itemsize]
            assert torch.equal(one.cpu().view(bits), other.view(bits)), name


@pytest.mark.parametrize("page_dtype", DTYPES + QUANTISED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_tokens_land_in_their_slots_and_no_other_slot_changes(
    dtype: torch.dtype, page_dtype: torch.dtype, device: torch.device
) -> None:
    num_tokens = 2 * BLOCK_TOKENS + 3
    key, value = torch.randn(2, num_tokens, 2, 64).to(dtype)
    slots = torch.randperm(5 * 16)[:num_tokens]
    slots[[0, 17, -1]] = -1
    expected = empty_pages(5, 2, 64, page_dtype)
    reference.store_kv(key, value, expected, slots)

    pages = on(device, empty_pages(5, 2, 64, page_dtype))
    store_kv(key.to(device), value.to(device), pages, slots.to(device))

    assert_same_pages(pages, expected)


@pytest.mark.parametrize("page_dtype", QUANTISED)
def test_rows_of_every_size_are_quantised_as_the_reference_does(page_dtype: torch.dtype, device: torch.device) -> None:
    """Zeros, ties, subnormals, the largest floats, and rows with NaN and infinities."""
    generator = torch.Generator().manual_seed(0)
    key = torch.randn(48, 1, 80, generator=generator) * 10.0 ** torch.arange(-44, 37, 81 / 48)[:48, None, None]
    value = torch.randint(-254, 255, (48, 1, 80), generator=generator) / 2.0  # halves: ties for int8 where absmax = 127
    value[:, :, 0] = 127.0
    value[0], value[1, 0, 3], value[2, 0, 79], value[3, 0, 5] = 0.0, torch.nan, torch.inf, -torch.inf
    slots = torch.arange(48)
    expected = empty_pages(3, 1, 80, page_dtype)
    reference.store_kv(key, value, expected, slots)

    pages = on(device, empty_pages(3, 1, 80, page_dtype))
    store_kv(key.to(device), value.to(device), pages, slots.to(device))

    for scales in (pages.value_scales, expected.value_scales):
        assert scales is not None
        assert scales[0, 0, :4].isnan().tolist() == [False, True, True, True]
        scales[0, 0, 1:4] = 0.0  # NaN has many spellings
    assert_same_pages(pages, expected)


@pytest.mark.parametrize("head_dim", [80, 128, 256])
def test_head_dims_are_stored_whole_and_in_bounds(head_dim: int, device: torch.device) -> None:
    key, value = torch.randn(2, 3, 1, head_dim, device=device)
    pages = on(device, empty_pages(2, 1, head_dim, torch.float32))
    keys, values = pages.key, pages.value
    store_kv(key, value, pages, torch.tensor([31, 0, 15], device=device))

    assert torch.equal(keys[[1, 0, 0], 0, [15, 0, 15]], key[:, 0])
    assert torch.equal(values[[1, 0, 0], 0, [15, 0, 15]], value[:, 0])
    assert (keys == -7.0).sum() == (values == -7.0).sum() == 29 * head_dim


def test_keys_and_values_may_be_slices_of_one_projection(device: torch.device) -> None:
    projected = torch.randn(4, (4 + 2 + 2) * 64, device=device)
    key = projected[:, 4 * 64 : 6 * 64].view(4, 2, 64)
    value = projected[:, 6 * 64 :].view(4, 2, 64)
    both = torch.zeros(3, 2, 2, 16, 64, device=device)  # pages that hold keys and values side by side
    store_kv(key, value, KVPages(both[:, 0], both[:, 1]), torch.tensor([33, 2, 40, 3], device=device))

    assert torch.equal(both[[2, 0, 2, 0], 0, :, [1, 2, 8, 3]], key)
    assert torch.equal(both[[2, 0, 2, 0], 1, :, [1, 2, 8, 3]], value)


def test_a_step_without_tokens_stores_nothing(device: torch.device) -> None:
    nothing = torch.empty(0, 1, 64, device=device)
    pages = on(device, empty_pages(1, 1, 64, torch.float32))
    store_kv(nothing, nothing, pages, torch.empty(0, dtype=torch.int64, device=device))
    assert (pages.key == -7.0).all()


def test_quantised_pages_without_scales_are_refused(device: torch.device) -> None:
    key = torch.zeros(1, 1, 64, device=device)
    pages = KVPages(*(torch.zeros(1, 1, 16, 64, dtype=torch.int8, device=device) for _ in range(2)))
    with pytest.raises(ValueError, match=r"torch\.int8 pages need scales"):
        store_kv(key, key, pages, torch.tensor([0], device=device))


def test_slots_past_two_to_the_31_elements_are_reached(
    make_huge_pages: Callable[..., torch.Tensor], device: torch.device
) -> None:
    keys, values = make_huge_pages("keys"), make_huge_pages("values")
    key, value = torch.randn(2, 1, 1, 64, dtype=torch.float16, device=device)
    page = keys.shape[0] - 2
    store_kv(key, value, KVPages(keys, values), torch.tensor([page * 16 + 5], device=device))
    assert torch.equal(keys[page, 0, 5], key[0, 0])
    assert torch.equal(values[page, 0, 5], value[0, 0])


def preparation(head_dim: int, num_tokens: int, *, has_norms: bool, rotary_dim: int) -> Preparation:
    generator = torch.Generator().manual_seed(head_dim)
    query_norm, key_norm = (1 + 0.3 * torch.randn(2, head_dim, generator=generator)) if has_norms else (None, None)
    angles = 100 * torch.rand(num_tokens, 1, rotary_dim // 2, generator=generator)
    return Preparation(query_norm, key_norm, eps=1e-3, rotation=(angles.cos(), angles.sin()) if rotary_dim else None)


def moved(preparation: Preparation, device: torch.device) -> Preparation:
    norms = (preparation.query_norm, preparation.key_norm)
    query_norm, key_norm = (None if norm is None else norm.to(device) for norm in norms)
    cos, sin = preparation.rotation or (None, None)
    rotation = None if cos is None or sin is None else (cos.to(device), sin.to(device))
    return Preparation(query_norm, key_norm, preparation.eps, rotation)


def read(pages: KVPages, slots: torch.Tensor) -> torch.Tensor:
    """Keys in ``slots``, in float32."""
    where = (slots // 16, slice(None), slots % 16)
    rows = pages.key.cpu()[where]
    return rows.float() if pages.key_scales is None else dequantise(rows, pages.key_scales.cpu()[where])


# What one rounding to the dtype, or half a step of the codes of rows up to about 5, amounts to.
ROUNDING = {
    torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.int8: 3e-2, torch.float8_e4m3fn: 0.2
}  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "page_dtype", "head_dim", "has_norms", "rotary_dim"),
    [
        (torch.float32, torch.float32, 64, True, 64),
        (torch.float32, torch.float32, 96, False, 96),
        (torch.float32, torch.float32, 256, True, 0),
        (torch.float16, torch.float16, 80, True, 80),
        (torch.bfloat16, torch.bfloat16, 128, True, 128),
        (torch.bfloat16, torch.int8, 96, True, 96),
        (torch.float16, torch.int8, 256, False, 256),
        (torch.bfloat16, torch.float8_e4m3fn, 64, True, 0),
        (torch.float32, torch.float8_e4m3fn, 128, True, 128),
        (torch.float32, torch.float32, 64, True, 16),
        (torch.float32, torch.float32, 80, False, 32),
        (torch.float16, torch.float16, 96, False, 42),
        (torch.bfloat16, torch.bfloat16, 256, True, 64),
        (torch.bfloat16, torch.int8, 80, True, 20),
        (torch.float32, torch.int8, 24, False, 2),
        (torch.bfloat16, torch.float8_e4m3fn, 128, True, 64),
        (torch.float32, torch.float8_e4m3fn, 24, True, 22),
    ],
)
def test_queries_and_keys_are_normed_and_rotated_on_the_way(
    dtype: torch.dtype,
    page_dtype: torch.dtype,
    head_dim: int,
    has_norms: bool,
    rotary_dim: int,
    device: torch.device,
) -> None:
    num_tokens = BLOCK_TOKENS + 5
    rows = torch.randn(num_tokens, 8, head_dim, generator=torch.Generator().manual_seed(1)).to(dtype)
    query, key, value = rows.split([4, 2, 2], dim=1)  # slices of one projection
    slots = torch.randperm(3 * 16, generator=torch.Generator().manual_seed(2))[:num_tokens]
    slots[[3, -1]] = -1
    prepared = preparation(head_dim, num_tokens, has_norms=has_norms, rotary_dim=rotary_dim)
    expected_query = reference.prepare(query, prepared.query_norm, prepared)
    expected_key = reference.prepare(key, prepared.key_norm, prepared)
    expected = empty_pages(3, 2, head_dim, page_dtype)
    reference.store_kv(key, value, expected, slots)

    pages = on(device, empty_pages(3, 2, head_dim, page_dtype))
    own = rows.to(device, copy=True)
    own_query, own_key, own_value = own.split([4, 2, 2], dim=1)
    prepare_and_store(own_query, own_key, own_value, pages, slots.to(device), moved(prepared, device))

    torch.testing.assert_close(own_query.cpu().double(), expected_query, rtol=0, atol=ROUNDING[dtype])
    assert torch.equal(own[:, 4:].cpu(), rows[:, 4:])  # keys and values stay as they were
    stored = slots >= 0
    torch.testing.assert_close(
        read(pages, slots[stored]).double(), expected_key[stored], rtol=0, atol=ROUNDING[page_dtype]
    )
    untouched = torch.ones(3 * 16, dtype=torch.bool)
    untouched[slots[stored]] = False
    for actual, plain in ((pages.value, expected.value), (pages.value_scales, expected.value_scales)):
        assert actual is None or torch.equal(actual.cpu().float(), plain.float())
    assert (pages.key.cpu().float().transpose(1, 2).flatten(0, 1)[untouched] == -7.0).all()


def test_rows_of_zeros_stay_zeros_when_normed(device: torch.device) -> None:
    rows = torch.zeros(2, 3, 64, device=device)
    pages = on(device, empty_pages(1, 1, 64, torch.float32))
    prepared = moved(preparation(64, 2, has_norms=True, rotary_dim=64), device)
    slots = torch.tensor([4, 5], device=device)
    prepare_and_store(rows[:, :1], rows[:, 1:2], rows[:, 2:], pages, slots, prepared)
    assert torch.equal(rows, torch.zeros_like(rows))
    assert torch.equal(pages.key[0, :, 4:6], torch.zeros_like(pages.key[0, :, 4:6]))


def test_padding_may_share_slots_of_the_null_page(device: torch.device) -> None:
    key, value = torch.randn(2, 6, 1, 64, device=device)
    pages = on(device, empty_pages(2, 1, 64, torch.float32))
    store_kv(key, value, pages, torch.tensor([20, 0, 0, 0, 21, -1], device=device))
    assert torch.equal(pages.key[1, 0, 4:6], key[[0, 4], 0])
    assert (pages.key[1] == -7.0).sum() == 14 * 64


def test_odd_head_dims_and_tables_of_two_layouts_are_refused(device: torch.device) -> None:
    rows, slots = torch.zeros(2, 1, 64, device=device), torch.tensor([0, 1], device=device)
    pages = on(device, empty_pages(1, 1, 64, torch.float32))
    with pytest.raises(ValueError, match="head_dim 63 is odd"):
        store_kv(rows[..., :63], rows[..., :63], pages, slots)
    tables = Preparation(
        rotation=(torch.zeros(2, 1, 32, device=device), torch.zeros(2, 64, device=device)[:, None, :32])
    )
    with pytest.raises(ValueError, match="need the same layout"):
        prepare_and_store(rows, rows, rows, pages, slots, tables)
    wide = Preparation(rotation=(torch.zeros(2, 33, device=device), torch.zeros(2, 33, device=device)))
    with pytest.raises(ValueError, match="33 pairs do not fit heads of 64"):
        prepare_and_store(rows, rows, rows, pages, slots, wide)
