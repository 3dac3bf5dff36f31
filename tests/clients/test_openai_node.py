"""The official client for Node, unmodified, against a real server."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.conftest import ROOT, ServedModel, installed

SCRIPTS = ROOT / "tests" / "clients" / "node"
MODULES = Path(sys.prefix) / "node" / "node_modules"
ABORTED = 'octavo_requests_total{outcome="abort"}'
WANTED = json.loads((SCRIPTS / "package.json").read_text())["dependencies"]

pytestmark = [
    pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed"),
    pytest.mark.skipif(not installed(MODULES, WANTED), reason="`make install-node` has not installed openai for Node"),
]


def test_the_official_client_for_node(served: ServedModel, node_script: Callable[[Path, Path], str]) -> None:
    aborted = served.server.metrics()[ABORTED]
    printed = node_script(SCRIPTS / "openai.mjs", MODULES)
    assert printed.count("ok ") == len(printed.splitlines()) >= 7
    served.server.wait_settled()
    assert served.server.metrics()[ABORTED] == aborted + 1
