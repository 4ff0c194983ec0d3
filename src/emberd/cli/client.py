"""The daemon's HTTP API as the commands use it, and a private daemon where none runs.

Speaks the Ollama routes, as any other client would; knows no other way into the daemon.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, BinaryIO

import httpx

from ..config import Config
from ..errors import ConfigError, EmberdError, ModelLoadError

_PROBE_SECONDS = 2.0
_START_SECONDS = 600.0
_STOP_SECONDS = 10.0
_LOG_BYTES = 1 << 16

READY = re.compile(r"listens on (http://\S+)\n")
"""How `serve` says where it answers."""


class Daemon:
    """The daemon that the settings name, or the one at `url`. Sends the key that opens most."""

    def __init__(self, config: Config, url: str | None = None) -> None:
        socket = config.socket if url is None else None
        self.place = str(socket or url or config.url)
        keys = sorted(config.keys(), key=lambda key: len(key.scopes))
        # The daemon is on this machine or named by hand: proxies of the environment are not for it.
        self._http = httpx.Client(
            base_url="http://localhost" if socket else self.place,
            transport=httpx.HTTPTransport(uds=str(socket)) if socket else None,
            timeout=httpx.Timeout(None, connect=_PROBE_SECONDS),
            verify=self.place.startswith("https:"),  # reading certificates takes 40 ms
            headers={"authorization": f"Bearer {keys[-1].secret}"} if keys else {},
            trust_env=False,
        )

    def close(self) -> None:
        self._http.close()

    def answers(self) -> bool:
        """Whether emberd, and not some other server, answers. Raises EmberdError where it refuses the key."""
        try:
            reply = self._http.get("/api/version", timeout=_PROBE_SECONDS)
            if reply.status_code in (401, 403) and "x-request-id" in reply.headers:
                _check(reply)
            return reply.status_code == 200 and "emberd" in reply.json()
        except (httpx.HTTPError, ValueError, TypeError):
            return False

    def get(self, path: str) -> dict[str, Any]:
        return self._json("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._json("POST", path, body)

    def delete(self, path: str, body: dict[str, Any]) -> None:
        self._json("DELETE", path, body)

    def _json(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        try:
            reply = self._http.request(method, path, **_sent(body))
        except httpx.HTTPError as error:
            raise self._lost(error) from error
        _check(reply)
        value: dict[str, Any] = reply.json() if reply.content else {}
        return value

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The reply's JSON lines as they come. Closing the iterator ends the request."""
        try:
            with self._http.stream("POST", path, **_sent(body)) as reply:
                if reply.status_code >= 400:
                    reply.read()
                    _check(reply)
                for line in reply.iter_lines():
                    value = json.loads(line)
                    if "error" in value:
                        raise EmberdError(str(value["error"]))
                    yield value
        except httpx.HTTPError as error:
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> EmberdError:
        return EmberdError(f"the daemon at {self.place} cannot be reached: {error}")


def _sent(body: dict[str, Any] | None) -> dict[str, Any]:
    """What httpx is told of a body: JSON in ASCII, since bytes that are no UTF-8 are half surrogate pairs here."""
    if body is None:
        return {}
    return {"content": json.dumps(body), "headers": {"content-type": "application/json"}}


def _check(reply: httpx.Response) -> None:
    if reply.status_code < 400:
        return
    try:
        message = str(reply.json()["error"])
    except (ValueError, KeyError, TypeError):
        message = f"the daemon answered {reply.status_code}: {reply.text[:200]}"
    raise EmberdError(message)


@contextmanager
def running_daemon(config: Config) -> Iterator[Daemon]:
    """The daemon at the configured address. ConfigError when none answers."""
    daemon = Daemon(config)
    try:
        if not daemon.answers():
            raise ConfigError(
                f"no emberd daemon answers at {daemon.place}; start one with: emberd serve"
            )
        yield daemon
    finally:
        daemon.close()


@contextmanager
def private_daemon(config: Config, model: str) -> Iterator[Daemon]:
    """A daemon of this process's own on a free port, serving `model`; it ends with the block."""
    command = [sys.executable, "-m", "emberd", "serve", "--host", "127.0.0.1", "--port", "0"]
    command += ["--model", model, "--device", config.device, "--keep-alive", "-1"]
    command += ["--models-dir", str(config.models_dir)]
    with tempfile.TemporaryFile() as log, _exit_on_signals():
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C ends a reply, not the daemon
            env={**os.environ, "EMBERD_SOCKET": ""},
        )
        try:
            daemon = Daemon(config, _wait_for_url(process, log))
            try:
                yield daemon
            finally:
                daemon.close()
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for_url(process: subprocess.Popen[bytes], log: BinaryIO) -> str:
    """The URL that the daemon prints once it answers. ModelLoadError with its last words if it ends instead."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        text = os.pread(log.fileno(), _LOG_BYTES, 0).decode(errors="replace")
        if ready := READY.search(text):
            return ready[1]
        if ended:
            raise ModelLoadError(_last_words(text))
        time.sleep(0.05)
    raise ModelLoadError(f"no daemon was ready within {_START_SECONDS:.0f} s")


def _last_words(log: str) -> str:
    """The reason in a dead daemon's output: its `error:` line, else its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("error:").strip() for line in lines if line.startswith("error:")]
    return (errors or lines or ["the daemon ended without a word"])[-1]


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """A closed terminal or a polite kill ends the block, so that the private daemon ends too."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    numbers = [signal.SIGTERM] + ([signal.SIGHUP] if os.name == "posix" else [])
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
