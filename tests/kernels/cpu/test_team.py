"""Native calls from several Python threads at once: each is right, whichever of them the library's helpers serve."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from kernels.cpu.library import NativeLibrary
from kernels.cpu.quantised_matrix import QuantisedMatrix, QuantisedProduct, WeightKind


@pytest.fixture
def four_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(threads)


def product() -> QuantisedProduct:
    matrix = QuantisedMatrix(NativeLibrary(), WeightKind.Q8_0, 3000, 256)
    matrix.pack_floats(0, torch.randn(3000, 256, generator=torch.Generator().manual_seed(0)))
    return QuantisedProduct([matrix])


@pytest.mark.usefixtures("four_threads")
def test_calls_from_many_threads_at_once_are_all_right() -> None:
    made = product()
    inputs = [torch.randn(rows, 256, generator=torch.Generator().manual_seed(rows)) for rows in (1, 7, 40)]
    expected = [made.multiply(x) for x in inputs]

    def call(number: int) -> bool:
        torch.set_num_threads(4)
        which = number % 3
        return torch.equal(made.multiply(inputs[which]), expected[which])

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(call, range(600)))


@pytest.mark.usefixtures("four_threads")
def test_thousands_of_short_calls_in_a_row_all_end() -> None:
    made = product()
    x = torch.randn(1, 256)
    expected = made.argmax(x)
    for threads in (2, 4, 1, 3) * 1000:
        torch.set_num_threads(threads)
        assert torch.equal(made.argmax(x), expected)
