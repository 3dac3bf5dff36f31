"""The images' recipe and its context. No image is built here: what commands would do is not tested."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from server.cli import main
from tests.deploy.dockerfile import Dockerfile, context_keeps

ROOT = Path(__file__).parents[2]
RECIPE = Dockerfile((ROOT / "Dockerfile").read_text())
IGNORED = (ROOT / ".dockerignore").read_text()
IMAGES = ("cpu", "cuda")


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.splitlines()


def ran(image: str) -> str:
    """Every command of an image's stages."""
    return "\n".join(one.text for one in RECIPE.lineage(image) if one.name == "RUN")


def test_a_line_that_is_no_instruction_is_an_error() -> None:
    with pytest.raises(ValueError, match="RUNN pip"):
        Dockerfile("FROM a\nRUNN pip install x\n")


def test_every_copied_path_exists_and_is_not_ignored_and_every_named_stage_comes_before() -> None:
    seen: list[str] = []
    for stage in RECIPE.stages.values():
        for one in stage.all("COPY"):
            *sources, _ = one.words
            if "from" in one.flags:
                assert one.flags["from"] in seen
                continue
            for source in filter(lambda name: name != ".", sources):
                assert (ROOT / source).is_file(), source
                assert context_keeps(IGNORED, source), source
        for one in stage.all("RUN"):
            if mount := re.match(r"type=bind,from=(\w+),", one.flags.get("mount", "")):
                assert mount[1] in seen
        assert stage.base in seen or re.fullmatch(r"python:3\.\d+-slim", stage.base)
        seen.append(stage.name)


def test_the_context_holds_all_that_the_wheel_is_built_from_and_nothing_else() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = {pattern.removesuffix("*").partition(".")[0] for pattern in setuptools["packages"]["find"]["include"]}
    files = ("pyproject.toml", "setup.py", "constraints.txt", "README.md", "LICENSE")
    wanted = {path for path in tracked() if path in files or path.split("/")[0] in packages}

    assert {path for path in tracked() if context_keeps(IGNORED, path)} == wanted
    for path in (
        ".git/config",
        "kernels/cpu/liboctavo_cpu.so",
        "server/__pycache__/a.pyc",
        "models/a/b.gguf",
        ".venv/x",
    ):
        assert not context_keeps(IGNORED, path), path


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_serves_as_an_ordinary_user_and_watches_its_health(image: str) -> None:
    instructions = RECIPE.lineage(image)
    last = {one.name: one for one in instructions}

    assert last["ENTRYPOINT"].words == ["octavo", "serve", "--host", "0.0.0.0"]
    assert last["USER"].text == "1000"  # a number, so that runAsNonRoot can be checked without the image's users
    assert "--uid 1000" in ran(image)
    assert instructions[-1] is last["USER"]
    assert last["EXPOSE"].text == "8000"
    assert last["HEALTHCHECK"].text.startswith("CMD [")
    assert "http://127.0.0.1:8000/health" in last["HEALTHCHECK"].text


@pytest.mark.parametrize("image", IMAGES)
def test_what_an_image_writes_goes_to_its_volume_so_that_the_root_may_be_read_only(image: str) -> None:
    instructions = RECIPE.lineage(image)
    [volume] = [one.text for one in instructions if one.name == "VOLUME"]
    environment = dict(word.split("=", 1) for one in instructions if one.name == "ENV" for word in one.words)

    for name in ("OCTAVO_CACHE", "HF_HOME", "TRITON_CACHE_DIR"):
        assert Path(environment[name]).is_relative_to(volume), name
    assert f"install -d -o octavo -g octavo {volume}" in ran(image)


@pytest.mark.parametrize("image", IMAGES)
def test_dependencies_are_a_layer_that_the_sources_do_not_change(image: str) -> None:
    names = [one.text for one in RECIPE.stages[image].instructions if one.name in ("COPY", "RUN")]
    environment = RECIPE.lineage(f"{image}-environment")

    assert names[-2:] == ["/opt/octavo /opt/octavo", "pip install --no-deps /wheels/octavo-*.whl"]
    assert [one.text for one in environment if one.name == "COPY"] == ["pyproject.toml constraints.txt ./"]
    assert all("-c constraints.txt" in one.text for one in environment if "-r requirements.txt" in one.text)


def test_no_image_has_the_compiler_of_the_native_kernels_and_only_cuda_has_that_of_triton() -> None:
    assert re.search(r"install .*\bg\+\+", ran("wheel"))
    assert not re.search(r"g\+\+|gcc", ran("cpu"))
    assert re.search(r"install .*\bgcc libc6-dev\b", ran("cuda"))
    assert "g++" not in ran("cuda")


def test_without_a_target_the_image_for_cpus_is_built() -> None:
    assert list(RECIPE.stages)[-1] == "cpu"
    assert RECIPE.arguments["CPU_INDEX"].endswith("/cpu")


def test_the_native_kernels_ask_for_no_instruction_of_the_machine_they_are_built_on() -> None:
    recipe = (ROOT / "setup.py").read_text()

    assert "-march=" not in recipe
    assert "-mtune=" not in recipe
    assert 'VARIANTS = {"portable": []}' in recipe


def test_the_entrypoint_is_a_command_line_that_the_program_takes(capsys: pytest.CaptureFixture[str]) -> None:
    program, *arguments = next(one for one in RECIPE.lineage("cpu") if one.name == "ENTRYPOINT").words

    assert program == "octavo"
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--help"])
    assert ended.value.code == 0
    assert "--shutdown-timeout" in capsys.readouterr().out
