"""How layers are written on the command line."""

from __future__ import annotations

import pytest

from scheduler.simulation.settings import parse_windows


@pytest.mark.parametrize(
    ("text", "windows"),
    [
        ("full", (None,)),
        ("512", (512,)),
        ("fullx3", (None, None, None)),
        ("4x2,full x1, 8 x 2", (4, 4, None, 8, 8)),
    ],
)
def test_windows_are_listed_with_their_number_of_layers(text: str, windows: tuple[int | None, ...]) -> None:
    assert parse_windows(text) == windows


@pytest.mark.parametrize(("text", "part"), [("", "''"), ("full,", "''"), ("512 15", "'512 15'"), ("0x3", "'0x3'")])
def test_what_is_no_list_of_windows_is_named(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=r"is neither full nor a window in tokens") as error:
        parse_windows(text)

    assert str(error.value).startswith(part)
