"""Every page in eight bytes, and what changed."""

from __future__ import annotations

import base64
import struct
from array import array
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.dashboard.page_cells import CHUNK_PAGES, PageCells, count_pages, encode_cells

COLUMNS = {"states": "B", "groups": "B", "fills": "B", "ref_counts": "H", "holders": "I"}
FREE = {"states": 0, "groups": 0, "fills": 0, "ref_counts": 0, "holders": 0}


@pytest.fixture
def read(engine: Any):
    """Makes what the engine says of pages, from one row for each page from 1 on."""

    def make(rows: list[dict[str, int]]) -> Any:
        columns = {
            name: array(kind, [0, *((FREE | row)[name] for row in rows)]).tobytes() for name, kind in COLUMNS.items()
        }
        return engine.make_pages_read(len(rows), **columns)

    return make


def held(**changes: int) -> dict[str, int]:
    return {"states": 2, "groups": 0, "fills": 16, "ref_counts": 1, "holders": 7} | changes


def test_a_page_is_eight_bytes_and_page_1_the_first(read) -> None:
    cells = encode_cells(read([held(groups=1, fills=3, ref_counts=2, holders=0x01020304), {"states": 1, "fills": 16}]))
    assert cells == bytes([2, 1, 3, 2, 4, 3, 2, 1]) + bytes([1, 0, 16, 0, 0, 0, 0, 0])


def test_more_references_than_a_byte_can_count_are_shown_as_255(read) -> None:
    counts = [1, 254, 255, 256, 257, 65535]
    cells = encode_cells(read([held(ref_counts=count) for count in counts]))
    assert list(cells[3::8]) == [1, 254, 255, 255, 255, 255]


rows = st.fixed_dictionaries(
    {
        "states": st.integers(0, 2),
        "groups": st.integers(0, 5),
        "fills": st.integers(0, 255),
        "ref_counts": st.sampled_from([0, 1, 2, 255, 256, 65535]),
        "holders": st.integers(0, 2**32 - 1),
    }
)


@given(pages=st.lists(rows, min_size=1, max_size=40))
def test_cells_say_what_the_columns_said(pages: list[dict[str, int]]) -> None:
    from engine.page_messages import PagesRead

    columns = {name: array(kind, [0, *(row[name] for row in pages)]).tobytes() for name, kind in COLUMNS.items()}
    cells = encode_cells(PagesRead(query_id=1, group_names=[], sequences=[], num_sequences=0, **columns))
    assert [struct.unpack("<BBBBI", cells[8 * page : 8 * page + 8]) for page in range(len(pages))] == [
        (row["states"], row["groups"], row["fills"], min(row["ref_counts"], 255), row["holders"]) for row in pages
    ]


def test_the_first_look_changes_every_chunk_and_the_same_again_none(read) -> None:
    cells = PageCells()
    pages = [held()] * (2 * CHUNK_PAGES + 1)
    assert cells.update(read(pages)) == {0, 1, 2}
    assert cells.num_chunks == 3
    assert cells.update(read(pages)) == set()


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize(("page", "chunk"), [(1, 0), (CHUNK_PAGES, 0), (CHUNK_PAGES + 1, 1), (2 * CHUNK_PAGES, 1)])
def test_whatever_changes_of_a_page_changes_its_chunk_and_no_other(read, column: str, page: int, chunk: int) -> None:
    cells = PageCells()
    pages = [held() for _ in range(3 * CHUNK_PAGES)]
    cells.update(read(pages))
    pages[page - 1] = held(**{column: 1 if column != "ref_counts" else 2})
    assert cells.update(read(pages)) == {chunk}


def test_a_chunk_is_told_as_it_is_now(read) -> None:
    cells = PageCells()
    pages = [held(holders=number) for number in range(1, CHUNK_PAGES + 4)]
    for _ in range(2):
        cells.update(read(pages))
        name, data = cells.frame(1).decode().strip().split("\n")
        assert name == "event: pages"
        body = orjson.loads(data.removeprefix("data: "))
        assert body["first"] == CHUNK_PAGES + 1
        assert base64.b64decode(body["cells"]) == encode_cells(read(pages))[8 * CHUNK_PAGES :]
        pages[-1] = held(states=1, ref_counts=0, holders=0)


def test_pages_are_counted_by_state_and_shared_ones_among_those_held(read) -> None:
    pages = [{}, {}, {}, {"states": 1}, {"states": 1}, held(), held(ref_counts=2), held(ref_counts=256)]
    assert count_pages(read(pages)) == {"free": 3, "cached": 2, "held": 3, "shared": 2, "total": 8}
