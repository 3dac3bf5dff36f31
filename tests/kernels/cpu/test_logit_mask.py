"""The native mask forbids what has no bit, and touches nothing else, in every build."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.cpu.backend import NativeBackend
from kernels.cpu.logit_mask import mask_logits

INF, NAN = math.inf, math.nan


def random_words(num_rows: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    """A third of them all bits, a third none."""
    generator = torch.Generator().manual_seed(seed)
    shape = (num_rows, -(-vocab_size // 32))
    words = torch.randint(-(2**31), 2**31, shape, generator=generator, dtype=torch.int64)
    kind = torch.randint(0, 3, shape, generator=generator)
    return torch.where(kind == 0, words, 1 - kind).clamp(-(2**31)).int()


def allowed_by(words: torch.Tensor, vocab_size: int) -> torch.Tensor:
    return ((words[:, :, None] >> torch.arange(32)) & 1).bool().flatten(1)[:, :vocab_size]


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 1000, 4096, 70_001])
def test_rows_have_minus_infinity_where_a_bit_is_not_set(native_each_variant: NativeBackend, vocab_size: int) -> None:
    logits = torch.randn(5, vocab_size, generator=torch.Generator().manual_seed(vocab_size))
    logits[:, ::7], logits[:, ::11], logits[:, ::13] = NAN, INF, -0.0
    words = random_words(3, vocab_size)
    expected = logits.clone()
    for row, allowed in zip([4, 0, 3], allowed_by(words, vocab_size), strict=True):
        expected[row, ~allowed] = -INF
    mask_logits(native_each_variant.library, logits, [4, 0, 3], words)
    assert torch.equal(logits.view(torch.int32), expected.view(torch.int32))


def test_a_batch_is_masked_alike_by_any_number_of_threads(native: NativeBackend) -> None:
    wide = torch.randn(9, 130_100, generator=torch.Generator().manual_seed(1))
    words = random_words(9, 130_001)
    expected = wide.clone()
    expected[:, :130_001][~allowed_by(words, 130_001)] = -INF
    before = torch.get_num_threads()
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        masked = wide.clone()
        mask_logits(native.library, masked[:, :130_001], range(9), words)
        torch.set_num_threads(before)
        assert torch.equal(masked, expected)


def test_what_does_not_fit_is_refused(native: NativeBackend) -> None:
    logits, words = torch.zeros(2, 40), torch.zeros(1, 2, dtype=torch.int32)
    with pytest.raises(ValueError, match="must be float32"):
        mask_logits(native.library, logits.half(), [0], words)
    with pytest.raises(ValueError, match=r"words \[1, 1\] torch.int32 on cpu must be int32 \[1, 2\]"):
        mask_logits(native.library, logits, [0], words[:, :1])
    with pytest.raises(ValueError, match=r"rows 2 to 2 must be in 0 .. 1"):
        mask_logits(native.library, logits, [2], words)
    with pytest.raises(ValueError, match=r"rows \[1, 1\] must not repeat"):
        mask_logits(native.library, logits, [1, 1], words.expand(2, 2))
    mask_logits(native.library, logits, [], words[:0])
    assert not logits.any()
