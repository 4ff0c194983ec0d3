"""Shader composition as text: no device."""

from __future__ import annotations

from pathlib import Path

import pytest

from emberd.runtime import compose as module


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "shader_dir", lambda: tmp_path)
    return tmp_path


def test_an_include_is_expanded_once_and_its_name_filled_in(folder: Path) -> None:
    (folder / "k.wgsl").write_text('#include "${part}.wgsl"\n#include "a.wgsl"\nbody')
    (folder / "a.wgsl").write_text("part a")
    text, _ = module.compose("k", {}, {"part": "a"})
    assert text.count("part a") == 1
    assert text.endswith("body")


@pytest.mark.parametrize("include", ["missing.wgsl", "${unknown}.wgsl"])
def test_an_unknown_file_or_name_raises(folder: Path, include: str) -> None:
    (folder / "k.wgsl").write_text(f'#include "{include}"\n')
    with pytest.raises((FileNotFoundError, KeyError)):
        module.compose("k", {}, {})


def test_constants_become_overrides_where_declared_and_const_lines_elsewhere(folder: Path) -> None:
    (folder / "k.wgsl").write_text("override WG: u32;\nbody")
    text, overrides = module.compose("k", {"WG": 64, "ROWS": 4, "EPS": 0.5, "ON": True}, {})
    assert overrides == {"WG": 64}
    assert "const ROWS: u32 = 4u;" in text
    assert "const EPS: f32 = 0.5f;" in text
    assert "const ON: bool = true;" in text
    assert "const WG" not in text
