"""What the checks of agents share: run one in an empty folder, and see that its tool ran and its answer came.

The scripted model calls the shell tool, whose command writes a file, and answers once the result is back.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ANSWER = "The tool has run, all is well."
TASK = "Write a file."


def home() -> Path:
    return Path(os.environ["HOME"])


def drive(
    name: str,
    command: list[str],
    seconds: int = 240,
    files: dict[str, str] | None = None,
    **env: str,
) -> str:
    """The agent's output, after a whole loop in the folder `name`; `files` lie there at its start."""
    folder = Path.cwd() / name
    folder.mkdir()
    for path, text in (files or {}).items():
        (folder / path).write_text(text)
    told = output(command, folder, seconds, env)
    made = [path.name for path in folder.glob("made-by-*.txt")]
    assert made, f"the tool did not run: {told[-300:]}"
    assert ANSWER in told, f"no answer after the tool: {told[-300:]}"
    return f"{made[0]}, then the answer"


def output(command: list[str], folder: Path, seconds: int, env: dict[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stdout[-300:]}"
    return done.stdout
