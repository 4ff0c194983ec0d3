"""Which doors are open: other machines, foreign hosts (K34), URLs, the Unix socket, full queues (HT-15)."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from emberd.config import Config
from emberd.errors import ConfigError, OverloadedError, QueueFullError
from emberd.gateway.errors import error_response
from emberd.gateway.listen import listening, open_unix_socket, refuse_open_door
from emberd.gateway.server import Server, run_server
from emberd.keys import parse_keys
from site_fakes import Site, routes, run

MakeSite = Callable[..., Site]
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "box.example"])
def test_other_machines_need_a_key_or_a_word(make_site: MakeSite, host: str) -> None:
    with pytest.raises(ConfigError) as failure:
        refuse_open_door(Config(host=host))
    message = str(failure.value)
    assert host in message and "EMBERD_API_KEYS" in message and "--insecure" in message
    assert "\n" not in message
    refuse_open_door(Config(host=host, insecure=True))
    refuse_open_door(Config(host=host, api_keys=parse_keys("k-1")))
    with pytest.raises(ConfigError, match="--insecure"):
        run_server(Config(host=host, port=0), make_site().store)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.2"])
def test_loopback_is_open(host: str) -> None:
    refuse_open_door(Config(host=host))
    refuse_open_door(Config(host="0.0.0.0", socket=Path("/run/emberd.sock")))


@pytest.mark.parametrize("host", ["evil.example", "evil.example:11434", "127.0.0.1.evil.example"])
def test_a_foreign_host_is_refused_on_every_route_k34(make_site: MakeSite, host: str) -> None:
    site = make_site()

    async def work() -> None:
        async with site.client() as client:
            for method, path in sorted({*routes(site.app), ("GET", "/nothing")}):
                body = {**CHAT, "prompt": "a"}
                reply = await client.request(method, path, json=body, headers={"host": host})
                assert reply.status_code == 403, (method, path)

    run(work())
    assert not site.workers


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"content": [{"type": "image_url", "image_url": {"url": "URL"}}]}),
        ("/v1/chat/completions", {"content": [{"type": "image_url", "image_url": "URL"}]}),
        ("/v1/chat/completions", {"content": [{"type": "file", "file": {"file_data": "URL"}}]}),
        ("/api/chat", {"content": "a", "images": ["URL"]}),
    ],
)
def test_no_url_of_a_request_is_fetched(
    make_site: MakeSite, path: str, fields: dict[str, Any]
) -> None:
    visits = []

    async def work() -> httpx.Response:
        async def visited(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            visits.append(1)
            writer.close()

        server = await asyncio.start_server(visited, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x.png"
        message = json.loads(json.dumps({"role": "user", **fields}).replace("URL", url))
        async with server, make_site().client() as client:
            reply = await client.post(path, json={"model": "tiny", "messages": [message]})
            await asyncio.sleep(0.02)
            return reply

    assert run(work()).status_code == 400
    assert not visits


@pytest.fixture
def socket_path() -> Iterator[Path]:
    """Short: a Unix socket's path has about a hundred bytes."""
    folder = Path("/tmp") / f"emberd-{secrets.token_hex(6)}"
    folder.mkdir()
    yield folder / "s"
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def test_a_unix_socket_serves_its_owner(make_site: MakeSite, socket_path: Path) -> None:
    site = make_site(socket=socket_path, host="0.0.0.0")

    async def work() -> None:
        with listening(site.config) as sockets:
            assert [sock.family for sock in sockets] == [socket.AF_UNIX]
            assert stat.S_IMODE(os.stat(socket_path).st_mode) == 0o600
            started = asyncio.Event()
            settings = uvicorn.Config(site.app, log_config=None, lifespan="on", ws="none")
            server = Server(settings, site.service, started.set)
            task = asyncio.ensure_future(server.serve(sockets))
            await started.wait()
            transport = httpx.AsyncHTTPTransport(uds=str(socket_path))
            async with httpx.AsyncClient(transport=transport, base_url="http://emberd") as client:
                reply = await client.post("/v1/chat/completions", json=CHAT)
                assert reply.json()["choices"][0]["message"]["content"] == "Hello world"
            with pytest.raises(ConfigError, match="another program"), listening(site.config):
                pass
            server.leave()
            await task

    run(work())
    assert not socket_path.exists()


def test_a_dead_daemons_socket_is_replaced_and_nothing_else(socket_path: Path) -> None:
    open_unix_socket(socket_path).close()
    assert socket_path.exists()
    with listening(Config(socket=socket_path)):
        pass
    assert not socket_path.exists()
    socket_path.write_text("precious")
    with pytest.raises(ConfigError, match="no socket"):
        open_unix_socket(socket_path)
    assert socket_path.read_text() == "precious"
    with pytest.raises(ConfigError, match="cannot listen"):
        open_unix_socket(socket_path.parent / "none" / "s")
    with pytest.raises(ConfigError, match="cannot listen"):
        open_unix_socket(socket_path.parent / ("x" * 200))


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("/v1/chat/completions", 429, "rate_limit_error"),
        ("/v1/messages", 529, "overloaded_error"),
        ("/api/chat", 503, None),
    ],
)
def test_a_full_queue_has_the_status_of_the_api_ht15(
    path: str, status: int, kind: str | None
) -> None:
    scope = {"type": "http", "path": path, "headers": [], "request_id": "req_1"}
    response = error_response(QueueFullError("busy", retry_after=7), scope)
    error = json.loads(bytes(response.body))["error"]
    assert response.status_code == status
    assert response.headers["retry-after"] == "7"
    assert "x-should-retry" not in response.headers
    assert error == "busy" if kind is None else error["type"] == kind
    leaving = error_response(OverloadedError("leaving"), scope)
    assert leaving.status_code == (529 if kind == "overloaded_error" else 503)


def test_a_full_queue_grows_no_further_on_either_api_ht15(make_site: MakeSite) -> None:
    site = make_site({"prefill": False}, queue_limit=2)

    async def work() -> None:
        async with site.client() as client:
            first = [
                asyncio.ensure_future(client.post("/v1/chat/completions", json=CHAT))
                for _ in range(2)
            ]
            await site.until(lambda: site.service.num_sequences == 2)
            for path, status in (("/v1/chat/completions", 429), ("/api/chat", 503)):
                refused = await client.post(path, json={**CHAT, "stream": False})
                assert refused.status_code == status
                assert refused.headers["retry-after"] == "1"
            assert site.service.num_sequences == 2
            site.workers[0].prefilled.set()
            assert [(await reply).status_code for reply in first] == [200, 200]
            await site.until(lambda: site.service.num_sequences == 0)
            assert (await client.post("/api/chat", json=CHAT)).is_success

    run(work())
