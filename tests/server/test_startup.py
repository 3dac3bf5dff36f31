"""What a user reads while a model loads."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from engine.config import Checkpoint
from models.checkpoint import CheckpointFormat
from server.startup import announce, startup_fields, startup_table


def test_the_table_says_what_was_loaded_where_and_how_long_it_took(engine) -> None:
    ready = engine.make_ready(warnings=["20 pages hold 319 tokens at most"])
    table = startup_table("org/tiny", ready, {"tokenizer": 0.25}, 3.14, "http://127.0.0.1:8000")
    rows = dict(line.strip().split("  ", 1) for line in table.splitlines())
    assert {name: value.strip() for name, value in rows.items()} == {
        "model": "org/tiny",
        "device": "cpu, 2 threads",
        "dtype": "float32",
        "attention": "scripted",
        "weights": "4.00 GB, int8",
        "KV memory": "0.00 GB in 20 pages",
        "page": "16 tokens in int8, 1,024 bytes",
        "max context": "512 tokens",
        "batch": "8 requests, 64 tokens a step",
        "start-up": "3.1 s: tokenizer 0.2, weights 1.5",
        "warning": "20 pages hold 319 tokens at most",
        "serving": "http://127.0.0.1:8000/v1",
        "page map": "http://127.0.0.1:8000/dashboard",
    }


def test_host_memory_is_in_the_table_where_there_is_some(engine) -> None:
    ready = engine.make_ready(stats=engine.make_stats(host_pages_total=5_000_000, host_pages_free=5_000_000))
    table = startup_table("org/tiny", ready, {}, 1.0, "http://127.0.0.1:8000")
    assert "  host memory  5.12 GB in 5,000,000 pages" in table.splitlines()


def test_the_table_says_which_file_packed_weights_come_from(engine) -> None:
    table = startup_table("m", engine.make_ready(packed_weights="/c/a.packed"), {}, 1.0, "http://127.0.0.1:8000")
    assert "\n  packed in    /c/a.packed\n" in table
    assert "packed in" not in startup_table("m", engine.make_ready(), {}, 1.0, "http://127.0.0.1:8000")


def test_the_demo_model_is_announced_with_its_terms_and_as_a_base_model(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "octavo")
    announce(Checkpoint("demo", Path("x.gguf"), CheckpointFormat.GGUF, notice="The terms: here", is_demo=True))
    terms, base = caplog.messages
    assert terms == "The terms: here"
    assert "base model, not an instruct model" in base


def test_other_models_are_not_announced(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "octavo")
    announce(Checkpoint("mine", Path("x.gguf"), CheckpointFormat.GGUF))
    assert caplog.messages == []


def test_a_start_told_to_machines_has_plain_numbers(engine) -> None:
    ready = engine.make_ready(warnings=["20 pages hold 319 tokens at most"])
    fields = startup_fields("org/tiny", ready, {"tokenizer": 0.25}, 3.14159, "http://127.0.0.1:8000")
    assert fields == {
        "model": "org/tiny",
        "device": "cpu",
        "threads": 2,
        "dtype": "float32",
        "attention": "scripted",
        "weight_bytes": 4_000_000_000,
        "weight_form": "int8",
        "packed_weights": None,
        "kv_bytes": 20_480,
        "kv_dtype": "int8",
        "pages": 20,
        "host_pages": 0,
        "page_bytes": 1024,
        "block_size": 16,
        "max_model_len": 512,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "num_speculative_tokens": 0,
        "startup_seconds": 3.142,
        "stage_seconds": {"tokenizer": 0.25, "weights": 1.5},
        "adapters": [],
        "warnings": ["20 pages hold 319 tokens at most"],
        "url": "http://127.0.0.1:8000/v1",
    }
