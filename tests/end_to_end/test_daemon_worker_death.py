"""A worker that is killed under its requests: each hears of it in its protocol, and the daemon goes on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon import Daemon, running_daemon, wait_until
from dialects import CHAT, COMPLETION, OLLAMA_CHAT, OLLAMA_GENERATE, ROUTES, ask, body, message_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def mortal(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose only worker is that of `script`."""
    folder = tmp_path_factory.mktemp("mortal")
    settings = {"kv_memory": "32MiB", "speculate": "off"}  # guesses would end replies too soon
    with running_daemon(models_dir, folder, **settings) as started:
        yield started


def kill_worker(daemon: Daemon) -> None:
    (worker,) = daemon.workers()
    worker.kill()
    wait_until(lambda: not worker.is_running())


def assert_loads_again(daemon: Daemon) -> None:
    assert daemon.http.get("/health").status_code == 200
    assert ask(daemon.http, CHAT, "script", "1").text == "A B C D E F G"
    assert len(daemon.workers()) == 1


@pytest.mark.parametrize("route", ROUTES)
def test_a_stream_ends_with_an_error(mortal: Daemon, route: str) -> None:
    """OC-30, OL-12: the text so far, then the error, and no mark of a good end."""
    request = body(route, "script", "2", stream=True, max_tokens=4000)
    with mortal.http.stream("POST", route, json=request) as response:
        lines = response.iter_lines()
        while " on" not in next(lines):
            pass
        kill_worker(mortal)
        rest = [line.removeprefix("data: ") for line in lines if line]
    error = json.loads(rest[-1])["error"]
    message = error["message"] if route.startswith("/v1") else error
    assert "worker" in message and "SIGKILL" in message
    assert not any("[DONE]" in line or '"done":true' in line for line in rest)
    assert_loads_again(mortal)


@pytest.mark.parametrize("route", [COMPLETION, OLLAMA_GENERATE])
def test_a_whole_reply_becomes_a_500(mortal: Daemon, route: str) -> None:
    request = body(route, "script", "2", stream=False, max_tokens=4000)
    assert_loads_again(mortal)

    def kill_while_busy() -> None:
        wait_until(lambda: mortal.num_active("script") == 1)
        wait_until(mortal.computes)
        kill_worker(mortal)

    killer = threading.Thread(target=kill_while_busy)
    killer.start()
    response = mortal.http.post(route, json=request)
    killer.join()
    assert response.status_code == 500 and "SIGKILL" in message_of(route, response)
    assert response.headers["x-should-retry"] == "false"
    assert_loads_again(mortal)


def test_a_worker_killed_while_idle_is_replaced(mortal: Daemon) -> None:
    assert_loads_again(mortal)
    kill_worker(mortal)
    wait_until(lambda: mortal.loaded() == {})
    for route in (OLLAMA_CHAT, CHAT):
        assert ask(mortal.http, route, "script", "1", stream=True).reason == "stop"
