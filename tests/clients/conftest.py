"""A real server over a tiny model, and clients of others as they are, each in a process of its own.

The official clients run with the suite. What `make test-clients` installs runs only where OCTAVO_TEST_CLIENTS says so.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Server

ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-octavo-test"
MODEL = "org/tiny"
CLIENT_SECONDS = 120
TEMPLATE = (
    "{% for t in tools or [] %}[tool]{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\\n{{ c.function | tojson }}\\n</tool_call>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)

collect_ignore = [] if os.environ.get("OCTAVO_TEST_CLIENTS") else ["test_lm_eval.py", "test_other_clients.py"]


class ServedModel:
    """The server, and what it says without any client between."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.url = f"{server.url}/v1"
        server.http.headers["authorization"] = f"Bearer {KEY}"

    def post(self, path: str, **fields: Any) -> Any:
        """The answer to a greedy request."""
        response = self.server.http.post(path, json={"model": MODEL, "temperature": 0} | fields)
        assert response.status_code == 200, response.text
        return response.json()

    def completion(self, prompt: str, max_tokens: int) -> str:
        text = self.post("/v1/completions", prompt=prompt, max_tokens=max_tokens)["choices"][0]["text"]
        assert isinstance(text, str)
        return text

    def chat(self, content: str, max_tokens: int) -> str:
        messages = [{"role": "user", "content": content}]
        answer = self.post("/v1/chat/completions", messages=messages, max_tokens=max_tokens)
        text = answer["choices"][0]["message"]["content"]
        assert isinstance(text, str)
        return text

    def environment(self) -> dict[str, str]:
        """What a client's script is told: where, as whom, and what it should get."""
        expected = {"completion": self.completion("Hello", 16), "chat": self.chat("Hello", 16)}
        return {
            **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
            "OCTAVO_URL": self.url,
            "OCTAVO_KEY": KEY,
            "OCTAVO_MODEL": MODEL,
            "OCTAVO_EXPECTED": json.dumps(expected),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # it would ask for one over the network
        }


@pytest.fixture(scope="session")
def served(tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    directory = tmp_path_factory.mktemp("clients")
    template = directory / "template.jinja"
    template.write_text(TEMPLATE)
    server = Server(
        directory / "log", str(tiny_llama_dir), "--served-model-name", MODEL, "--api-key", KEY,
        "--chat-template", str(template), "--max-model-len", "2048", "--threads", "1",
        "--quantization", "none", "--dtype", "float32", "--kv-cache-dtype", "float32",
    )  # fmt: skip
    try:
        server.wait_ready()
        yield ServedModel(server)
    finally:
        server.stop()


@pytest.fixture
def run_script(served: ServedModel) -> Callable[..., str]:
    """Run a client's script to its end, which must be a good one; what it printed."""

    def run(command: list[str], **variables: str) -> str:
        finished = subprocess.run(
            command,
            env=served.environment() | variables,
            capture_output=True,
            text=True,
            timeout=CLIENT_SECONDS,
            check=False,
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr
        return finished.stdout

    return run


@pytest.fixture
def node_script(tmp_path: Path, run_script: Callable[..., str]) -> Callable[[Path, Path], str]:
    """Run a script of Node's where its packages can be found; they are not in the repository."""

    def run(script: Path, modules: Path) -> str:
        (tmp_path / "node_modules").symlink_to(modules, target_is_directory=True)
        (tmp_path / script.name).write_text(script.read_text())
        return run_script(["node", str(tmp_path / script.name)])

    return run


def installed(modules: Path, wanted: Mapping[str, str]) -> bool:
    """Whether the packages are there in the versions wanted."""
    try:
        found = {name: json.loads((modules / name / "package.json").read_text())["version"] for name in wanted}
    except FileNotFoundError:
        return False
    return found == dict(wanted)
