"""The systemd unit, held against systemd itself where it is installed, and against the program that it runs."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine.engine_process import CLOSE_TIMEOUT
from server.flags import add_model_flags, add_server_flags
from server.http.http_server import SHUTDOWN_SECONDS
from tests.deploy.dockerfile import Dockerfile

ROOT = Path(__file__).parents[2]
UNIT = (ROOT / "deploy" / "systemd" / "octavo.service").read_text()
MOST_EXPOSED = 20  # tenths, of 100: systemd calls up to 19 "OK" and less


def setting(name: str) -> str:
    [value] = re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)
    return str(value)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit as a file, with a program that exists on this machine."""
    file = tmp_path / "octavo.service"
    file.write_text(UNIT.replace("/opt/octavo/bin/octavo", sys.executable))
    return file


def systemd_analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian: systemd)")
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)


def test_systemd_has_nothing_to_say_about_the_unit(installed: Path) -> None:
    verified = systemd_analyze("verify", "--man=no", str(installed))

    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")


def test_the_service_is_shut_off_from_the_rest_of_the_machine(installed: Path) -> None:
    rated = systemd_analyze("security", "--offline=true", f"--threshold={MOST_EXPOSED}", str(installed))

    assert rated.returncode == 0, rated.stdout[-300:] + rated.stderr


def test_j04_the_service_gets_the_time_that_draining_takes() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_model_flags(parser)
    add_server_flags(parser)
    program, command, *arguments, more = setting("ExecStart").split()

    parsed = parser.parse_args(arguments)

    assert (program, command, more) == ("/opt/octavo/bin/octavo", "serve", "$OCTAVO_ARGS")
    assert parsed.host == "127.0.0.1"
    assert int(setting("TimeoutStopSec")) > parsed.shutdown_timeout + SHUTDOWN_SECONDS + CLOSE_TIMEOUT
    assert setting("KillSignal") == "SIGTERM"
    assert setting("KillMode") == "mixed"  # the engine is told by the server, when the last request is over


def test_what_it_writes_goes_to_its_cache_folder_as_in_the_images() -> None:
    instructions = Dockerfile((ROOT / "Dockerfile").read_text()).lineage("cpu")
    of_image = dict(word.split("=", 1) for one in instructions if one.name == "ENV" for word in one.words)
    of_service = dict(word.split("=", 1) for word in setting("Environment").split())

    assert of_service == {name: of_image[name] for name in ("OCTAVO_CACHE", "HF_HOME", "TRITON_CACHE_DIR")}
    assert of_service["OCTAVO_CACHE"] == f"/var/cache/{setting('CacheDirectory')}"


def test_keys_come_from_a_file_and_not_from_the_command_line() -> None:
    variables = (ROOT / "deploy" / "systemd" / "octavo.env").read_text()

    assert setting("EnvironmentFile") == "-/etc/octavo/octavo.env"
    assert re.findall(r"^#?([A-Z_]+)=$", variables, re.MULTILINE) == [
        "OCTAVO_ARGS",
        "OCTAVO_API_KEY",
        "OCTAVO_ADMIN_KEY",
        "HF_TOKEN",
    ]
    assert "key" not in setting("ExecStart").lower()
