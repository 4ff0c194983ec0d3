"""A real daemon for tests: `emberd serve` as a process of its own, on a free port, over a folder of models.

Nothing of the test's user reaches it: settings come from the test alone. It is ended by SIGTERM and must
then leave as a daemon should: exit code 0, no child behind.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

START_SECONDS = 60.0
LEAVE_SECONDS = 20.0
READY = re.compile(r"listens on (http://\S+)")


class Daemon:
    """A running daemon. `http` is a client of it, without proxies."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log_path: Path) -> None:
        self.process = process
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=120, trust_env=False)
        self._log_path = log_path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def async_http(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        return httpx.AsyncClient(base_url=self.url, timeout=120, limits=limits, trust_env=False)

    def workers(self) -> list[psutil.Process]:
        """The processes of the loaded models."""
        children: list[psutil.Process] = psutil.Process(self.pid).children(recursive=True)
        return children

    def computes(self, seconds: float = 0.3) -> bool:
        """Whether workers use the processor, watched for so long: a step takes milliseconds of it."""
        before = self._processor_time()
        time.sleep(seconds)
        return self._processor_time() - before > 0.015

    def _processor_time(self) -> float:
        times = [worker.cpu_times() for worker in self.workers()]
        return float(sum(used.user + used.system for used in times))

    def loaded(self) -> dict[str, dict[str, Any]]:
        """What /api/ps tells, by name without `:latest`."""
        models = self.http.get("/api/ps").json()["models"]
        return {model["name"].removesuffix(":latest"): model for model in models}

    def num_active(self, model: str) -> int:
        """Requests that a loaded model is working on."""
        count = self.loaded()[model]["emberd"]["active"]
        assert isinstance(count, int)
        return count

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = LEAVE_SECONDS) -> int:
        """The exit code, once it has ended by itself."""
        return self.process.wait(seconds)

    def stop(self) -> None:
        """End it as a service manager would. Fails if it does not leave cleanly."""
        children = self.workers()
        self.signal()
        code = self.wait()
        assert code == 0, f"exit code {code}"
        left = [child for child in children if child.is_running()]
        assert not left, f"processes left behind: {left}"


@contextmanager
def running_daemon(
    models_dir: Path, folder: Path, *, env: dict[str, str] | None = None, **settings: Any
) -> Iterator[Daemon]:
    """Start a daemon over `models_dir` with `settings` as flags; `folder` is for its cache and log.

    Stopped at the end if the test has not done so; its log is printed when anything failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log_path = folder / "daemon.log"
    process = start_process(log_path, serve_command(models_dir, folder, **settings), env)
    daemon = None
    try:
        daemon = Daemon(process, _wait_for_url(process, log_path), log_path)
        assert daemon.http.get("/health").status_code == 200
        yield daemon
        if process.poll() is None:
            daemon.stop()
    except BaseException:
        print(f"--- log of the daemon ---\n{log_path.read_text(errors='replace')[-8000:]}")
        raise
    finally:
        if daemon is not None:
            daemon.http.close()
        _kill(process)


def serve_command(models_dir: Path, folder: Path, **settings: Any) -> list[str]:
    values = {"device": "cpu", "port": 0, "models_dir": models_dir, "cache_dir": folder / "cache"}
    values["places"] = "none"
    flags: list[str] = []
    for name, value in (values | settings).items():
        flags += [f"--{name.replace('_', '-')}", str(value)]
    return [sys.executable, "-m", "emberd", "serve", *flags]


def start_process(
    log_path: Path, command: list[str], env: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """A process whose output goes to the log, with none of emberd's or Ollama's variables."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("EMBERD_", "OLLAMA_"))}
    with log_path.open("wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=inherited | {"PYTHONUNBUFFERED": "1", "EMBERD_VERIFY": "0"} | (env or {}),
        )


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Poll until `condition` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not so after {seconds:g} seconds"
        time.sleep(0.02)


def _wait_for_url(process: subprocess.Popen[bytes], log_path: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if match := READY.search(log_path.read_text(errors="replace")):
            return match[1]
        assert process.poll() is None, f"the daemon ended at its start ({process.returncode})"
        time.sleep(0.02)
    raise AssertionError(f"the daemon is not ready after {START_SECONDS:g} seconds")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Whatever a failed test left of it."""
    if process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.wait()
