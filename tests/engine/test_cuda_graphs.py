"""Which batch sizes have a graph, in which order they are recorded, and which one serves a batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.cuda_graphs import DecodeGraphs, graph_sizes


class Recorder:
    """Keeps what it is given; a graph runs it again."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.count = 0

    def record(self, step: Callable[[], None]) -> Recorder.Graph:
        self.count += 1
        if self.count == self.fails_at:
            raise RuntimeError("no")
        return Recorder.Graph(step)

    class Graph:
        def __init__(self, step: Callable[[], None]) -> None:
            self.replay = step


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [
        (1, (1,)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (20, (1, 2, 4, 8, 16, 20)),
        (300, (1, 2, 4, *range(8, 257, 8), 288, 300)),
    ],
)
def test_sizes_grow_in_steps_that_waste_little_and_end_with_the_largest_batch(
    max_num_seqs: int, sizes: tuple[int, ...]
) -> None:
    assert graph_sizes(max_num_seqs) == sizes


def test_every_batch_has_a_size_that_pads_it_by_less_than_eight_or_an_eighth() -> None:
    graphs = DecodeGraphs(graph_sizes(1000))
    graphs.record_all(Recorder(), lambda size: lambda: None)
    for num_seqs in range(1, 1001):
        size = graphs.size_for(num_seqs)
        assert 0 <= size - num_seqs < max(8, num_seqs / 8)


def test_the_largest_is_recorded_first_and_each_is_replayed_by_its_size() -> None:
    order, replayed = [], []

    def ready(size: int) -> Callable[[], None]:
        order.append(size)
        return lambda: replayed.append(size)

    graphs = DecodeGraphs((1, 2, 4, 6))
    graphs.record_all(Recorder(), ready)
    assert order == [6, 4, 2, 1]
    for num_seqs in (1, 3, 5, 6, 2):
        graphs.replay(graphs.size_for(num_seqs))
    assert replayed == [1, 4, 6, 6, 2]


def test_before_recording_and_beyond_the_largest_there_is_no_graph() -> None:
    graphs = DecodeGraphs((1, 2))
    assert graphs.size_for(1) is None
    graphs.record_all(Recorder(), lambda size: lambda: None)
    assert [graphs.size_for(count) for count in (0, 1, 2, 3)] == [None, 1, 2, None]


def test_all_or_none_are_kept() -> None:
    graphs = DecodeGraphs((1, 2, 4))
    with pytest.raises(RuntimeError, match="no"):
        graphs.record_all(Recorder(fails_at=2), lambda size: lambda: None)
    assert graphs.size_for(4) is None
