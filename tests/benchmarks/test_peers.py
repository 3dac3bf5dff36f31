"""Commands of the servers that are compared: only those whose files are there, each with a port of its own."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from benchmarks.peers import Peers


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Directories as the commands expect them, with nothing in the files."""
    programs = ["llama/llama-server", "vllm/bin/python", "vllm/lib/libiomp5.so", "ov/bin/python"]
    files = ["hf/config.json", "q8_0.gguf", "openvino-fp16/model.xml", "openvino-int8/model.xml"]
    for name in (*programs, *(f"files/{file}" for file in files)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_every_server_has_a_label_and_a_port_of_its_own(machine: Path) -> None:
    peers = Peers(
        octavo=["bits", "int8", "bf16"],
        files=machine / "files",
        llama_cpp=machine / "llama",
        vllm=machine / "vllm",
        openvino=machine / "ov",
        first_port=9000,
    )
    servers = peers.servers()
    labels = ["octavo", "octavo int8", "octavo bf16", "llama.cpp q8_0", "vLLM bf16"]
    assert [server.label for server in servers] == [*labels, "OpenVINO GenAI fp16", "OpenVINO GenAI int8"]
    assert [server.url for server in servers] == [f"http://127.0.0.1:{port}" for port in range(9000, 9007)]
    for server in servers:
        assert server.command.endswith(f"--host 127.0.0.1 --port {server.url.rpartition(':')[2]}")


def test_vllm_computes_in_the_dtype_that_its_label_names(machine: Path) -> None:
    peers = Peers(files=machine / "files", vllm=machine / "vllm", vllm_dtype="float32", vllm_eager=True)
    (server,) = peers.servers()
    words = shlex.split(server.command)
    assert server.label == "vLLM float32, eager"
    assert words[words.index("--dtype") + 1] == "float32"


def test_a_file_that_is_not_there_is_a_server_less(machine: Path) -> None:
    peers = Peers(files=machine / "files", llama_cpp=machine / "llama")
    assert [server.label for server in peers.servers()] == ["llama.cpp q8_0"]
    (machine / "files/bf16.gguf").touch()
    assert [server.label for server in peers.servers()] == ["llama.cpp q8_0", "llama.cpp bf16"]


def test_all_servers_have_as_many_threads(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    peers = Peers(octavo=["bits", "bf16"], model="m.gguf", files=machine / "files", llama_cpp=machine / "llama")
    own, bf16, llama = [shlex.split(server.command) for server in peers.servers()]
    assert own[1:5] == ["serve", "m.gguf", "--threads", "5"]
    assert bf16[5:9] == ["--quantization", "none", "--dtype", "bfloat16"]
    assert [llama[llama.index(flag) + 1] for flag in ("-t", "-tb")] == ["5", "5"]


def test_pythons_of_peers_do_not_see_this_repository(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    peers = Peers(files=machine / "files", vllm=machine / "vllm", openvino=machine / "ov", vllm_eager=True)
    vllm, *openvino = [shlex.split(server.command) for server in peers.servers()]
    for words in (vllm, *openvino):
        assert words[:4] == ["env", "-u", "PYTHONPATH", "PYTHONSAFEPATH=1"]
    assert "VLLM_CPU_OMP_THREADS_BIND=0-2" in vllm
    (preload,) = [word for word in vllm if word.startswith("LD_PRELOAD=")]
    assert preload.endswith(str(machine / "vllm/lib/libiomp5.so"))
    assert "--enforce-eager" in vllm
    assert [words[words.index("--threads") + 1] for words in openvino] == ["3", "3"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"octavo": ["int3"]}, "no form int3 of octavo; there are bits, int8, bf16"),
        ({"vllm": Path("v")}, "peers need --files"),
        ({"llama_cpp": Path("/nowhere"), "files": Path("/")}, "there is no /nowhere/llama-server"),
        ({"vllm": Path("/nowhere"), "files": Path("/nowhere")}, "there is no /nowhere/hf"),
    ],
)
def test_what_cannot_be_started_is_named(given: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Peers(**given).servers()
