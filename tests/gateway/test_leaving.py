"""Sockets and leaving: two loopbacks (HT-10), a port in use, drain, grace limit, the second signal (K38)."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from emberd.errors import ConfigError
from emberd.gateway.listen import open_sockets
from site_fakes import Site, run

MakeSite = Callable[..., Site]
BODY: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "e"}],
    "stream": True,
}
CHAT = "/v1/chat/completions"


def test_loopback_is_both_loopbacks_where_there_are_two_ht10() -> None:
    sockets = open_sockets("localhost", 0)
    try:
        assert len({listener.getsockname()[1] for listener in sockets}) == 1
        names = {listener.getsockname()[0] for listener in sockets}
        assert names <= {"127.0.0.1", "::1"}
        if socket.has_ipv6 and _has_ipv6_loopback():
            assert len(names) == 2
    finally:
        for listener in sockets:
            listener.close()


def test_a_port_in_use_is_one_clear_line() -> None:
    (first, *others) = open_sockets("127.0.0.1", 0)
    try:
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port}: .*--port") as caught:
            open_sockets("127.0.0.1", port)
        assert "\n" not in str(caught.value)
    finally:
        for listener in (first, *others):
            listener.close()


def test_an_address_of_nobody_is_one_clear_line() -> None:
    with pytest.raises(ConfigError, match=r"203\.0\.113\.7"):
        open_sockets("203.0.113.7", 0)


def test_draining_lets_replies_end_and_refuses_new_ones_k38(make_site: MakeSite) -> None:
    site = make_site({"prefill": False}, shutdown_grace=10.0)

    async def work() -> None:
        async with site.listening() as (url, server), httpx.AsyncClient(base_url=url) as client:
            running = asyncio.ensure_future(client.post(CHAT, json={**BODY, "max_tokens": 60}))
            await site.until(lambda: site.workers and site.workers[0].running)
            server.leave()
            await site.until(lambda: site.service.leaving)
            for path in (CHAT, "/api/chat"):
                refused = await client.post(path, json=BODY)
                assert refused.status_code == 503
                assert refused.headers["retry-after"]
                assert "shutting down" in refused.text
            site.workers[0].prefilled.set()
            response = await running
            assert response.text.endswith("data: [DONE]\n\n")
            assert '"finish_reason":"length"' in response.text
        assert not site.workers[0].alive

    run(work())


def test_the_grace_limit_ends_replies_with_an_error_event_k38(make_site: MakeSite) -> None:
    site = make_site({"prefill": False}, shutdown_grace=0.1)

    async def work() -> None:
        async with site.listening() as (url, server), httpx.AsyncClient(base_url=url) as client:
            replies = [
                asyncio.ensure_future(client.post(path, json=BODY)) for path in (CHAT, "/api/chat")
            ]
            await site.until(lambda: site.service.num_sequences == 2)
            server.leave()
            sse, ndjson = await asyncio.gather(*replies)
            last = sse.text.rstrip().rpartition("\n")[2]
            assert last.startswith('data: {"error":{"message":"the daemon is shutting down')
            assert '{"error":"the daemon is shutting down' in ndjson.text.splitlines()[-1]
        assert not site.workers[0].alive

    run(work())


PROGRAM = """
import asyncio, sys
from pathlib import Path
import emberd.gateway.server as server
from emberd.config import Config
from emberd.models.store import ModelStore
from emberd.models.manager import ModelManager
from site_fakes import Site

config = Config(port=0, models_dir=Path(sys.argv[1]), cache_dir=Path(sys.argv[2]), shutdown_grace=20.0)
site = Site(config, delay=0.02)
server.ModelManager = lambda config, store: ModelManager(config, store, site._start)
server.run_server(config, ModelStore(config.models_dir, config.cache_dir), ready=lambda url: print(url, flush=True))
print("left", flush=True)
"""


@pytest.fixture
def daemon(make_site: MakeSite) -> Any:
    config = make_site().config
    tests, source = Path(__file__).parents[1], Path(__file__).parents[2] / "src"
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{tests}"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(config.models_dir), str(config.cache_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    yield process, process.stdout.readline().strip()
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()


@pytest.mark.slow
def test_a_signal_when_idle_ends_with_0_k38(daemon: Any) -> None:
    process, url = daemon
    assert httpx.get(url).text == "Ollama is running"
    process.send_signal(signal.SIGTERM)
    assert process.wait(5) == 0
    assert process.stdout.read() == "left\n"
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


@pytest.mark.slow
def test_a_second_signal_ends_at_once_k38(daemon: Any) -> None:
    process, url = daemon
    with httpx.stream("POST", url + CHAT, json=BODY, timeout=10) as response:
        lines = response.iter_lines()  # kept: collecting it would hang up
        assert next(lines).startswith("data: ")
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 0
    assert process.stdout.read() == "left\n"
    assert "Traceback" not in process.stderr.read()


def _has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
            return True
    except OSError:
        return False
