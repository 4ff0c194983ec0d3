"""K38 of bug_kinds.md: how a daemon leaves; and how `serve` fails to start."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from daemon import Daemon, running_daemon, serve_command, start_process, wait_until
from dialects import CHAT, OLLAMA_CHAT, ask, body

Start = Callable[..., AbstractContextManager[Daemon]]


class Stream(threading.Thread):
    """A streamed chat, read in a thread; `started` is set with its first text."""

    def __init__(self, daemon: Daemon, route: str, max_tokens: int) -> None:
        super().__init__()
        self.started = threading.Event()
        self.lines: list[str] = []
        self.error: Exception | None = None
        self._daemon, self._route = daemon, route
        self._request = body(route, "script", "2", stream=True, max_tokens=max_tokens)
        self.start()
        assert self.started.wait(30)

    def run(self) -> None:
        try:
            with self._daemon.http.stream("POST", self._route, json=self._request) as response:
                for line in response.iter_lines():
                    if line:
                        self.lines.append(line)
                    if " on" in line:
                        self.started.set()
        except httpx.HTTPError as error:
            self.error = error

    def text(self) -> str:
        """All of the text, of either dialect."""
        values = [json.loads(line.removeprefix("data: ")) for line in self.lines if "{" in line]
        if self._route == OLLAMA_CHAT:
            return "".join(v["message"]["content"] for v in values if "message" in v)
        choices = [value["choices"][0] for value in values if value.get("choices")]
        return "".join(choice["delta"].get("content", "") for choice in choices)


@pytest.fixture
def start(models_dir: Path, tmp_path: Path) -> Start:
    @contextmanager
    def started(**settings: Any) -> Iterator[Daemon]:
        settings["speculate"] = "off"  # what says the same again and again would be over at once
        with running_daemon(models_dir, tmp_path / "daemon", kv_memory="32MiB", **settings) as new:
            yield new

    return started


def assert_port_is_free(port: int) -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))


@pytest.mark.slow
@pytest.mark.parametrize("loaded", [False, True], ids=["empty", "with a model"])
def test_k38_idle(start: Start, loaded: bool) -> None:
    """K38: exit 0 within 5 s, port free, no child left; also by Ctrl-C."""
    with start() as daemon:
        if loaded:
            assert ask(daemon.http, CHAT, "script", "1").text == "A B C D E F G"
        workers = daemon.workers()
        assert len(workers) == int(loaded)
        daemon.signal(signal.SIGTERM if loaded else signal.SIGINT)
        assert daemon.wait(5) == 0
        assert_port_is_free(daemon.port)
        assert not any(worker.is_running() for worker in workers)


@pytest.mark.slow
@pytest.mark.parametrize("route", [CHAT, OLLAMA_CHAT])
def test_k38_a_running_stream_ends_whole(start: Start, route: str) -> None:
    """K38: meanwhile nothing new is taken, and /health says so."""
    with start() as daemon:
        stream = Stream(daemon, route, max_tokens=1500)
        daemon.signal()
        wait_until(lambda: _refuses(daemon, "/health"))
        assert _refuses(daemon, CHAT)
        assert stream.is_alive(), "the stream ended before it could be seen to go on"
        assert daemon.wait(60) == 0
        stream.join()
    assert stream.error is None
    assert stream.text() == " on and" * 750
    assert (
        stream.lines[-1] == "data: [DONE]" if route == CHAT else '"done":true' in stream.lines[-1]
    )


@pytest.mark.slow
@pytest.mark.parametrize("route", [CHAT, OLLAMA_CHAT])
def test_k38_an_endless_stream_gets_an_error_at_the_limit(start: Start, route: str) -> None:
    """K38: the limit is a setting."""
    with start(shutdown_grace="1s") as daemon:
        stream = Stream(daemon, route, max_tokens=4000)
        children = daemon.workers()
        daemon.signal()
        assert daemon.wait(10) == 0
        stream.join()
        assert not any(child.is_running() for child in children)
    assert stream.error is None
    last = json.loads(stream.lines[-1].removeprefix("data: "))
    message = last["error"]["message"] if route == CHAT else last["error"]
    assert "shutting down" in message and "1 second" in message
    assert not any("[DONE]" in line or '"done":true' in line for line in stream.lines)


@pytest.mark.slow
def test_k38_a_second_signal_ends_at_once(start: Start) -> None:
    """K38: the grace of 30 s is not waited for, and no child is left."""
    with start() as daemon:
        stream = Stream(daemon, CHAT, max_tokens=4000)
        children = daemon.workers()
        daemon.signal()
        wait_until(lambda: _refuses(daemon, "/health"))
        daemon.signal()
        daemon.wait(5)
        stream.join()
        wait_until(lambda: not any(child.is_running() for child in children), 5)
        assert_port_is_free(daemon.port)


def _refuses(daemon: Daemon, path: str) -> bool:
    """Whether a new request gets 503 or no connection."""
    try:
        with httpx.Client(base_url=daemon.url, timeout=5, trust_env=False, verify=False) as http:
            if path == "/health":
                return http.get(path).status_code == 503
            return http.post(path, json=body(path, "script", "1", stream=False)).status_code == 503
    except httpx.ConnectError:
        return True


def failure(models_dir: Path, folder: Path, **settings: object) -> str:
    """What a `serve` that cannot start says; it must be one line and exit code 1."""
    log_path = folder / "serve.log"
    process = start_process(log_path, serve_command(models_dir, folder, **settings))
    try:
        assert process.wait(30) == 1
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
    text = log_path.read_text().strip()
    assert "\n" not in text and "Traceback" not in text, text
    return text


def test_serve_on_a_port_in_use(models_dir: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        text = failure(models_dir, tmp_path, port=port)
    assert str(port) in text and "--port" in text


def test_serve_without_its_model_file(models_dir: Path, tmp_path: Path) -> None:
    text = failure(models_dir, tmp_path, model="no/such/file.gguf")
    assert "no/such/file.gguf" in text and "no such file" in text


def test_serve_with_a_bad_setting(models_dir: Path, tmp_path: Path) -> None:
    assert "--kv-memory" in failure(models_dir, tmp_path, kv_memory="lots")


@pytest.mark.device
def test_serve_on_a_device_that_is_not_there(models_dir: Path, tmp_path: Path) -> None:
    assert "no-such-adapter" in failure(models_dir, tmp_path, device="no-such-adapter")
