"""What a user installs: the wheel holds the package, every shader, the command and the licence."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from emberd import __version__

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_wheel_is_complete(tmp_path: Path) -> None:
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *isolation]
    done = subprocess.run(
        [*command, "--wheel-dir", str(tmp_path), str(ROOT)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"emberd-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        entry_points = archive.read(f"emberd-{__version__}.dist-info/entry_points.txt").decode()
    for shader in (ROOT / "shaders").rglob("*.wgsl"):
        assert f"emberd/shaders/{shader.relative_to(ROOT / 'shaders')}" in names
    for module in (ROOT / "src" / "emberd").rglob("*.py"):
        assert f"emberd/{module.relative_to(ROOT / 'src' / 'emberd')}" in names
    assert "emberd = emberd.cli:main" in entry_points
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.endswith((".gguf", ".pyc"))]


def test_python_m_emberd_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "emberd", "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"emberd {__version__}\n")
