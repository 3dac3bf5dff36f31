"""Heads normed, turned and stored in one call, and normed branches added: against torch, in every build and dtype."""

from __future__ import annotations

import pytest
import torch

from kernels.attention import KVPages, Preparation
from kernels.composed import add_normed, prepared
from kernels.cpu.backend import NativeBackend, TorchBackend
from kernels.cpu.library import LibraryError, NativeLibrary, Variant

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}


@pytest.fixture(params=[*Variant, None], ids=lambda variant: "torch" if variant is None else variant.name)
def backend(request: pytest.FixtureRequest) -> NativeBackend | TorchBackend:
    if request.param is None:
        return TorchBackend()
    try:
        return NativeBackend(NativeLibrary(variant=request.param))
    except LibraryError as error:
        pytest.skip(str(error))


def preparation(num_tokens: int, head_dim: int, *, norms: bool, pairs: int) -> Preparation:
    generator = torch.Generator().manual_seed(7)
    weights = [torch.rand(head_dim, generator=generator) + 0.5 for _ in range(2)]
    angles = torch.rand(num_tokens, 1, pairs, generator=generator) * 6
    return Preparation(
        *(weights if norms else (None, None)), eps=1e-6, rotation=(angles.cos(), angles.sin()) if pairs else None
    )


def expected_head(head: torch.Tensor, norm: torch.Tensor | None, made: Preparation, token: int) -> torch.Tensor:
    """By the definition, in float64."""
    x = head.double()
    if norm is not None:
        x = x / (x.square().mean() + made.eps).sqrt() * norm.double()
    if made.rotation is not None:
        cos, sin = (part[token, 0].double() for part in made.rotation)
        turned = x.clone()
        for i, (c, s) in enumerate(zip(cos, sin, strict=True)):
            j = i + len(cos)
            turned[i], turned[j] = x[i] * c - x[j] * s, x[j] * c + x[i] * s
        x = turned
    return x


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(
    ("head_dim", "pairs"),
    [
        (64, 32),
        (64, 0),
        (256, 128),
        (20, 10),
        (64, 16),
        (80, 16),
        (128, 32),
        (96, 12),
        (20, 3),
        (24, 1),
        (33, 16),
        (21, 9),
    ],
)
@pytest.mark.parametrize("norms", [True, False])
def test_heads_are_normed_turned_and_stored(
    backend: NativeBackend | TorchBackend, dtype: torch.dtype, head_dim: int, pairs: int, norms: bool
) -> None:
    num_tokens, num_q_heads, num_kv_heads, block_size = 9, 3, 2, 4
    made = preparation(num_tokens, head_dim, norms=norms, pairs=pairs)
    heads = torch.randn(num_tokens, num_q_heads + 2 * num_kv_heads, head_dim).to(dtype)
    query, key, value = torch.split(heads.clone(), [num_q_heads, num_kv_heads, num_kv_heads], dim=1)
    shape = (4, num_kv_heads, block_size, head_dim)
    pages = KVPages(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype))
    slots = torch.tensor([4, 5, 6, 7, -1, 12, 9, 15, 8])
    backend.prepare_and_store(query, key, value, pages, slots, made)
    for token in range(num_tokens):
        for head in range(num_q_heads):
            expected = expected_head(heads[token, head], made.query_norm, made, token)
            error = (query[token, head].double() - expected).abs().max()
            assert error <= TOLERANCE[dtype] * max(1.0, expected.abs().max())
        slot = int(slots[token])
        if slot < 0:
            continue
        for head in range(num_kv_heads):
            expected = expected_head(heads[token, num_q_heads + head], made.key_norm, made, token)
            stored = pages.key[slot // block_size, head, slot % block_size]
            assert (stored.double() - expected).abs().max() <= TOLERANCE[dtype] * max(1.0, expected.abs().max())
            assert torch.equal(
                pages.value[slot // block_size, head, slot % block_size],
                heads[token, num_q_heads + num_kv_heads + head],
            )
    assert pages.key[0].abs().max() == 0.0


@pytest.mark.parametrize("pairs", [32, 11])
@pytest.mark.parametrize("pages_dtype", [torch.int8, torch.float8_e4m3fn, torch.bfloat16])
def test_prepared_keys_are_quantised_as_stored_ones_are(
    backend: NativeBackend | TorchBackend, pages_dtype: torch.dtype, pairs: int
) -> None:
    made = preparation(5, 64, norms=True, pairs=pairs)
    query, key, value = (torch.randn(5, 2, 64) for _ in range(3))
    slots = torch.tensor([16, 3, 20, 31, 17])

    def pages() -> KVPages:
        codes = [torch.zeros(2, 2, 16, 64, dtype=pages_dtype) for _ in range(2)]
        scales = [torch.zeros(2, 2, 16) for _ in range(2)] if pages_dtype.itemsize == 1 else []
        return KVPages(*codes, *scales)

    together, apart = pages(), pages()
    backend.prepare_and_store(query, key, value, together, slots, made)
    backend.store_kv(prepared(key, made.key_norm, made), value, apart, slots)
    assert torch.equal(together.value.float(), apart.value.float())
    step = 1.01 if pages_dtype is torch.int8 else 2**-3 * 448 if pages_dtype is torch.float8_e4m3fn else 2**-6
    assert (together.key.float() - apart.key.float()).abs().max() <= step


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("columns", [640, 256, 37, 300])
def test_a_normed_branch_is_added(backend: NativeBackend | TorchBackend, dtype: torch.dtype, columns: int) -> None:
    x, branch = torch.randn(70, columns).to(dtype), (3 * torch.randn(70, columns)).to(dtype)
    weight = torch.rand(columns) + 0.5
    normed = branch.double() / (branch.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    expected = x.double() + normed
    actual = backend.add_normed(x.clone(), branch, weight, 1e-6)
    assert (actual.double() - expected).abs().max() <= 2 * TOLERANCE[dtype] * expected.abs().max()
    assert actual.dtype == dtype


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("columns", [640, 37])
def test_a_branch_is_added_as_torch_adds(
    backend: NativeBackend | TorchBackend, dtype: torch.dtype, columns: int
) -> None:
    x, branch = torch.randn(70, columns).to(dtype), (3 * torch.randn(70, columns)).to(dtype)
    assert torch.equal(backend.add(x.clone(), branch), x + branch)


def test_c14_rows_do_not_depend_on_batch_or_threads(best_backend: NativeBackend) -> None:
    x, branch, weight = torch.randn(200, 640), torch.randn(200, 640), torch.rand(640)
    together = best_backend.add_normed(x.clone(), branch, weight, 1e-6)
    alone = [best_backend.add_normed(x[i : i + 1].clone(), branch[i : i + 1], weight, 1e-6) for i in range(200)]
    assert torch.equal(together, torch.cat(alone))


@pytest.fixture
def best_backend() -> NativeBackend:
    return NativeBackend(NativeLibrary())


def test_what_does_not_fit_is_refused(best_backend: NativeBackend) -> None:
    pages = KVPages(torch.zeros(2, 1, 16, 64), torch.zeros(2, 1, 16, 64))
    key = value = torch.zeros(3, 1, 64)
    slots = torch.tensor([16, 17, 18])
    made = preparation(3, 64, norms=True, pairs=32)
    with pytest.raises(ValueError, match="must be like key"):
        best_backend.prepare_and_store(torch.zeros(2, 4, 64), key, value, pages, slots, made)
    wrong = Preparation(torch.ones(63), None, 1e-6, None)
    with pytest.raises(ValueError, match="query_norm"):
        best_backend.prepare_and_store(torch.zeros(3, 4, 64), key, value, pages, slots, wrong)
    wrong = Preparation(None, None, 1e-6, (torch.zeros(2, 32), torch.zeros(2, 32)))
    with pytest.raises(ValueError, match="cosines"):
        best_backend.prepare_and_store(torch.zeros(3, 4, 64), key, value, pages, slots, wrong)
    wrong = Preparation(None, None, 1e-6, (torch.zeros(3, 33), torch.zeros(3, 33)))
    with pytest.raises(ValueError, match=r"cosines \[3, 33\] float32 on cpu turn more pairs than heads of 64 have"):
        best_backend.prepare_and_store(torch.zeros(3, 4, 64), key, value, pages, slots, wrong)
    wrong = Preparation(None, None, 1e-6, (torch.zeros(3, 16), torch.zeros(3, 32)))
    with pytest.raises(ValueError, match="sines"):
        best_backend.prepare_and_store(torch.zeros(3, 4, 64), key, value, pages, slots, wrong)
    with pytest.raises(ValueError, match="alike"):
        best_backend.add_normed(torch.zeros(3, 64), torch.zeros(3, 65), torch.ones(64), 1e-6)
    assert torch.equal(add_normed(torch.zeros(1, 4), torch.ones(1, 4), torch.ones(4), 0.0), torch.ones(1, 4))
