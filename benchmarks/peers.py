"""How each server that Octavo is compared with is started: its command, its environment, where it answers.

Knows command lines, not what they do or how long that takes. The files that peers serve are those of
``benchmarks.peer_files``, all made from one GGUF file; a peer whose files are not there is left out. Invariants: no two
servers have a label or a port in common; all have the same number of threads; Pythons of peers see nothing of this
repository, some of whose packages have names that they try to import.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import Conditions
from benchmarks.peer_files import BF16_GGUF, HF_DIRECTORY, OPENVINO_DIRECTORIES, Q8_0_GGUF

CONTEXT = 8192  # tokens that a peer must take in one request
MAX_NUM_SEQS = 64
VLLM_CACHE_GIB = 1  # 50,000 tokens of the default model in bfloat16
LAST_SERVED_NAME = "gemma"

OCTAVO_FORMS = {
    "bits": ("octavo", ""),
    "int8": ("octavo int8", "--quantization int8"),
    "bf16": ("octavo bf16", "--quantization none --dtype bfloat16"),
}


@dataclass(frozen=True)
class Server:
    """What to start, and where it then answers."""

    label: str
    url: str
    command: str


@dataclass(frozen=True, kw_only=True)
class Peers:
    """The servers of one comparison. Each directory None: without that peer.

    ``llama_cpp`` holds llama-server; ``vllm`` and ``openvino`` are virtual environments; ``files`` is what
    ``benchmarks.peer_files`` made.
    """

    octavo: Sequence[str] = ()
    model: str | None = None
    files: Path | None = None
    llama_cpp: Path | None = None
    vllm: Path | None = None
    openvino: Path | None = None
    vllm_eager: bool = False
    vllm_dtype: str = "bfloat16"
    first_port: int = 8201

    def servers(self) -> list[Server]:
        """Those that can be started, Octavo's first. ValueError for a form or a peer that is not there."""
        commands = [*self._octavo(), *self._llama_cpp(), *self._vllm(), *self._openvino()]
        return [
            Server(label, f"http://127.0.0.1:{port}", f"{command} --host 127.0.0.1 --port {port}")
            for port, (label, command) in enumerate(commands, self.first_port)
        ]

    def _octavo(self) -> Iterator[tuple[str, str]]:
        for form in self.octavo:
            if form not in OCTAVO_FORMS:
                raise ValueError(f"no form {form} of octavo; there are {', '.join(OCTAVO_FORMS)}")
            label, flags = OCTAVO_FORMS[form]
            program = Path(sys.executable).with_name("octavo")
            words = [str(program), "serve", *([self.model] if self.model else []), "--threads", _threads()]
            yield label, shlex.join([*words, *flags.split()])

    def _llama_cpp(self) -> Iterator[tuple[str, str]]:
        if self.llama_cpp is None:
            return
        program = _existing(self.llama_cpp / "llama-server")
        found = [(label, self._file(name)) for label, name in (("q8_0", Q8_0_GGUF), ("bf16", BF16_GGUF))]
        # one pool for all slots, as large as the largest load needs; the program's own defaults for batches
        shape = f"-np 32 -kvu -c {2 * CONTEXT} -b 2048 -ub 512 --no-webui --alias {LAST_SERVED_NAME}"
        for label, path in found:
            if path.exists():
                words = [str(program), "-m", str(path), "-t", _threads(), "-tb", _threads(), *shape.split()]
                yield f"llama.cpp {label}", shlex.join(["env", f"LD_LIBRARY_PATH={self.llama_cpp}", *words])

    def _vllm(self) -> Iterator[tuple[str, str]]:
        if self.vllm is None:
            return
        environment = {
            "VLLM_CPU_KVCACHE_SPACE": str(VLLM_CACHE_GIB),
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{int(_threads()) - 1}",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        if preloaded := _vllm_preload(self.vllm):
            environment["LD_PRELOAD"] = ":".join(preloaded)
        flags = f"--served-model-name {LAST_SERVED_NAME} --dtype {self.vllm_dtype} --max-model-len {CONTEXT}"
        flags += f" --max-num-seqs {MAX_NUM_SEQS} --max-num-batched-tokens 4096 --disable-uvicorn-access-log"
        model = _existing(self._file(HF_DIRECTORY))
        program = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *flags.split()]
        eager = ["--enforce-eager"] if self.vllm_eager else []
        label = f"vLLM {self.vllm_dtype.replace('bfloat16', 'bf16')}{', eager' if self.vllm_eager else ''}"
        yield label, _foreign_python(self.vllm, [*program, *eager], environment)

    def _openvino(self) -> Iterator[tuple[str, str]]:
        if self.openvino is None:
            return
        front = Path(__file__).with_name("openvino_front.py")
        tokenizer = self._file(HF_DIRECTORY) / "tokenizer.json"
        for form, name in OPENVINO_DIRECTORIES.items():
            if (directory := self._file(name)).exists():
                words = [str(front), str(directory), "--tokenizer", str(tokenizer), "--threads", _threads()]
                yield f"OpenVINO GenAI {form}", _foreign_python(self.openvino, words, {})

    def _file(self, name: str) -> Path:
        if self.files is None:
            raise ValueError("peers need --files, a directory that python -m benchmarks.peer_files made")
        return self.files / name


def _foreign_python(venv: Path, arguments: Sequence[str], environment: dict[str, str]) -> str:
    # the name, not what it links to: a virtual environment is found by it
    python = _existing(venv.absolute() / "bin" / "python")
    variables = [f"{name}={value}" for name, value in {"PYTHONSAFEPATH": "1", **environment}.items()]
    return shlex.join(["env", "-u", "PYTHONPATH", *variables, str(python), *arguments])


def _vllm_preload(venv: Path) -> list[str]:
    """What vLLM's page on CPUs advises to load first, as far as it is there."""
    allocators = sorted(Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"))
    runtimes = sorted((venv.absolute() / "lib").glob("libiomp5.so"))
    return [str(path) for path in (*allocators[:1], *runtimes)]


def _existing(path: Path) -> Path:
    if not path.exists():
        raise ValueError(f"there is no {path}")
    return path


def _threads() -> str:
    return os.environ.get("OMP_NUM_THREADS") or str(Conditions.now().cores)
