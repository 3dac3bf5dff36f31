"""An engine with nothing to do keeps its packed weights for the next start, which then packs none."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.engine import Engine
from engine.messages import Shutdown
from engine.process import run
from models import packed_weights
from models.packed_file import PackedFileWriter


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where weights are kept, also those of small models."""
    monkeypatch.setattr(packed_weights, "LEAST_BYTES", 0)
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    return tmp_path / "packed"


class Inbox:
    """Empty until the engine would sleep."""

    def __init__(self) -> None:
        self.timeouts: list[float | None] = []

    def send(self, message: object) -> None:
        """Nobody reads it."""

    def receive(self, timeout: float | None) -> list[Shutdown]:
        self.timeouts.append(timeout)
        assert len(self.timeouts) < 5000, "it never ends"
        time.sleep(timeout or 0.0)
        return [Shutdown()] if timeout is None else []


def idle(engine: Engine) -> Inbox:
    """Let the engine do what it does while nobody asks for anything."""
    inbox = Inbox()
    run(engine, inbox)
    return inbox


def test_the_next_start_maps_what_this_one_packed_and_answers_the_same(
    rig: Callable, tiny_llama_dir: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = rig(tiny_llama_dir, quantization="int8")
    assert first.ready.packed_weights is None
    assert not cache.exists() or not list(cache.iterdir())
    with caplog.at_level(logging.INFO, "octavo.engine"):
        idle(first.engine)
    (file,) = cache.iterdir()
    assert [one.message.partition(" are kept in ")[2] for one in caplog.records] == [f"{file} for the next start"]
    second = rig(tiny_llama_dir, quantization="int8")
    assert second.ready.packed_weights == str(file)
    assert second.ready.weight_bytes == first.ready.weight_bytes
    assert idle(second.engine).timeouts[-1] is None
    assert [one.name for one in cache.iterdir()] == [file.name]
    prompt = [256, *range(60)]
    assert second.alone("a", prompt, 20) == first.alone("a", prompt, 20)


def test_pages_are_made_ready_before_weights_are_kept(rig: Callable, tiny_llama_dir: Path, cache: Path) -> None:
    engine = rig(tiny_llama_dir, quantization="int8").engine
    pages, weights = engine.idle_work
    assert pages.due == 0.0
    order = []
    for name, work in (("pages", pages), ("weights", weights)):
        advance = work.advance
        work.advance = lambda name=name, advance=advance: advance() and not order.append(name)
    idle(engine)
    assert order[:1] == ["pages"]
    assert order == sorted(order)
    assert set(order) == {"pages", "weights"}
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("choices", [{"quantization": "int8", "keep_packed_weights": False}, {"quantization": "none"}])
def test_nothing_is_kept_where_nothing_is_to_be_or_nothing_was_packed(
    rig: Callable, tiny_llama_dir: Path, cache: Path, choices: dict[str, object]
) -> None:
    rigged = rig(tiny_llama_dir, **choices)
    idle(rigged.engine)
    assert rigged.ready.packed_weights is None
    assert not cache.exists() or not list(cache.iterdir())


def test_what_was_kept_is_not_used_against_the_users_wish(rig: Callable, tiny_llama_dir: Path, cache: Path) -> None:
    idle(rig(tiny_llama_dir, quantization="int8").engine)
    assert len(list(cache.iterdir())) == 1
    assert rig(tiny_llama_dir, quantization="int8", keep_packed_weights=False).ready.packed_weights is None


def test_a_place_that_takes_no_file_is_one_line_and_costs_nothing_else(
    rig: Callable, tiny_llama_dir: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.parent.mkdir(exist_ok=True)
    cache.write_text("in the way")
    with caplog.at_level(logging.INFO, "octavo.engine"):
        engine = rig(tiny_llama_dir, quantization="int8")
        idle(engine.engine)
    (line,) = (one.message for one in caplog.records)
    assert line.startswith(f"packed weights cannot be kept in {cache}/")
    assert len(engine.alone("a", [256, 1, 2], 5)) == 5


def test_a_disk_that_fills_up_is_one_line_and_leaves_nothing(
    rig: Callable,
    tiny_llama_dir: Path,
    cache: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = rig(tiny_llama_dir, quantization="int8").engine

    def fail(writer: PackedFileWriter) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(PackedFileWriter, "advance", fail)
    with caplog.at_level(logging.INFO, "octavo.engine"):
        assert idle(engine).timeouts[-1] is None
    (line,) = (one.message for one in caplog.records)
    assert "(No space left on device): the next start packs them again" in line
    assert list(cache.iterdir()) == []


def test_a_request_waits_for_no_disk_and_nothing_is_written_while_it_runs(
    rig: Callable, tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rigged = rig(tiny_llama_dir, quantization="int8")
    _, weights = rigged.engine.idle_work
    is_slow, writes = threading.Event(), []

    def write_slowly(writer: PackedFileWriter) -> bool:
        writes.append(threading.current_thread())
        assert is_slow.wait(30)
        return len(writes) < 3

    monkeypatch.setattr(PackedFileWriter, "advance", write_slowly)
    assert weights.due == 0.0
    assert weights.advance()
    assert 0.0 < weights.due < 0.1
    assert not weights.advance()
    assert len(rigged.alone("a", [256, 1, 2], 20)) == 20
    is_slow.set()
    while weights.due:
        time.sleep(0.01)
    assert len(rigged.alone("b", [256, 3, 4], 20)) == 20
    assert len(writes) == 1
    while weights.due is not None:
        weights.advance()
    assert len(writes) == 3
    assert threading.current_thread() not in writes


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError("no memory")])
def test_whatever_keeps_weights_from_being_kept_ends_no_engine(
    error: Exception,
    rig: Callable,
    tiny_llama_dir: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(thread: ThreadPoolExecutor, call: object) -> None:
        raise error

    engine = rig(tiny_llama_dir, quantization="int8").engine
    monkeypatch.setattr(ThreadPoolExecutor, "submit", fail)
    with caplog.at_level(logging.INFO, "octavo.engine"):
        assert idle(engine).timeouts[-1] is None
    (line,) = (one.message for one in caplog.records)
    assert f"({error}): the next start packs them again" in line


def test_an_idle_engine_is_audited_also_while_the_disk_is_slow(
    rig: Callable, tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rigged = rig(tiny_llama_dir, quantization="int8", audit_interval=None)
    audits, is_over = [], threading.Event()
    monkeypatch.setattr("engine.process.IDLE_AUDIT_SECONDS", 0.05)
    monkeypatch.setattr(PackedFileWriter, "advance", lambda writer: not is_over.wait(30))
    audit = rigged.engine.audit

    def audit_and_let_go() -> list[str]:
        audits.append(time.monotonic())
        is_over.set()
        return audit()

    monkeypatch.setattr(rigged.engine, "audit", audit_and_let_go)
    rigged.submit("a", [256, 1, 2], 2)
    idle(rigged.engine)
    assert len(audits) == 1


def test_weights_in_the_systems_file_cache_leave_less_for_pages(
    rig: Callable, tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 10_000_000
    monkeypatch.setattr("engine.page_plan.available_memory", lambda mapped=0: free - mapped)
    settings = {"quantization": "int8", "gpu_memory_utilization": 0.5, "max_num_seqs": 16_384}
    settings["num_gpu_blocks_override"] = None
    first = rig(tiny_llama_dir, **settings)
    idle(first.engine)
    second = rig(tiny_llama_dir, **settings)
    packed = second.ready.weight_bytes
    assert second.ready.packed_weights is not None
    assert first.ready.num_pages == free // 2 // first.ready.page_bytes
    assert 0 < first.ready.num_pages - second.ready.num_pages <= packed // 2 // first.ready.page_bytes + 1
