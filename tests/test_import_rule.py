"""Who may import whom, read from the sources and checked once in a real process.

Every import counts: at the top, inside functions, under TYPE_CHECKING and by `importlib.import_module("...")`. What
is under `if TYPE_CHECKING:` may name torch, since it is never executed, but no package of ours that the rule forbids.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# For each package, what it may import of ours besides itself: a package, or single modules of one.
MAY_IMPORT: Mapping[str, frozenset[str]] = {
    "block_manager": frozenset(),
    "scheduler": frozenset({"block_manager"}),
    "kernels": frozenset(),
    "models": frozenset({"kernels"}),
    "engine": frozenset({"block_manager", "scheduler", "kernels", "models"}),
    "server": frozenset(
        {
            "engine.client",
            "engine.messages",
            "engine.page_messages",
            "engine.histogram",
            "engine.sampling_params",
            "engine.config",
            "engine.engine_process",
            "engine.inspection",
            "engine.line_writer",
            "engine.log_format",
            "scheduler.request",
        }
    ),
    "benchmarks": frozenset(
        {
            "block_manager",
            "scheduler",
            "kernels",
            "models",
            "engine",
            "server.text.detokenizer",
            "server.text.errors",
            "server.text.gguf_vocabulary",
            "server.garbage_collection",
            "server.http.http_server",
            "server.http.listener",
            "server.logs.request_log",
            "server.observation.journal",
            "server.state",
            "server.tracing.span_export",
            "server.tracing.tracer",
            "server.text.token_spelling",
            "server.text.tokenizer",
            "server.text_parts",
        }
    ),
}
PRODUCT = tuple(package for package in MAY_IMPORT if package != "benchmarks")

# Packages that must work without what the rest installs; None where any third party is allowed.
THIRD_PARTIES: Mapping[str, frozenset[str] | None] = {
    "block_manager": frozenset(),
    "scheduler": frozenset(),
    "kernels": frozenset({"torch", "triton", "numpy"}),
}
TORCH_ALLOWED_IN = frozenset({"block_manager.kv_cache"})
# Optional third parties, imported by single modules when they are asked for.
OPTIONAL: Mapping[str, frozenset[str]] = {"scheduler.simulation.plot": frozenset({"matplotlib"})}
DEVICE_LIBRARIES = frozenset({"torch", "triton"})
VAGUE_NAMES = frozenset({"util", "utils", "helper", "helpers", "misc", "common"})
MOST_LINES = 450


@dataclass(frozen=True)
class Import:
    """One imported module: by which module of ours, in which line, and whether for type checkers only."""

    importer: str
    target: str
    line: int
    type_only: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"

    @property
    def package(self) -> str:
        return self.target.partition(".")[0]


def module_files() -> dict[str, Path]:
    files = {}
    for package in MAY_IMPORT:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


MODULES = module_files()


def imports_of(name: str, source: str, modules: Mapping[str, object], is_package: bool = False) -> list[Import]:
    """Every import of a module; ``from a import b`` names ``a.b`` where that is a module of ours, and ``a`` if not."""

    def absolute(node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = name.split(".")
        parents = parts[: len(parts) - node.level + is_package]
        return ".".join([*parents, *([node.module] if node.module else [])])

    def targets(node: ast.AST) -> Iterator[str]:
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(names=names):
                module = absolute(node)
                for alias in names:
                    member = f"{module}.{alias.name}"
                    yield member if member in modules else module
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield module

    def walk(node: ast.AST, type_only: bool) -> Iterator[Import]:
        yield from (Import(name, target, getattr(node, "lineno", 0), type_only) for target in targets(node))
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for child in node.body:
                yield from walk(child, True)
            children: Sequence[ast.AST] = node.orelse
        else:
            children = list(ast.iter_child_nodes(node))
        for child in children:
            yield from walk(child, type_only)

    return list(dict.fromkeys(walk(ast.parse(source), False)))


@cache
def imports() -> list[Import]:
    """Every import of every module."""
    return [
        found
        for module, path in MODULES.items()
        for found in imports_of(module, path.read_text(encoding="utf-8"), MODULES, path.name == "__init__.py")
    ]


def is_allowed(found: Import) -> bool:
    """Whether a package may import this at all: one of ours by the rule, a third party by the list, or the library."""
    importer = found.importer.partition(".")[0]
    if found.package == importer or found.package in sys.stdlib_module_names:
        return True
    if found.package in MAY_IMPORT:
        return bool({found.package, found.target} & MAY_IMPORT[importer])
    if found.package in DEVICE_LIBRARIES and (found.type_only or found.importer in TORCH_ALLOWED_IN):
        return True
    if found.package in OPTIONAL.get(found.importer, ()):
        return True
    third_parties = THIRD_PARTIES.get(importer)
    return third_parties is None or found.package in third_parties


def test_packages_import_downwards_only() -> None:
    assert [str(found) for found in imports() if not is_allowed(found)] == []


def test_no_product_package_imports_server() -> None:
    outside = [
        found
        for found in imports()
        if found.package == "server" and not found.importer.startswith(("server", "benchmarks"))
    ]

    assert [str(found) for found in outside] == []


def test_no_product_module_imports_transformers() -> None:
    assert [str(found) for found in imports() if found.package == "transformers"] == []


def test_server_names_no_device_library() -> None:
    devices = [
        found for found in imports() if found.importer.startswith("server") and found.package in DEVICE_LIBRARIES
    ]

    assert [str(found) for found in devices] == []


def test_there_are_no_circles() -> None:
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for found in imports():
        if found.target in MODULES and found.target != found.importer:
            graph[found.importer].add(found.target)

    assert circles(graph) == []


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """One path around each circle that a depth-first walk meets."""
    found: list[list[str]] = []
    finished: set[str] = set()

    def visit(module: str, path: list[str]) -> None:
        if module in path:
            found.append([*path[path.index(module) :], module])
        elif module not in finished:
            for target in sorted(graph[module]):
                visit(target, [*path, module])
            finished.add(module)

    for module in sorted(graph):
        visit(module, [])
    return found


def run_python(code: str) -> str:
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


def test_the_api_process_imports_neither_torch_nor_transformers() -> None:
    loaded = run_python(
        "import sys; sys.path.insert(0, '.'); import server.app, server.cli;"
        "print(sorted({'torch', 'triton', 'transformers'} & set(sys.modules)))"
    )

    assert loaded == "[]"


def test_pages_and_scheduling_need_no_torch_when_they_run() -> None:
    modules = [m for m in MODULES if m.startswith(("block_manager", "scheduler")) and m not in TORCH_ALLOWED_IN]

    loaded = run_python(
        f"import sys; sys.path.insert(0, '.'); import {', '.join(modules)};"
        "print(sorted({'torch', 'triton', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )

    assert loaded == "[]"


def test_no_product_file_is_too_long() -> None:
    paths = [
        path
        for package in PRODUCT
        for pattern in ("*.py", "*.cpp", "*.h")
        for path in (ROOT / package).rglob(pattern)
        if len(path.read_text(encoding="utf-8").splitlines()) > MOST_LINES
    ]

    assert [str(path.relative_to(ROOT)) for path in paths] == []


def test_every_module_has_a_name_of_its_own() -> None:
    assert [module for module in MODULES if VAGUE_NAMES & set(module.split("."))] == []


def test_every_module_says_what_it_is() -> None:
    silent = [m for m, path in MODULES.items() if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))]

    assert silent == []


SOURCE = """
import torch
from typing import TYPE_CHECKING
from engine import client
from .queue import WaitingQueue
from .. import server
if TYPE_CHECKING:
    from kernels.attention import AttentionMetadata
