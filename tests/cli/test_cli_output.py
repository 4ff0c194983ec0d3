"""Where output cannot be written: a full disk is one line, a reader that went away is silence."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from cli_harness import Result, assert_one_clear_line

from tiny_gguf import chain_model

pytestmark = pytest.mark.slow  # each starts processes

FULL = Path("/dev/full")
COMMANDS = [("list",), ("list", "--json"), ("show", "tiny"), ("list", "--help"), ("--version",)]
BUFFERED = pytest.mark.parametrize("buffered", [True, False])


@contextmanager
def started(
    arguments: tuple[str, ...], stdout: int, buffered: bool = True
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "emberd", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def result(arguments: tuple[str, ...], stdout: int, buffered: bool = True) -> Result:
    with started(arguments, stdout, buffered) as process:
        _, err = process.communicate(timeout=60)
        return Result(process.returncode, "", err)


@pytest.fixture(autouse=True)
def model(tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBERD_PORT", str(free_port))
    (tmp_path / "models").mkdir()
    chain_model(tmp_path / "models" / "tiny.gguf", {})


@pytest.fixture
def no_reader() -> Iterator[int]:
    """The writing end of a pipe whose reader went away."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@pytest.mark.skipif(not FULL.exists(), reason="this system has no full device")
@BUFFERED
@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_full_disk_is_one_line(arguments: tuple[str, ...], buffered: bool) -> None:
    with FULL.open("wb") as full:
        assert_one_clear_line(result(arguments, full.fileno(), buffered), "No space left")


@BUFFERED
@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_reader_that_went_away_ends_a_command_in_silence(
    arguments: tuple[str, ...], buffered: bool, no_reader: int
) -> None:
    ended = result(arguments, no_reader, buffered)
    assert (ended.code, ended.err) == (1, "")


@pytest.mark.parametrize("arguments", [("list",), ("batch", "--json")])
def test_an_output_that_was_closed_is_none(arguments: tuple[str, ...]) -> None:
    line = 'exec "$0" -m emberd "$@" >&-'
    ended = subprocess.run(
        ["sh", "-c", line, sys.executable, *arguments], stderr=subprocess.PIPE, text=True
    )
    assert "Traceback" not in ended.stderr
    assert ended.returncode == (0 if arguments == ("list",) else 1)  # no daemon has a batch


def test_a_daemon_serves_where_nobody_reads_its_output(free_port: int, no_reader: int) -> None:
    with started(("serve",), no_reader) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            try:
                reply = httpx.get(f"http://127.0.0.1:{free_port}/api/version", trust_env=False)
                assert reply.status_code == 200
                break
            except httpx.TransportError:
                time.sleep(0.05)
        assert process.poll() is None
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert "standard output cannot be written: Broken pipe" in err and "Traceback" not in err
