from __future__ import annotations

import sys
import urllib.request
from pathlib import Path

import pytest

from benchmarks.machine import is_running, process_tree
from benchmarks.started_server import ServerStartError, StartedServer
from tests.free_port import free_port

# Answers /v1/models; with a second argument also /ready, with 503 for the first three times.
SERVER = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
asked = []

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/ready" and len(sys.argv) > 2:
            asked.append(self.path)
            status = 503 if len(asked) <= 3 else 200
        elif self.path == "/asked":
            status = 200 + len(asked)
        else:
            status = 200 if self.path == "/v1/models" else 404
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "server.py"
    path.write_text(SERVER)
    return path


def test_the_server_serves_inside_the_context_and_leaves_no_process_behind(script: Path) -> None:
    port = free_port()
    with StartedServer(f"{sys.executable} {script} {port}", f"http://127.0.0.1:{port}", timeout=30) as server:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models") as response:
            assert response.status == 200
        pids = process_tree(server.pid)
        assert server.ready_seconds > 0

    assert len(pids) == 2
    assert not any(is_running(pid) for pid in pids)


def test_a_server_that_says_it_is_not_ready_is_waited_for(script: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with (
        StartedServer(f"{sys.executable} {script} {url.rpartition(':')[2]} slow", url, timeout=30),
        urllib.request.urlopen(f"{url}/asked") as response,
    ):
        assert response.status == 204


def test_a_server_that_dies_is_reported_with_its_last_words() -> None:
    command = f"{sys.executable} -c \"raise SystemExit('no such model')\""

    with (
        pytest.raises(ServerStartError, match="ended with status 1:\nno such model"),
        StartedServer(command, f"http://127.0.0.1:{free_port()}", timeout=30),
    ):
        pass


def test_a_server_that_never_answers_is_stopped_at_the_limit() -> None:
    command = f'{sys.executable} -c "import signal; signal.pause()"'
    server = StartedServer(command, f"http://127.0.0.1:{free_port()}", timeout=0.1)

    with pytest.raises(ServerStartError, match=r"is not ready at http://127.0.0.1:\d+ after 0.1 s"), server:
        pass

    assert not is_running(server.pid)


def test_an_address_in_use_is_refused_before_anything_starts(script: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with (
        StartedServer(f"{sys.executable} {script} {port}", url, timeout=30),
        pytest.raises(ServerStartError, match="already"),
        StartedServer("false", url, timeout=30),
    ):
        pass


def test_a_command_that_does_not_exist_is_named() -> None:
    with pytest.raises(ServerStartError, match="cannot start 'no-such-command-here'"):
        StartedServer("no-such-command-here", f"http://127.0.0.1:{free_port()}", timeout=1).__enter__()
