"""Lines written beside the event loop."""

from __future__ import annotations

import os
import threading

from engine.line_writer import LineWriter


def tell_lost(count: int) -> bytes:
    return b"lost %d\n" % count


def test_lines_come_out_whole_and_in_order_and_all_of_them_before_the_end() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as reader:
        writer = LineWriter(writing, tell_lost)
        for number in range(1000):
            writer.write(b"%d\n" % number)
        writer.close()
        os.close(writing)
        assert reader.read().splitlines() == [b"%d" % number for number in range(1000)]


def test_lines_of_whom_nobody_reads_are_lost_and_counted_and_nobody_waits() -> None:
    reading, writing = os.pipe()
    line = b"x" * 1023 + b"\n"
    writer = LineWriter(writing, tell_lost, capacity=100)
    for _ in range(2000):  # the pipe holds 64 of them
        writer.write(line)
    writer._closing.set()
    writer._has_lines.set()
    collected: list[bytes] = []

    def read() -> None:
        with open(reading, "rb") as reader:
            collected.extend(reader.read().splitlines(keepends=True))

    reader = threading.Thread(target=read)
    reader.start()
    writer.close()
    os.close(writing)
    reader.join()
    lost = [int(one.split()[1]) for one in collected if one.startswith(b"lost")]
    assert sum(lost) + len(collected) - len(lost) == 2000
    assert sum(lost) > 0


def test_a_reader_that_has_gone_does_no_harm() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    writer = LineWriter(writing, tell_lost)
    writer.write(b"to nobody\n")
    writer.close()
    os.close(writing)
    assert not writer._thread.is_alive()
