"""serve and run as real processes: the ready lines, ports, leaving, and the private daemon of `run`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tiny_gguf import script_model

EMBERD = [sys.executable, "-m", "emberd"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """After a question or a sentence it writes "Yes!" and ends."""
    return script_model(tmp_path / "talker.gguf", {"?": ["Yes", "!"], ".": ["Yes", "!"]})


@contextmanager
def serving(*flags: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A daemon on the CPU, and its first two lines."""
    command = [*EMBERD, "serve", "--device", "cpu", "--port", "0", *flags]
    daemon = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert daemon.stdout is not None
    try:
        yield daemon, [daemon.stdout.readline() for _ in range(2)]
    finally:
        daemon.kill()
        daemon.wait()
        daemon.stdout.close()


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*EMBERD, *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=os.environ | environment,
        timeout=100,
    )


def test_serve_prints_its_url_and_a_line_that_works(model: Path) -> None:
    with serving("--model", str(model)) as (daemon, lines):
        url = re.search(r"listens on (http://\S+)", lines[0])
        assert url is not None
        asked = re.fullmatch(r"try: curl (\S+) -d '(.*)'\n", lines[1])
        assert asked is not None and asked[1].startswith(url[1])
        headers = {"Content-Type": "application/x-www-form-urlencoded"}  # what curl -d sends
        reply = httpx.post(asked[1], content=asked[2], headers=headers, timeout=60)
        assert reply.json()["choices"][0]["message"]["content"] == "Yes!"

        port = url[1].rpartition(":")[2]
        taken = run("serve", "--port", port)
        assert taken.returncode == 1 and taken.stderr.count("\n") == 1
        assert port in taken.stderr and "--port" in taken.stderr

        assert run("run", "talker", "Well?", EMBERD_PORT=port).stdout == "Yes!\n"
        assert "talker" in run("ps", EMBERD_PORT=port).stdout
        assert run("stop", "talker", EMBERD_PORT=port).stdout == "talker is unloaded\n"

        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(30) == 0


def test_run_starts_a_private_daemon_that_ends_with_it(model: Path, free_port: int) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    done = run("run", str(model), "Well?", "--device", "cpu", EMBERD_PORT=str(free_port))
    assert (done.returncode, done.stdout) == (0, "Yes!\n"), done.stderr
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
    strays = [
        process.info["pid"]
        for process in psutil.process_iter(["pid", "cmdline"])
        if str(model) in (process.info["cmdline"] or [])
    ]
    assert strays == []


def test_run_answers_by_the_file_of_a_path_whatever_the_daemon_calls_so(
    model: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    other = script_model(tmp_path / "mine" / model.name, {"?": ["No", "."]})
    with serving("--model", str(model)) as (_, lines):
        port = lines[0].strip().rpartition(":")[2]
        given = {"EMBERD_PORT": port, "EMBERD_DEVICE": "cpu"}
        assert run("run", str(other), "Well?", **given).stdout == "No.\n"
        assert run("run", str(model), "Well?", **given).stdout == "Yes!\n"
        missing = run("run", str(tmp_path / "none.gguf"), "Well?", **given)
        assert missing.returncode == 1
        assert missing.stderr == f"error: {tmp_path / 'none.gguf'}: no such file\n"


def test_run_tells_why_the_private_daemon_did_not_start(free_port: int) -> None:
    done = run("run", "nothing", "hi", EMBERD_PORT=str(free_port))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and "nothing" in done.stderr
    assert done.stderr.count("\n") == 1


def test_run_looks_into_the_models_folder_of_its_flag(model: Path, free_port: int) -> None:
    folder = str(model.parent)
    asked = ["run", "talker", "Well?", "--device", "cpu", "--models-dir", folder]
    done = run(*asked, EMBERD_PORT=str(free_port))
    assert (done.returncode, done.stdout) == (0, "Yes!\n"), done.stderr


def test_other_machines_are_not_let_in_without_a_key(model: Path) -> None:
    refused = run("serve", "--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 1 and refused.stderr.count("\n") == 1
    assert "0.0.0.0" in refused.stderr and "--insecure" in refused.stderr
    with serving("--model", str(model), "--host", "0.0.0.0", "--insecure") as (_, lines):
        assert "listens on http://127.0.0.1:" in lines[0]


def test_a_key_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    missing, odd = tmp_path / "none", tmp_path / "odd"
    odd.write_bytes(b"key\xff\n")
    odd.chmod(0o600)
    for path, said in (
        (missing, "cannot be read: No such file or directory"),
        (odd, "is not UTF-8"),
    ):
        refused = run("serve", "--port", "0", "--api-key-file", str(path))
        assert (refused.returncode, refused.stderr) == (1, f"error: the key file {path} {said}\n")


def test_commands_send_the_key_of_their_environment(model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("small:infer\nsecret-key\n")
    with serving("--model", str(model), "--api-key-file", str(keys)) as (_, lines):
        port = lines[0].strip().rpartition(":")[2]
        refused = run("run", "talker", "Well?", EMBERD_PORT=port)
        assert refused.returncode == 1 and "API key is needed" in refused.stderr
        wrong = run("ps", EMBERD_PORT=port, EMBERD_API_KEYS="other")
        assert wrong.returncode == 1 and "not known here" in wrong.stderr
        assert "other" not in wrong.stderr
        done = run("run", "talker", "Well?", EMBERD_PORT=port, EMBERD_API_KEY_FILE=str(keys))
        assert done.stdout == "Yes!\n", done.stderr
        assert "talker" in run("ps", EMBERD_PORT=port, EMBERD_API_KEYS="secret-key").stdout


def test_a_unix_socket_in_place_of_a_port(model: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # short: such paths have a limit
        path = f"{folder}/s"
        with serving("--model", str(model), "--socket", path) as (daemon, lines):
            assert lines[0].endswith(f"listens on {path}\n")
            assert f"curl --unix-socket {path} http://localhost/v1/" in lines[1]
            assert run("run", "talker", "Well?", EMBERD_SOCKET=path).stdout == "Yes!\n"
            assert "talker" in run("ps", "--socket", path).stdout
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(30) == 0
        assert os.listdir(folder) == []
        # A private daemon has a port of its own, whatever the environment says.
        done = run("run", str(model), "Well?", "--device", "cpu", EMBERD_SOCKET=path)
        assert done.stdout == "Yes!\n", done.stderr