else:
    import numpy
def late():
    from models import spec
    import_module("server.app")
"""


def test_the_reader_sees_every_kind_of_import() -> None:
    found = imports_of("scheduler.scheduler", SOURCE, {"engine.client": 0, "scheduler.queue": 0, "models": 0})

    assert [(entry.target, entry.type_only) for entry in found] == [
        ("torch", False),
        ("typing", False),
        ("engine.client", False),
        ("scheduler.queue", False),
        ("", False),
        ("kernels.attention", True),
        ("numpy", False),
        ("models", False),
        ("server.app", False),
    ]


@pytest.mark.parametrize(
    ("importer", "target", "type_only", "allowed"),
    [
        ("block_manager.manager", "scheduler", True, False),
        ("block_manager.manager", "torch", False, False),
        ("block_manager.manager", "torch", True, True),
        ("block_manager.kv_cache", "torch.nn", False, True),
        ("scheduler.scheduler", "block_manager.manager", False, True),
        ("scheduler.scheduler", "torch", False, False),
        ("scheduler.scheduler", "msgspec", False, False),
        ("scheduler.simulation.plot", "matplotlib.figure", False, True),
        ("scheduler.simulation.report", "matplotlib", False, False),
        ("kernels.gpu.decode", "triton.language", False, True),
        ("kernels.gpu.decode", "models.spec", True, False),
        ("kernels.gpu.decode", "orjson", False, False),
        ("models.decoder", "kernels.attention", False, True),
        ("models.decoder", "block_manager.kv_cache", False, False),
        ("models.loader", "gguf", False, True),
        ("engine.runner", "models.decoder", False, True),
        ("engine.runner", "server.app", True, False),
        ("server.app", "engine.client", False, True),
        ("server.app", "engine.engine", False, False),
        ("server.app", "engine", False, False),
        ("server.app", "scheduler.request", False, True),
        ("server.app", "scheduler.scheduler", True, False),
        ("benchmarks.kv_study.study", "server.text_parts", False, True),
        ("benchmarks.kv_study.study", "server.app", False, False),
    ],
)
def test_the_rule(importer: str, target: str, type_only: bool, allowed: bool) -> None:
    assert is_allowed(Import(importer, target, 1, type_only)) is allowed


def test_a_circle_is_found_wherever_the_walk_starts() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c", "b"]]
