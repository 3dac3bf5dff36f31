"""Clients that others build on, unmodified, against a real server: `make test-clients` installs and runs them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.conftest import ROOT, ServedModel

SCRIPTS = ROOT / "tests" / "clients"
INSTALLED = Path(os.environ["OCTAVO_TEST_CLIENTS"]).resolve()


@pytest.mark.parametrize("name", ["litellm", "langchain", "instructor", "anthropic"])
def test_a_client_for_python(served: ServedModel, run_script: Callable[..., str], name: str) -> None:
    script = SCRIPTS / "python" / f"use_{name}.py"
    assert run_script([str(INSTALLED / "bin" / "python"), str(script)]).splitlines()[-1] == "ok"
    served.server.wait_settled()


def test_the_ai_sdk(served: ServedModel, node_script: Callable[[Path, Path], str]) -> None:
    printed = node_script(SCRIPTS / "ai_sdk" / "ai_sdk.mjs", INSTALLED / "node" / "node_modules")
    assert printed.count("ok ") == len(printed.splitlines()) >= 5
    served.server.wait_settled()
