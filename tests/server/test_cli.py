"""The `octavo` command up to the point where a model loads: usage, expected failures, what gets imported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from engine.config import EngineConfig
from server import cli
from server.http.listener import listen

ROOT = Path(__file__).parents[2]


FAIR = ("--scheduling-policy", "fair", "--api-key", "a", "--api-key", "b")


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command, which must fail with one sentence and status 1; the sentence."""
    assert cli.main(["serve", "--port", "0", *arguments]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("octavo: ")
    return line


def test_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith("octavo ")


@pytest.mark.parametrize("arguments", [[], ["fly"], ["serve", "--no-such-flag"], ["serve", "--port", "many"]])
def test_wrong_usage_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    assert exit_.value.code == 2
    assert "usage: octavo" in capsys.readouterr().err


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    text = capsys.readouterr().out
    flags = (
        "--host --port --served-model-name --dtype --kv-cache-dtype --device --max-model-len --max-num-seqs "
        "--max-num-batched-tokens --block-size --gpu-memory-utilization --kv-cache-memory-bytes "
        "--num-gpu-blocks-override --enable-prefix-caching --no-enable-prefix-caching --threads --seed --chat-template "
        "--revision --api-key --swap-space --audit-interval --max-request-bytes --shutdown-timeout "
        "--engine-silence-limit --scheduling-policy --priority-aging --tenant-weights --long-prefill-token-threshold "
        "--max-queued-requests --max-queued-tokens --queue-timeout --watermark-tokens --max-overtakes "
        "--async-scheduling --no-async-scheduling --stream-queue-position --trust-request-chat-template "
        "--tool-call-parser --reasoning-parser --log-format --metrics-compat --log-requests --no-log-requests "
        "--otlp-traces-endpoint --admin-key --offline --lora-modules --max-lora-rank --enable-lora"
    )
    assert [flag for flag in flags.split() if flag not in text] == []


def test_the_documentation_for_operators_names_only_flags_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    flags = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    documented = set(re.findall(r"--[a-z][a-z-]+", (ROOT / "docs/scheduling.md").read_text()))
    assert documented - flags == set()
    assert {
        "--scheduling-policy", "--priority-aging", "--tenant-weights", "--long-prefill-token-threshold",
        "--max-queued-requests", "--max-queued-tokens", "--queue-timeout", "--watermark-tokens", "--max-overtakes",
        "--async-scheduling", "--stream-queue-position",
    } <= documented  # fmt: skip


def test_flags_left_out_mean_the_defaults_of_the_engine() -> None:
    options = cli._options(cli._parser().parse_args(["serve"]))
    assert options.engine == EngineConfig(model="")
    options.validate()


def test_every_flag_of_the_engine_arrives() -> None:
    arguments = (
        "serve m --dtype float32 --kv-cache-dtype fp8 --device cpu --max-model-len 100 --max-num-seqs 3 "
        "--max-num-batched-tokens 64 --block-size 32 --gpu-memory-utilization 0.5 --kv-cache-memory-bytes 1000 "
        "--num-gpu-blocks-override 9 --no-enable-prefix-caching --threads 2 --seed 7 --swap-space 0.5 "
        "--audit-interval 50 --scheduling-policy fair --priority-aging 2.5 --tenant-weights 1,0.5 "
        "--long-prefill-token-threshold 40 --max-queued-requests 4 --max-queued-tokens 500 --queue-timeout 1.5 "
        "--watermark-tokens 0 --max-overtakes 3 --async-scheduling --enforce-eager --deterministic "
        "--api-key a --api-key b"
    )
    options = cli._options(cli._parser().parse_args(arguments.split()))
    assert options.model == "m"
    assert options.engine == EngineConfig(
        model="",
        dtype="float32",
        kv_cache_dtype="fp8",
        device="cpu",
        max_model_len=100,
        max_num_seqs=3,
        max_num_batched_tokens=64,
        block_size=32,
        gpu_memory_utilization=0.5,
        kv_cache_memory_bytes=1000,
        num_gpu_blocks_override=9,
        enable_prefix_caching=False,
        swap_space_bytes=2**29,
        audit_interval=50,
        threads=2,
        seed=7,
        scheduling_policy="fair",
        priority_aging=2.5,
        tenant_weights={"key-1": 1.0, "key-2": 0.5},
        long_prefill_token_threshold=40,
        max_queued_requests=4,
        max_queued_tokens=500,
        queue_timeout=1.5,
        watermark_tokens=0,
        max_overtakes=3,
        async_scheduling=True,
        enforce_eager=True,
        deterministic=True,
    )
    options.validate()


def test_a_hub_id_is_looked_for_in_the_cache_alone_on_request() -> None:
    assert not cli._options(cli._parser().parse_args(["serve", "org/model"])).offline
    assert cli._options(cli._parser().parse_args(["serve", "org/model", "--offline"])).offline


def test_adapters_are_named_with_where_they_are_and_come_later_on_request_only() -> None:
    assert not cli._options(cli._parser().parse_args(["serve"])).enable_lora
    arguments = "serve m --lora-modules a=/x b=org/y=z --enable-lora --lora-modules c=z --max-lora-rank 8"
    options = cli._options(cli._parser().parse_args(arguments.split()))
    assert options.lora_modules == (("a", "/x"), ("b", "org/y=z"), ("c", "z"))
    assert options.enable_lora
    assert options.engine.max_lora_rank == 8


def test_the_place_in_the_queue_is_told_on_request_only() -> None:
    assert not cli._options(cli._parser().parse_args(["serve"])).stream_queue_position
    assert cli._options(cli._parser().parse_args(["serve", "--stream-queue-position"])).stream_queue_position


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--port", "70000"], "--port 70000"),
        (["--tool-call-parser", "xml"], "--tool-call-parser xml: must be auto, hermes, llama3_json, mistral"),
        (["--reasoning-parser", "xml"], "--reasoning-parser xml: must be auto, think, mistral or none"),
        (["--metrics-compat", "sglang"], "--metrics-compat sglang: must be vllm or none"),
        (["--block-size", "3"], "--block-size 3"),
        (["--dtype", "int3"], "--dtype int3"),
        (["--dtype", "int8"], "--dtype int8"),
        (["--kv-cache-dtype", "int3"], "--kv-cache-dtype int3: choose one of auto, float32, bfloat16, float16, int8"),
        (["--max-num-seqs", "0"], "--max-num-seqs 0"),
        (["--max-request-bytes", "0"], "--max-request-bytes 0"),
        (["--shutdown-timeout", "-1"], "--shutdown-timeout -1"),
        (["--shutdown-timeout", "nan"], "--shutdown-timeout nan"),
        (["--engine-silence-limit", "0"], "--engine-silence-limit 0"),
        (["--served-model-name", ""], "--served-model-name"),
        (["--revision", "main"], "--revision main: needs a MODEL"),
        (["--scheduling-policy", "lifo"], "--scheduling-policy lifo: choose one of fcfs, priority, fair"),
        *((["--priority-aging", value], f"--priority-aging {float(value)}") for value in ("0", "-1", "nan", "inf")),
        *((["--queue-timeout", value], f"--queue-timeout {float(value)}") for value in ("0", "-1", "nan", "inf")),
        (["--max-queued-requests", "0"], "--max-queued-requests 0"),
        (["--max-queued-tokens", "0"], "--max-queued-tokens 0"),
        (["--long-prefill-token-threshold", "0"], "--long-prefill-token-threshold 0"),
        (["--watermark-tokens", "-1"], "--watermark-tokens -1"),
        (["--max-overtakes", "-1"], "--max-overtakes -1"),
        *(
            ([flag, str(2**63)], f"{flag} {2**63}: must not have more than 63 bits")
            for flag in ("--max-overtakes", "--watermark-tokens", "--max-queued-tokens", "--num-gpu-blocks-override")
        ),
        ([f"--seed={-(2**63)}"], f"--seed {-(2**63)}: must not"),
        (["--swap-space", "1e200"], "--swap-space"),
        (["--api-key", "a", "--tenant-weights", "1"], "--tenant-weights: needs --scheduling-policy fair"),
        ([*FAIR, "--tenant-weights", "1"], "--tenant-weights: 1 weights for 2 API keys"),
        ([*FAIR, "--tenant-weights", "1,2,3"], "--tenant-weights: 3 weights for 2 API keys"),
        *(([*FAIR, f"--tenant-weights=1,{weight}"], "--tenant-weights: every weight") for weight in ("0", "-1", "nan")),
        (["--lora-modules", "a=/x", "a=/y"], "--lora-modules a: given more than once"),
        (["--lora-modules", "a b=/x"], "--lora-modules a b=/x: must be NAME=PATH, the name without spaces"),
        (["--lora-modules", "=/x"], "--lora-modules =/x: must be NAME=PATH"),
        (["--lora-modules", "a="], "--lora-modules a=: must be NAME=PATH"),
        (["--max-lora-rank", "0"], "--max-lora-rank 0"),
        (["--max-lora-rank", "1025"], "--max-lora-rank 1025: must be at most 1024"),
        *((["--api-key", key], "--api-key") for key in ("", "two words", "schlüssel", "tab\there")),
        *((["--otlp-traces-endpoint", url], "must be a URL such as") for url in ("", "localhost:4318", "ftp://a/b")),
    ],
)
def test_a_setting_that_cannot_work_is_named(capsys: pytest.CaptureFixture[str], arguments, named) -> None:
    assert named in fails(capsys, *arguments)


