"""A whole study of the tiny Gemma 3, small enough to be made once for all tests."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks.kv_study.sizes import QUICK
from benchmarks.kv_study.studied_model import StudiedModel
from benchmarks.kv_study.study import Study, run_study

TINY = dataclasses.replace(
    QUICK,
    name="tiny",
    recompute_lengths=(1, 64, 128, 320),
    generated=320,
    memory_longest=200,
    memory_requests=60,
    memory_pages=256,
    context=96,
    scored=32,
    limits=(16, 48),
    recall_distances=(20, 40, 60),
    table_lengths=(64, 128, 256),
    table_repeats=32,
    finished_requests=24,
)


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("in the beginning there was a page, and the page was free to be read by the others " * 9)
    return path


@pytest.fixture(scope="session")
def studied(tiny_gemma3_dir: Path, text_file: Path) -> StudiedModel:
    return StudiedModel(str(tiny_gemma3_dir), text_file)


@pytest.fixture(scope="session")
def study(studied: StudiedModel) -> Study:
    return run_study(studied, TINY)
