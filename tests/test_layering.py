"""The import table of docs/architecture.md, held by reading every import of the package, lazy ones too."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "emberd"

# For each part: the other parts it may import, and the outside packages it must not.
ALLOWED: dict[str, set[str]] = {
    "__init__": set(),
    "__main__": {"cli"},
    "cli": {
        "bench",
        "config",
        "errors",
        "estimate",
        "gateway",
        "gguf",
        "hardware",
        "keys",
        "logs",
        "models",
        "protocol",
        "runtime",
        "verify",
        "worker",
    },
    "bench": {"engine", "protocol"},
    "verify": {"errors", "gguf", "protocol", "reference", "runtime", "text"},
    "gateway": {
        "text",
        "models",
        "protocol",
        "config",
        "errors",
        "inspection",
        "keys",
        "logs",
        "values",
    },
    "models": {
        "worker",
        "gguf",
        "text",
        "protocol",
        "config",
        "errors",
        "estimate",
        "hardware",
        "inspection",
    },
    "text": {"protocol", "errors"},
    "worker": {
        "protocol",
        "inspection",
        "errors",
        "estimate",
        "hardware",
        "logs",
        "engine",
        "runtime",
        "reference",
        "gguf",
        "verify",
    },
    "engine": {"protocol", "inspection", "errors"},
    "runtime": {"gguf", "protocol", "errors", "estimate", "hardware"},
    "reference": {"gguf", "protocol", "errors", "estimate", "hardware"},
    "gguf": {"errors"},
    "estimate": {"hardware", "protocol"},
    "hardware": set(),
    "config": {"errors", "keys", "values"},
    "values": set(),
    "keys": {"errors"},
    "logs": set(),
    "protocol": {"hardware", "inspection"},
    "inspection": set(),
    "errors": set(),
}
FORBIDDEN_OUTSIDE: dict[str, set[str]] = {
    "gateway": {"wgpu", "numpy"},
    "models": {"wgpu"},
    "text": {"wgpu"},
    "worker": {"wgpu"},
    "engine": {"wgpu"},
    "reference": {"wgpu"},
    "gguf": {"wgpu"},
    "config": {"wgpu"},
    "protocol": {"wgpu"},
    "errors": {"wgpu"},
}
# Parts of a package that the rows above do not tell apart: what only one module may import.
WORKER_CHILD_ONLY = {"engine", "runtime", "reference", "gguf", "verify"}
WORKER_CHILD = {"process.py", "checked.py", "draft.py"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imports(path: Path) -> list[tuple[str, ...]]:
    """Dotted names that a module imports, as tuples, relative ones resolved."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, ...]]:
    package = ("emberd", *path.relative_to(PACKAGE).with_suffix("").parts)[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            name = (*base, *(node.module.split(".") if node.module else ()))
            # `from .. import x` may name a module or a value of the package.
            yield from ((*name, alias.name) for alias in node.names)


def inner_imports(path: Path) -> Iterator[tuple[str, ...]]:
    for name in imports(path):
        if name[0] == "emberd" and len(name) > 1 and name[1] in ALLOWED:
            yield name[1:]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_imports_what_its_part_may(path: Path) -> None:
    part = part_of(path)
    allowed = ALLOWED[part] | {part}
    wrong = {".".join(name) for name in inner_imports(path) if name[0] not in allowed}
    assert not wrong, f"{part} may not import {wrong}"
    outside = {name[0] for name in imports(path)}
    assert not outside & FORBIDDEN_OUTSIDE.get(part, set())


def test_only_the_child_process_brings_engine_and_runners_into_the_worker() -> None:
    for path in modules():
        if part_of(path) == "worker" and path.name not in WORKER_CHILD:
            assert not {name[0] for name in inner_imports(path)} & WORKER_CHILD_ONLY, path


def test_models_sees_only_the_client_of_the_worker() -> None:
    for path in modules():
        if part_of(path) == "models":
            found = {name[1] for name in inner_imports(path) if name[0] == "worker"}
            assert found <= {"client"}, path


def test_wgpu_private_library_is_touched_in_two_places_only() -> None:
    for path in modules():
        private = {name for name in imports(path) if name[:2] == ("wgpu", "backends")}
        assert not private or path.name in {"device.py", "replay.py"}, (path, private)


def test_every_part_has_a_row() -> None:
    assert {part_of(path) for path in modules()} == set(ALLOWED)


def test_importing_the_command_line_brings_no_heavy_package() -> None:
    """`emberd --help` and `emberd list` must not wait for a GPU library or a web server."""
    code = "import sys, emberd.cli; print(*{'wgpu', 'tokenizers', 'uvicorn', 'fastapi'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
