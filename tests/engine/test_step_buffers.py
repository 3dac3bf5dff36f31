"""The flat buffer of a step: where its sections lie, what a copy carries, and when the host may write again."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.step_buffers import DrawSections, PrefixSections, StepBuffers, StepSections, StepShape, TableChanges
from tests.engine.fake_device import FakeStream

LARGEST = StepShape(40, 12, 12, 6, 12)
shapes = st.builds(
    StepShape, st.integers(0, 40), st.integers(0, 12), st.integers(0, 12), st.integers(0, 6), st.integers(2, 12)
)


def parts(sections: StepSections) -> dict[str, object]:
    """Every section by name."""
    named = {field.name: getattr(sections, field.name) for field in fields(StepSections)}
    for kind, part in ((DrawSections, named.pop("draws")), (PrefixSections, named.pop("prefix"))):
        if part is not None:
            named |= {field.name: getattr(part, field.name) for field in fields(kind)}
    return named


def on_device(**settings: object) -> tuple[StepBuffers, FakeStream]:
    stream = FakeStream()
    return StepBuffers(3, stream=stream, largest=LARGEST, num_changes=10, **settings), stream


@given(shape=shapes, has_stream=st.booleans())
def test_sections_do_not_overlap_and_arrive_as_they_were_written(shape: StepShape, has_stream: bool) -> None:
    buffers = on_device()[0] if has_stream else StepBuffers(3)
    host = buffers.host(shape)
    for number, section in enumerate(parts(host).values()):
        section[...] = number + 1
    buffers.send(shape, None)
    device = parts(buffers.device(shape))
    for number, (name, section) in enumerate(device.items()):
        assert section.eq(number + 1).all(), name
    assert device["slots"].shape == (3, shape.num_tokens)
    assert device["query_start_loc"].shape == (shape.num_seqs + 1,)
    assert ("seed" in device) == has_stream
    assert ("members" in device) == (shape.num_groups > 0)
    if shape.num_groups:
        sizes = [len(device[name]) for name in ("members", "group_starts", "prefix_lens")]
        assert sizes == [shape.num_members, shape.num_groups + 1, shape.num_seqs]


@given(shape=shapes, has_stream=st.booleans())
def test_sections_begin_where_kernels_need_no_other_variant(shape: StepShape, has_stream: bool) -> None:
    buffers = on_device()[0] if has_stream else StepBuffers(3)
    buffers.host(shape)
    sections = parts(buffers.device(shape))
    for name, section in (sections | {f"slots {column}": sections["slots"][column] for column in range(3)}).items():
        assert section.data_ptr() % 16 == 0, name


def test_sections_have_the_types_that_kernels_take() -> None:
    dtypes = {name: section.dtype for name, section in parts(on_device()[0].device(LARGEST)).items()}
    wide = ("token_ids", "positions", "slots", "logits_rows", "seed", "output_index")
    fractional = ("temperature", "top_p", "min_p")
    assert {name for name, dtype in dtypes.items() if dtype == torch.int64} == set(wide)
    assert {name for name, dtype in dtypes.items() if dtype == torch.float32} == set(fractional)
    assert {dtypes[name] for name in dtypes.keys() - set(wide) - set(fractional)} == {torch.int32}


def test_a_shape_has_its_sections_at_one_place_for_ever() -> None:
    buffers, _ = on_device()
    places = {name: part.data_ptr() for name, part in parts(buffers.device(StepShape(4, 4, 4))).items()}
    for num_tokens in range(41):
        for num_seqs in range(12):  # more shapes than are kept
            buffers.device(StepShape(num_tokens, num_seqs, 1))
    again = {name: part.data_ptr() for name, part in parts(buffers.device(StepShape(4, 4, 4))).items()}
    assert again == places


def test_a_copy_carries_what_the_step_fills_and_no_more() -> None:
    buffers, stream = on_device()
    shapes = (StepShape(1, 1, 1), StepShape(8, 8, 8), StepShape(8, 8, 8, 2, 5), LARGEST)
    for shape in shapes:
        buffers.host(shape)
        buffers.send(shape, None)
    assert stream.uploads == [8 * buffers.size(shape) for shape in shapes]
    assert stream.uploads[0] == 16 * (2 + 3 + 3 + 8)
    assert stream.uploads[2] - stream.uploads[1] == 4 * (8 + 4 + 8)  # members, starts, a length for each sequence


def test_changes_of_tables_travel_in_the_same_copy() -> None:
    buffers, stream = on_device()
    shape = StepShape(5, 2, 1)
    buffers.host(shape).token_ids[:] = 7
    indices, values = np.array([2**40, 3, 9]), np.array([5, 6, 7], dtype=np.int32)
    sent = buffers.send(shape, TableChanges(indices, values))
    assert (sent.indices.tolist(), sent.values.tolist()) == ([2**40, 3, 9], [5, 6, 7])
    assert buffers.device(shape).token_ids.tolist() == [7] * 5
    assert stream.uploads == [8 * (buffers.size(shape) + 3 + 2)]


def test_the_largest_step_has_room_for_its_changes() -> None:
    buffers, _ = on_device()
    buffers.host(LARGEST)
    sent = buffers.send(LARGEST, TableChanges(np.arange(10), np.arange(10, dtype=np.int32)))
    assert sent.indices.tolist() == sent.values.tolist() == list(range(10))


def test_a_host_buffer_is_not_written_before_its_copy_is_over() -> None:
    buffers, stream = on_device()
    shape = StepShape(2, 2, 2)
    for number in range(6):
        buffers.host(shape).token_ids[:] = number
        buffers.send(shape, None)
        assert len(stream.open) <= 2
        assert buffers.device(shape).token_ids.tolist() == [number, number]


def test_a_step_is_written_while_the_copy_of_the_one_before_is_under_way() -> None:
    buffers, stream = on_device()
    buffers.host(LARGEST)
    buffers.send(LARGEST, None)
    buffers.host(LARGEST)
    assert len(stream.open) == 1
    buffers.send(LARGEST, None)
    assert len(stream.open) == 2
    buffers.host(LARGEST)
    assert len(stream.open) == 1


def test_the_fake_stream_tells_when_a_buffer_is_written_too_early() -> None:
    buffers, stream = on_device()
    shape = StepShape(2, 2, 2)
    early = buffers.host(shape)
    buffers.send(shape, None)
    early.token_ids[:] = 9
    with pytest.raises(AssertionError, match="written while its copy was under way"):
        stream.record().wait()


def test_without_a_stream_buffers_grow_and_are_the_devices_own() -> None:
    buffers = StepBuffers(1)
    for shape in (StepShape(1, 1, 1), StepShape(1000, 3, 2), StepShape(2, 2, 2)):
        buffers.host(shape).token_ids[:] = shape.num_tokens
        assert buffers.send(shape, None) is None
        assert buffers.device(shape).token_ids.tolist() == [shape.num_tokens] * shape.num_tokens
