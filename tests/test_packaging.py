"""What is delivered: the wheel and the Makefile."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("block_manager", "scheduler", "kernels", "models", "engine", "server", "benchmarks")
SOURCES = (*PACKAGES, "pyproject.toml", "setup.py", "README.md", "LICENSE")
COMPILER = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
# Compiles nothing in place of each source that is there, and links that. `make install` has compiled the sources, which
# takes longer than most files of tests.
QUICK_COMPILER = """#!/bin/sh
case " $* " in *" -c "*) ;; *) exec {compiler} "$@" ;; esac
while [ "$1" != -c ]; do shift; done
[ -f "$2" ] || exit 1
while [ "$1" != -o ]; do shift; done
exec {compiler} -x c++ -fPIC -c /dev/null -o "$2"
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel as pip builds it from a copy of the sources, so that no build output of ours gets into it."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        else:
            shutil.copy(path, source)
    compiler = folder / "compiler"
    compiler.write_text(QUICK_COMPILER.format(compiler=COMPILER))
    compiler.chmod(0o755)
    command = [sys.executable, "-m", "pip", "wheel", str(source), "--no-deps", "--no-build-isolation", "--no-index"]
    finished = subprocess.run(
        [*command, "--wheel-dir", str(folder), "--disable-pip-version-check"],
        env={**os.environ, "CXX": str(compiler)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    (path,) = folder.glob("octavo-*.whl")
    return zipfile.ZipFile(path)


@pytest.mark.slow
def test_the_wheel_holds_every_module_of_ours(wheel: zipfile.ZipFile) -> None:
    expected = {str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}

    assert {name for name in wheel.namelist() if name.endswith(".py")} == expected


@pytest.mark.slow
def test_the_wheel_holds_the_chat_templates_and_the_native_sources(wheel: zipfile.ZipFile) -> None:
    expected = {str(path.relative_to(ROOT)) for path in (ROOT / "server" / "text").glob("*.jinja")}
    expected |= {
        str(path.relative_to(ROOT)) for suffix in ("cpp", "h") for path in ROOT.glob(f"kernels/cpu/*.{suffix}")
    }

    assert expected
    assert expected <= set(wheel.namelist())


@pytest.mark.slow
def test_the_wheel_holds_the_texts_that_benchmarks_read(wheel: zipfile.ZipFile) -> None:
    expected = {str(path.relative_to(ROOT)) for path in ROOT.glob("benchmarks/texts/*.txt")}

    assert expected
    assert expected <= set(wheel.namelist())


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_the_wheel_holds_the_native_library(wheel: zipfile.ZipFile) -> None:
    libraries = [name for name in wheel.namelist() if name.endswith(".so")]

    assert [str(Path(name).parent) for name in libraries] == ["kernels/cpu"]


@pytest.mark.slow
def test_the_wheel_installs_the_command_and_the_license(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))

    assert wheel.read(entry_points).decode().split() == ["[console_scripts]", "octavo", "=", "server.cli:main"]
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.namelist())


def requirement_name(requirement: str) -> str:
    return re.match(r"[A-Za-z0-9._-]+", requirement)[0].lower().replace("_", "-")  # type: ignore[index]


def test_every_direct_dependency_has_an_exact_version_in_ci() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]

    assert lines[0] == "torch==2.13.0"
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line)] == []
    names = [requirement_name(line) for line in lines]
    assert {requirement_name(r) for r in wanted} - set(names) == set()
    assert len(names) == len(set(names))


def test_transformers_is_no_run_time_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert "transformers" not in {requirement_name(requirement) for requirement in project["dependencies"]}


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    # without what an outer `make test ARGS=...` hands down
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "ARGS")}
    return subprocess.run(["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_every_command_installs_first() -> None:
    for target in ("serve", "test", "test-quick", "lint", "format", "bench"):
        assert ".ci/install" in make("--dry-run", "--always-make", target).stdout, target


def test_serve_passes_the_model_and_the_arguments_on() -> None:
    commands = make("--dry-run", "serve", "MODEL=/models/x", "ARGS=--port 9000").stdout

    assert ".venv/bin/octavo serve /models/x --port 9000" in commands


def test_an_old_python_is_refused_in_one_sentence(tmp_path: Path) -> None:
    old = tmp_path / "old-python"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.1\nexit 1\n')
    old.chmod(0o755)

    finished = subprocess.run(
        ["sh", str(ROOT / ".ci" / "install"), str(tmp_path / "venv")],
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(old)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 1
    assert finished.stderr == f"make install: PYTHON={old} is not Python 3.11 or newer (it says: Python 3.9.1)\n"
    assert not (tmp_path / "venv").exists()


def test_ci_runs_the_linters_and_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    readme_section = (ROOT / "README.md").read_text().split("## Test", 1)[1]

    assert re.findall(r"^make .*$", script, re.MULTILINE) == ["make install", "make lint", "make test"]
    assert "make test" in readme_section
