"""An environment a client: a virtual environment, or a folder that npm fills. Made once, then kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from .clients import Client

INSTALL_SECONDS = 1500


class InstallError(Exception):
    """Why a client could not be installed."""


def prepare(client: Client, cache: Path) -> Path:
    """The folder of the client's environment, made where it is missing or was made for other requirements."""
    folder = cache / client.name
    stamp = folder / ".installed"
    wanted = "\n".join(client.requires)
    if stamp.is_file() and stamp.read_text() == wanted:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"installing {client.name}", file=sys.stderr, flush=True)
    if client.kind == "pip":
        _run([sys.executable, "-m", "venv", str(folder / "venv")], folder)
        python = str(folder / "venv" / "bin" / "python")
        if any("torch" in one for one in client.requires):  # pip may know of a wheel for the CPU
            _run([python, "-m", "pip", "install", "-q", *client.requires], folder)
        else:
            _run([*_installer(cache, python), *client.requires], folder)
    elif client.kind == "npm":
        (folder / "package.json").write_text('{"private": true}')
        _run(["npm", "install", "--no-audit", "--no-fund", "--silent", *client.requires], folder)
    stamp.write_text(wanted)
    return folder


def version(client: Client, folder: Path) -> str:
    """Of the client's main package, as it is installed."""
    if client.kind == "npm":
        path = folder / "node_modules" / client.package / "package.json"
        return str(json.loads(path.read_text())["version"])
    if client.kind == "none":
        return ""
    code = f"import importlib.metadata as m; print(m.version({client.package!r}))"
    python = folder / "venv" / "bin" / "python"
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()


def command(client: Client, folder: Path, check: Path) -> list[str]:
    """What runs the check. node finds packages beside the file that asks, so its checks are copied there."""
    if check.suffix == ".mjs":
        for path in check.parent.glob("*.mjs"):
            shutil.copy(path, folder / path.name)
        return ["node", str(folder / check.name)]
    python = folder / "venv" / "bin" / "python" if client.kind == "pip" else Path(sys.executable)
    return [str(python), str(check)]


def _installer(cache: Path, python: str) -> list[str]:
    """uv, which shares files between environments, else pip."""
    tools = cache / "tools"
    uv = tools / "bin" / "uv"
    if not uv.exists():
        subprocess.run([sys.executable, "-m", "venv", tools], capture_output=True)
        pip = [tools / "bin" / "python", "-m", "pip", "install", "-q", "uv"]
        subprocess.run(pip, capture_output=True)
    if uv.exists():
        return [str(uv), "pip", "install", "-q", "--python", python]
    return [python, "-m", "pip", "install", "-q"]


def _run(command: list[str], folder: Path) -> None:
    log = folder.parent / f"{folder.name}.install.log"
    with log.open("a") as out:
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=INSTALL_SECONDS,
                env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InstallError(f"{command[0]}: {error}") from None
    if done.returncode:
        raise InstallError(f"{' '.join(command[:4])} failed; see {log.name}: {_end_of(log)}")


def _end_of(log: Path) -> str:
    return " ".join(log.read_text(errors="replace").split()[-40:])
