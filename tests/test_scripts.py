"""scripts/fetch-models without a network, and scripts/sizes."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import zipfile
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A script without a suffix as a module, without leaving bytecode beside it."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = SourceFileLoader(name.replace("-", "_"), str(SCRIPTS / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, loader.name, module)
    loader.exec_module(module)
    return module


class Index:
    """Stands in for pip: writes a wheel with one part, and counts."""

    def __init__(self, parts: dict[str, bytes]) -> None:
        self.parts = parts
        self.asked: list[str] = []
        self.broken: set[str] = set()

    def download(self, requirement: str, folder: Path) -> Path:
        wheel = folder / "package.whl"
        if wheel.exists() and zipfile.is_zipfile(wheel):
            return wheel
        self.asked.append(requirement)
        if requirement in self.broken:
            raise self.fault(f"pip could not download {requirement}")
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("part", self.parts[requirement])
        return wheel

    fault: type[Exception] = RuntimeError


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, Index]:
    module = load("fetch-models", monkeypatch)
    index = Index({"a==1": b"first ", "b==1": b"second"})
    index.fault = module.FetchError
    monkeypatch.setattr(module, "download", index.download)
    digest = hashlib.sha256(b"first second").hexdigest()
    model = module.Model("whole.gguf", digest, (("a==1", "part"), ("b==1", "part")))
    monkeypatch.setattr(module, "MODELS", {"whole": model})
    return module, index


def run(module: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fetch-models", *arguments])
    return int(module.main())


def test_parts_are_joined_once(
    fetched: tuple[ModuleType, Index], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, index = fetched
    for _ in range(2):
        assert run(module, monkeypatch, "all", "--dir", str(tmp_path)) == 0
    assert (tmp_path / "whole.gguf").read_bytes() == b"first second"
    assert index.asked == ["a==1", "b==1"]
    assert run(module, monkeypatch, "--dir", str(tmp_path), "--file-name", "other.gguf") == 0
    assert {path.name for path in tmp_path.glob("[!.]*")} == {"other.gguf", "whole.gguf"}
    assert not list(tmp_path.glob(".partial*"))


def test_a_cut_run_goes_on_where_it_stood(
    fetched: tuple[ModuleType, Index], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, index = fetched
    index.broken = {"b==1"}
    assert run(module, monkeypatch, "whole", "--dir", str(tmp_path)) == 1
    assert not (tmp_path / "whole.gguf").exists()
    index.broken = set()
    assert run(module, monkeypatch, "whole", "--dir", str(tmp_path)) == 0
    assert index.asked == ["a==1", "b==1", "b==1"]


def test_a_wrong_digest_leaves_nothing(
    fetched: tuple[ModuleType, Index],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module, index = fetched
    index.parts["b==1"] = b"tampered"
    assert run(module, monkeypatch, "whole", "--dir", str(tmp_path)) == 1
    assert "SHA-256" in capsys.readouterr().err
    assert not [path for path in tmp_path.glob("*") if not path.name.startswith(".lock")]


def test_sizes_wants_a_reason_for_a_long_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = load("sizes", monkeypatch)
    (tmp_path / "src").mkdir()
    file = tmp_path / "src" / "long.py"
    monkeypatch.setattr(sizes, "ROOT", tmp_path)
    file.write_text("x = 1\n" * 401)
    assert sizes.main() == 1
    assert "long.py: 401 lines" in capsys.readouterr().out
    file.write_text('"""Longer than 400 lines because it is one table."""\n' + "x = 1\n" * 400)
    assert sizes.main() == 0