def test_traces_need_packages_which_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.options.find_spec", lambda name: None)
    assert "octavo[tracing]" in fails(capsys, "--otlp-traces-endpoint", "http://127.0.0.1:4318")


def test_whoever_wants_no_traces_imports_nothing_for_them() -> None:
    program = (
        "import sys, server.cli, server.serving, server.http.http_server, server.observation.observers; "
        "sys.exit(any(name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def test_errors_of_a_start_are_json_where_logs_are() -> None:
    command = [sys.executable, "-m", "server.cli", "serve", "/no/such/model", "--log-format", "json", "--port", "0"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 1
    [line] = map(json.loads, finished.stderr.splitlines())
    assert (line["level"], line["logger"]) == ("error", "octavo.server")
    assert "/no/such/model" in line["message"]


def test_a_key_that_cannot_work_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert "secret" not in fails(capsys, "--api-key", "secret key")


@pytest.mark.parametrize("size", ["-1", "nan", "inf", "1e400", "much", ""])
def test_a_swap_space_that_is_no_size_is_wrong_usage(capsys: pytest.CaptureFixture[str], size) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["serve", f"--swap-space={size}"])
    assert exit_.value.code == 2
    assert "must be a number of GiB, 0 or more" in capsys.readouterr().err


@pytest.mark.parametrize("weights", ["", "1,", "1;2", "much"])
def test_weights_that_are_no_numbers_are_wrong_usage(capsys: pytest.CaptureFixture[str], weights) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["serve", f"--tenant-weights={weights}"])
    assert exit_.value.code == 2
    assert "must be numbers separated by commas" in capsys.readouterr().err


