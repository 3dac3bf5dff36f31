"""Packed weights come back from a file as they were, or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
from pathlib import Path

import pytest
import torch

from kernels.cpu.huge_pages import CACHE_LINE
from models import packed_file
from models.packed_file import PackedFile, PackedFileWriter

KEY = {"form": "stored", "files": [["/models/a.gguf", 7, 1, 2]]}
SIZES = [1, 64, 65, 4096, 100_000, 63]


@pytest.fixture
def pieces() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator) for size in SIZES]


def write(path: Path, pieces: list[torch.Tensor], key: packed_file.Key = KEY, portion: int = 5000) -> int:
    """The file; how many turns it took."""
    writer, turns = PackedFileWriter(path, key, pieces, portion), 1
    while writer.advance():
        turns += 1
    return turns


def opened(path: Path, key: packed_file.Key = KEY) -> PackedFile:
    file = PackedFile.open(path, key)
    assert file is not None
    return file


@pytest.mark.parametrize("portion", [1000, 4096, 1 << 20])
def test_pieces_come_back_as_they_were_each_from_a_cache_line_on(
    tmp_path: Path, pieces: list[torch.Tensor], portion: int
) -> None:
    path = tmp_path / "not there yet" / "a.packed"
    write(path, pieces, portion=portion)
    file = opened(path)
    assert [len(piece) for piece in file.pieces] == SIZES
    assert all(torch.equal(*pair) for pair in zip(file.pieces, pieces, strict=True))
    assert all(piece.data_ptr() % CACHE_LINE == 0 for piece in file.pieces)
    assert [one.name for one in path.parent.iterdir()] == ["a.packed"]


def test_pieces_that_lie_in_small_pages_are_copied_into_huge_ones(
    tmp_path: Path, pieces: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    large = [*pieces, torch.arange(6 << 20).to(torch.uint8)]
    write(tmp_path / "a.packed", large, portion=1 << 20)
    monkeypatch.setattr(packed_file, "bytes_in_huge_pages", lambda tensor: 0)
    monkeypatch.setattr(packed_file, "_READ_BYTES", 1 << 20)
    for there_are_huge_pages in (True, False):
        monkeypatch.setattr(packed_file, "has_huge_pages", lambda there=there_are_huge_pages: there)
        file = opened(tmp_path / "a.packed")
        assert file.is_mapped is not there_are_huge_pages
        assert all(torch.equal(*pair) for pair in zip(file.pieces, large, strict=True))
        assert all(piece.data_ptr() % CACHE_LINE == 0 for piece in file.pieces)


def test_what_is_written_to_a_piece_never_reaches_the_file(tmp_path: Path, pieces: list[torch.Tensor]) -> None:
    write(tmp_path / "a.packed", pieces)
    opened(tmp_path / "a.packed").pieces[4].zero_()
    assert torch.equal(opened(tmp_path / "a.packed").pieces[4], pieces[4])


def test_who_has_a_file_keeps_it_when_another_takes_its_place(tmp_path: Path, pieces: list[torch.Tensor]) -> None:
    write(tmp_path / "a.packed", pieces)
    before = opened(tmp_path / "a.packed")
    write(tmp_path / "a.packed", [255 - piece for piece in pieces])
    assert torch.equal(before.pieces[4], pieces[4])
    assert torch.equal(opened(tmp_path / "a.packed").pieces[4], 255 - pieces[4])


def test_nothing_is_there_until_all_of_it_is(tmp_path: Path, pieces: list[torch.Tensor]) -> None:
    writer = PackedFileWriter(tmp_path / "a.packed", KEY, pieces, 50_000)
    for _ in range(2):
        assert writer.advance()
        assert list(tmp_path.iterdir()) == []
    writer.close()
    assert not writer.advance()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_is_an_error_and_leaves_nothing(
    tmp_path: Path, pieces: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = PackedFileWriter(tmp_path / "a.packed", KEY, pieces, 50_000)
    assert writer.advance()

    def write_nothing(file: int, portion: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", write_nothing)
    with pytest.raises(OSError, match="No space left"):
        writer.advance()
    assert not writer.advance()
    assert list(tmp_path.iterdir()) == []


def test_a_portion_that_is_written_in_parts_is_written_whole(
    tmp_path: Path, pieces: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.write
    monkeypatch.setattr(os, "write", lambda file, portion: whole(file, portion[:700]))
    write(tmp_path / "a.packed", pieces)
    assert all(torch.equal(*pair) for pair in zip(opened(tmp_path / "a.packed").pieces, pieces, strict=True))


def cut(content: bytes) -> bytes:
    return content[:-1]


def longer(content: bytes) -> bytes:
    return content + bytes(64)


def without_magic(content: bytes) -> bytes:
    return b"GGUF" + content[4:]


def endless_header(content: bytes) -> bytes:
    return content[:8] + struct.pack("<Q", 1 << 40) + content[16:]


def no_json(content: bytes) -> bytes:
    return content[:16] + b"}" + content[17:]


def brackets(content: bytes) -> bytes:
    header = b"[" * 500_000
    return content[:8] + struct.pack("<Q", len(header)) + header


def of_a_list(content: bytes) -> bytes:
    header = json.dumps([1]).encode()
    return content[:8] + struct.pack("<Q", len(header)) + header + content[16 + len(header) :]


def with_sizes(sizes: object) -> bytes:
    header = json.dumps({"key": KEY, "sizes": sizes}).encode()
    return (b"OCTAVOPK" + struct.pack("<Q", len(header)) + header).ljust(4096, b"\0") + bytes(128)


@pytest.mark.parametrize("damage", [cut, longer, without_magic, endless_header, no_json, brackets, of_a_list])
def test_a_damaged_file_is_no_file(tmp_path: Path, pieces: list[torch.Tensor], damage: object) -> None:
    path = tmp_path / "a.packed"
    write(path, pieces)
    opened(path)
    path.write_bytes(damage(path.read_bytes()))
    assert PackedFile.open(path, KEY) is None


@pytest.mark.parametrize("sizes", [None, 3, [], ["64", "64"], [-64, 192], [64.0, 64], [True, 64]])
def test_sizes_that_are_none_make_no_file(tmp_path: Path, sizes: object) -> None:
    (tmp_path / "a.packed").write_bytes(with_sizes([64, 64]))
    assert PackedFile.open(tmp_path / "a.packed", KEY) is not None
    (tmp_path / "a.packed").write_bytes(with_sizes(sizes))
    assert PackedFile.open(tmp_path / "a.packed", KEY) is None


@pytest.mark.parametrize("content", [b"", b"OCTAVOPK", b"OCTAVOPK" + bytes(8)])
def test_a_file_that_is_too_short_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.packed").write_bytes(content)
    assert PackedFile.open(tmp_path / "a.packed", KEY) is None


def test_a_file_of_another_key_or_none_at_all_is_none(tmp_path: Path, pieces: list[torch.Tensor]) -> None:
    write(tmp_path / "a.packed", pieces)
    assert PackedFile.open(tmp_path / "a.packed", {**KEY, "form": "int8"}) is None
    assert PackedFile.open(tmp_path / "b.packed", KEY) is None
    assert PackedFile.open(tmp_path, KEY) is None


def test_only_its_user_may_read_it(tmp_path: Path, pieces: list[torch.Tensor]) -> None:
    write(tmp_path / "a.packed", pieces)
    assert (tmp_path / "a.packed").stat().st_mode & 0o777 == 0o600


def test_what_another_user_has_written_is_no_file(
    tmp_path: Path, pieces: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.packed", pieces)
    own = os.geteuid()
    for owner, is_trusted in ((own, True), (own + 4711, False)):
        fstat = os.fstat
        with monkeypatch.context() as patch:
            patch.setattr(os, "fstat", lambda file, owner=owner, fstat=fstat: Owned(fstat(file), owner))
            assert (PackedFile.open(tmp_path / "a.packed", KEY) is not None) is is_trusted


class Owned:
    """What the system says of a file, with another owner."""

    def __init__(self, about: os.stat_result, owner: int) -> None:
        self.st_mode, self.st_size, self.st_uid = about.st_mode, about.st_size, owner


def test_a_pipe_is_no_file_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.packed")
    assert PackedFile.open(tmp_path / "a.packed", KEY) is None


def test_who_may_only_read_a_file_uses_it(
    tmp_path: Path, pieces: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    write(tmp_path / "a.packed", pieces)
    monkeypatch.setattr(os, "utime", refuse)
    assert torch.equal(opened(tmp_path / "a.packed").pieces[4], pieces[4])


def test_what_a_killed_writer_left_is_in_nobodys_way(tmp_path: Path, pieces: list[torch.Tensor]) -> None:
    (tmp_path / ".a.packed").write_text("half way to its name")
    write(tmp_path / "a.packed", pieces)
    opened(tmp_path / "a.packed")
    assert [one.name for one in tmp_path.iterdir()] == ["a.packed"]


def test_of_two_that_write_the_same_at_once_neither_fails(
    tmp_path: Path, pieces: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = PackedFileWriter(tmp_path / "a.packed", KEY, pieces, 1 << 20)
    assert other.advance()
    link = os.link

    def link_and_let_the_other_go_first(*arguments: object, **named: object) -> None:
        link(*arguments, **named)
        monkeypatch.setattr(os, "link", link)
        assert not other.advance()

    monkeypatch.setattr(os, "link", link_and_let_the_other_go_first)
    write(tmp_path / "a.packed", pieces)
    opened(tmp_path / "a.packed")
    assert [one.name for one in tmp_path.iterdir()] == ["a.packed"]


def test_a_name_that_is_a_directorys_is_an_error_and_leaves_nothing(tmp_path: Path, pieces: list[torch.Tensor]) -> None:
    (tmp_path / "a.packed").mkdir()
    with pytest.raises(IsADirectoryError):
        write(tmp_path / "a.packed", pieces)
    assert [one.name for one in tmp_path.iterdir()] == ["a.packed"]


def test_a_directory_that_is_a_file_is_an_error(tmp_path: Path, pieces: list[torch.Tensor]) -> None:
    (tmp_path / "packed").write_text("")
    with pytest.raises(OSError, match="packed"):
        PackedFileWriter(tmp_path / "packed" / "a.packed", KEY, pieces)


def test_a_directory_that_goes_before_the_end_is_an_error(tmp_path: Path, pieces: list[torch.Tensor]) -> None:
    writer = PackedFileWriter(tmp_path / "packed" / "a.packed", KEY, pieces, 1 << 20)
    shutil.rmtree(tmp_path / "packed")
    with pytest.raises(OSError, match="packed"):
        list(iter(writer.advance, False))
