"""``octavo simulate``: arguments in, a table or JSON out, mistakes in one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.simulation import __main__
from scheduler.simulation.__main__ import main

ROOT = Path(__file__).parents[3]
DRAWN = ["--requests", "60", "--rate", "10"]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    lines = [{"arrival": i / 4, "prompt_tokens": 30, "output_tokens": 10, "max_tokens": 20} for i in range(20)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def rows(text: str) -> dict[str, list[str]]:
    """The table's cells by the label before them."""
    table = {}
    for line in text.splitlines():
        label, *cells = [cell for cell in line.split("  ") if cell.strip()]
        table.setdefault(label.strip(), [cell.strip() for cell in cells])
    return table


def test_several_sizes_are_columns_of_one_table(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trace", str(trace), "--pages", "8", "--pages", "1000"]) == 0

    table = rows(capsys.readouterr().out)
    assert table["pages"] == ["8", "1,000"]
    assert table["finished"] == ["20", "20"]
    assert table["preemptions"][1] == "0"
    assert table["pages held, peak"] == ["3", "3"]


def test_json_has_every_figure_of_every_size(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trace", str(trace), "--pages", "8", "--pages", "1000", "--json"]) == 0

    small, large = json.loads(capsys.readouterr().out)
    assert (small["num_pages"], large["num_pages"]) == (8, 1000)
    assert large["submitted"] == large["finished"] == 20
    assert large["generated_tokens"] == 200
    assert large["ttft"]["p50"] > 0
    assert large["num_preemptions"] == 0


def test_what_is_infinite_is_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*DRAWN, "--pages", "3", "--json"]) == 0

    [report] = json.loads(capsys.readouterr().out)
    assert report["refusals"]["never_fits"] > 0
    assert report["ttft_p99_of_all"] is None


def test_layers_policy_and_limits_reach_the_scheduler(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--windows 32x4,full --scheduling-policy fair --tenants a=3,b=1 --tenant-weights a=1,b=2"
    limits = "--max-queued-requests 1 --max-num-seqs 2 --queue-timeout 5"
    times = "--no-enable-prefix-caching --prefix-share 1 --step-base 0.1"
    assert main([*DRAWN, "--pages", "1000", *flags.split(), *limits.split(), *times.split()]) == 0

    table = rows(capsys.readouterr().out)
    assert int(table["refused: queue_full"][0]) > 0
    assert table["prompt tokens from cache"] == ["0.0 %"]
    assert "fairness (Jain), all service" in table
    assert int(table["Retry-After answers compared"][0]) > 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--pages", "8"], "either --trace FILE or --requests N with --rate is needed"),
        ([*DRAWN, "--trace", "x", "--pages", "8"], "either --trace FILE or --requests N with --rate is needed"),
        (["--requests", "5", "--pages", "8"], "--requests needs --rate, in requests a second"),
        (DRAWN, "either --pages N, once or several times, or --find-pages is needed"),
        ([*DRAWN, "--find-pages"], "--find-pages needs --target-ttft and --target-preemptions"),
        ([*DRAWN, "--pages", "0"], "argument --pages: 0 is not a whole number of at least 1"),
        ([*DRAWN, "--pages", "8", "--windows", "all"], "argument --windows: 'all' is neither full nor a window"),
        ([*DRAWN, "--pages", "8", "--tenants", "a"], "argument --tenants: 'a' is not NAME=NUMBER"),
        ([*DRAWN, "--pages", "8", "--prefix-share", "2"], "argument --prefix-share: 2 is not a share from 0 to 1"),
        ([*DRAWN, "--pages", "8", "--step-base", "nan"], "argument --step-base: nan is not a number of seconds"),
        (
            [*DRAWN, "--pages", "8", "--step-base", "1e10"],
            "argument --step-base: 1e10 is not a number of seconds, 0 to",
        ),
        ([*DRAWN, "--pages", "8", "--mean-prompt", "1e300"], "argument --mean-prompt: 1e300 is not a number above 0"),
        ([*DRAWN, "--pages", "8", "--length-sigma", "1e308"], "argument --length-sigma: 1e308 is not a number from 0"),
        ([*DRAWN, "--find-pages", "--target-preemptions", "x"], "argument --target-preemptions: x is not a number, 0"),
        ([*DRAWN, "--pages", "8", "--polcy", "fair"], "unrecognized arguments: --polcy fair"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)

    assert exit_.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"octavo simulate: {sentence}")


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("wrong.jsonl", '{"arrival": 0}\n', ', line 1: "prompt_tokens" is missing'),
        ("empty.jsonl", "\n\n", ", no line of it is a request"),
        ("missing.jsonl", None, ": [Errno 2] No such file or directory"),
    ],
)
def test_a_trace_that_cannot_be_read_is_one_sentence(
    name: str, content: str | None, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)

    assert main(["--trace", str(path), "--pages", "8"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"octavo simulate: --trace {path}{sentence}")


def test_the_pages_that_are_found_meet_the_targets_and_fewer_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    targets = ["--target-ttft", "0.5", "--target-preemptions", "0.01"]
    assert main([*DRAWN, "--find-pages", *targets, "--json"]) == 0

    output = capsys.readouterr()
    tried = {run["num_pages"]: run for run in json.loads(output.out)}
    met = [pages for pages, run in tried.items() if (run["ttft_p99_of_all"] or 9e9) <= 0.5]
    assert list(tried) == sorted(tried)
    assert met == list(tried)[-len(met) :]
    assert len(met) < len(tried)
    assert output.err == f"{met[0]} pages are enough.\n"


def test_targets_that_no_number_of_pages_meets_are_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*DRAWN, "--find-pages", "--target-ttft", "0.001", "--target-preemptions", "0"]) == 1

    assert "No number of pages meets the targets" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(("name", "begins"), [("plot.png", b"\x89PNG"), ("plot.svg", b"<?xml")])
def test_a_plot_is_written(name: str, begins: bytes, tmp_path: Path) -> None:
    assert main([*DRAWN, "--pages", "30", "--pages", "60", "--plot", str(tmp_path / name)]) == 0

    assert (tmp_path / name).read_bytes().startswith(begins)


def test_a_plot_that_cannot_be_made_is_said_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def says(path: Path) -> str:
        assert main([*DRAWN, "--pages", "30", "--plot", str(path)]) == 2
        output = capsys.readouterr()
        assert output.out == ""
        return output.err

    assert "the name must end in .png or .svg" in says(tmp_path / "plot.gif")
    assert "there is no folder" in says(tmp_path / "nowhere" / "plot.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert says(tmp_path / "plot.png") == "octavo simulate: --plot needs matplotlib: pip install 'octavo[simulate]'\n"


def test_more_pages_than_memory_holds_are_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(__main__, "Simulator", no_memory)
    assert main([*DRAWN, "--pages", "999999999999"]) == 2
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert "do not fit into memory" in output.err


def test_a_reader_of_the_table_may_leave(trace: Path) -> None:
    command = [sys.executable, "-m", "scheduler.simulation", "--trace", str(trace), "--pages", "100"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_octavo_simulate_is_this_command(trace: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "server" / "cli.py"), "simulate"]
    environment = {"PYTHONPATH": str(ROOT)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    ran = run("--trace", str(trace), "--pages", "100")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert rows(ran.stdout)["finished"] == ["20"]
    assert run("--help").stdout.startswith("usage: octavo simulate ")
    assert run().returncode == 2