def test_an_adapter_without_a_path_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--lora-modules", "adapter"])
    assert "argument --lora-modules: adapter: must be NAME=PATH" in capsys.readouterr().err


def test_keys_come_from_flags_and_the_environment_and_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", " third,fourth ,,")
    options = cli._options(cli._parser().parse_args(["serve", "--api-key", "first", "--api-key", "second"]))
    options.validate()
    assert options.api_keys == ("first", "second", "third", "fourth")
    assert not any(key in repr(options) for key in options.api_keys)


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_closed_stderr_is_no_number_for_a_socket(closed: str, tmp_path: Path) -> None:
    program = f"""
import os, socket, subprocess, sys
from pathlib import Path
from server import cli
cli.main(["serve", "no-such-directory/at-all"])
child = subprocess.check_output(["readlink", "/proc/self/fd/2"])
told = (os.readlink("/proc/self/fd/2"), child.decode().strip(), sys.stderr.fileno(), socket.socket().fileno() > 2)
Path({str(tmp_path / "told")!r}).write_text(" ".join(map(str, told)))
"""
    subprocess.run(["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, program], check=True)
    assert (tmp_path / "told").read_text() == "/dev/null /dev/null 2 True"


def test_a_path_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "/no/such/model" in fails(capsys, "/no/such/model")


def test_a_port_in_use_is_told_before_the_model_is_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        line = fails(capsys, "/no/such/model", "--port", str(port))
    assert f"port {port}" in line
    assert "in use" in line


def modules_after(statement: str) -> set[str]:
    """Names of all modules that a fresh interpreter holds after ``statement``."""
    code = f"import sys; {statement}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    return set(run.stdout.split())


def test_the_api_process_imports_no_torch_and_no_transformers() -> None:
    modules = modules_after("import server.cli, server.serving, server.http.http_server, server.text_parts")
    assert modules.isdisjoint({"torch", "triton", "transformers"})


def test_help_is_there_within_half_a_second() -> None:
    before = os.times()
    run = subprocess.run(
        [sys.executable, "-c", "from server.cli import main; main(['serve', '--help'])"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    after = os.times()
    assert "usage: octavo serve" in run.stdout
    # of the processor, not of the clock: the test is to hold on a machine that is busy with other work
    assert after.children_user + after.children_system - before.children_user - before.children_system < 0.5


def test_the_command_itself_imports_next_to_nothing() -> None:
    modules = modules_after("import server.cli")
    assert modules.isdisjoint({"fastapi", "uvicorn", "pydantic", "msgspec", "numpy", "tokenizers", "engine.config"})
