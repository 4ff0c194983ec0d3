"""Pulls that fail, stop or meet each other (K32): resume, checks, one download for many, and what is left."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from emberd.models import download
from pulling import NAME, Json, left, names, pull, weights
from registry_fakes import Registry
from site_fakes import Site, run

pytestmark = pytest.mark.slow

MakeSite = Callable[..., Site]


def swapped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (swapped, "digest"),
        (lambda data: b"", "0 bytes"),
        (lambda data: data[:-7], "its record says"),
        (lambda data: data + b"more", "its record says"),
    ],
    ids=["wrong digest", "empty", "too short", "too long"],
)
def test_bad_bytes_are_told_and_gone_and_the_next_pull_works_k32(
    pull_site: Site, registry: Registry, fault: Callable[[bytes], bytes], said: str
) -> None:
    digest = weights(registry)

    async def work() -> None:
        async with pull_site.client() as client:
            registry.wrong[digest] = fault(registry.blobs[digest])
            lines = await pull(client)
            assert said in lines[-1]["error"]
            assert await names(client) == [] and left(pull_site) == set()
            registry.wrong.clear()
            assert (await pull(client))[-1] == {"status": "success"}
            assert await names(client) == ["small:latest"]
            assert registry.requests[-3:][0] == (digest, None)  # from the start

    run(work())


def test_a_size_unlike_the_record_is_told_k32(pull_site: Site, registry: Registry) -> None:
    registry.manifests[NAME]["layers"][0]["size"] += 1

    async def work() -> None:
        async with pull_site.client() as client:
            assert "its record says" in (await pull(client))[-1]["error"]
            assert await names(client) == [] and left(pull_site) == set()

    run(work())


def test_a_cut_pull_is_resumed_by_range_k32(pull_site: Site, registry: Registry) -> None:
    digest, size = weights(registry), len(registry.blobs[weights(registry)])
    registry.cut = 0.6

    async def work() -> None:
        async with pull_site.client() as client:
            assert "cut after" in (await pull(client))[-1]["error"]
            assert await names(client) == []
            (part,) = left(pull_site)
            assert part.endswith(".part")
            lines = await pull(client)
            assert lines[-1] == {"status": "success"}
            start = int(str(registry.requests[1][1]).removeprefix("bytes=").rstrip("-"))
            assert registry.requests[1][0] == digest and 0 < start <= int(size * 0.6)
            assert await names(client) == ["small:latest"]
            assert pull_site.store.find("small").path.read_bytes() == registry.blobs[digest]

    run(work())


def test_a_server_that_ignores_the_range_makes_it_start_over_k32(
    pull_site: Site, registry: Registry
) -> None:
    digest = weights(registry)
    registry.cut, registry.ignores_range = 0.6, True

    async def work() -> None:
        async with pull_site.client() as client:
            assert "error" in (await pull(client))[-1]
            assert (await pull(client))[-1] == {"status": "success"}
            assert str(registry.requests[1][1]).startswith("bytes=")
            assert pull_site.store.find("small").path.read_bytes() == registry.blobs[digest]

    run(work())


def test_a_failing_server_keeps_what_came(pull_site: Site, registry: Registry) -> None:
    registry.cut = 0.6

    async def work() -> None:
        async with pull_site.client() as client:
            await pull(client)
            (before,) = (path.stat().st_size for path in pull_site.store.models_dir.rglob("*.part"))
            registry.status = 503
            assert "answered 503" in (await pull(client))[-1]["error"]
            (after,) = (path.stat().st_size for path in pull_site.store.models_dir.rglob("*.part"))
            assert before == after > 0

    run(work())


def test_a_pull_of_which_nothing_came_leaves_nothing(pull_site: Site, registry: Registry) -> None:
    async def work() -> None:
        async with pull_site.client() as client:
            registry.cut = 0.0
            assert "cannot be reached" in (await pull(client))[-1]["error"]
            assert left(pull_site) == set()
            registry.status = 503
            assert "answered 503" in (await pull(client))[-1]["error"]
            assert left(pull_site) == set()

    run(work())


def test_a_download_given_up_before_its_first_byte_leaves_nothing(
    pull_site: Site, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest, target = weights(registry), pull_site.store.pulled.blob(weights(registry))

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(download.Download, "_check_length", interrupted)
    with download.open_client() as http:
        url = f"{registry.url}/v2/library/small/blobs/{digest}"
        with pytest.raises(KeyboardInterrupt):
            list(download.Download(http, url, target).run())
    assert registry.num_weights() == 1 and left(pull_site) == set()


@pytest.mark.parametrize("status", [202, 204, 206])
def test_a_server_that_answers_oddly_is_asked_once(
    pull_site: Site, registry: Registry, status: int
) -> None:
    weights(registry)
    registry.status = status

    async def work() -> None:
        async with pull_site.client() as client:
            assert f"answered {status}" in (await pull(client))[-1]["error"]
            assert registry.num_weights() == 1

    run(work())


def test_a_disk_that_takes_a_part_of_what_it_is_given_is_given_the_rest(
    pull_site: Site, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(bytes(data)[:1000])

    hold = download.Download._hold

    def slow_hold(one: download.Download) -> Any:
        with hold(one) as file:
            return Slow(os.dup(file.fileno()), "ab")

    monkeypatch.setattr(download.Download, "_hold", slow_hold)
    digest = weights(registry)

    async def work() -> None:
        async with pull_site.client() as client:
            assert (await pull(client))[-1] == {"status": "success"}
            assert pull_site.store.find("small").path.read_bytes() == registry.blobs[digest]

    run(work())


def test_a_part_that_is_too_long_or_wrong_is_fetched_anew(
    pull_site: Site, registry: Registry
) -> None:
    digest = weights(registry)
    part = pull_site.store.pulled.blob(digest).with_name(f"{digest.replace(':', '-')}.part")

    async def work() -> None:
        async with pull_site.client() as client:
            part.parent.mkdir(parents=True)
            part.write_bytes(registry.blobs[digest] + b"more")
            assert (await pull(client))[-1] == {"status": "success"}
            assert (
                await client.request("DELETE", "/api/delete", json={"model": "small"})
            ).is_success
            part.write_bytes(bytes(100))
            assert "digest" in (await pull(client))[-1]["error"]
            assert (await pull(client))[-1] == {"status": "success"}

    run(work())


def test_two_pulls_at_once_are_one_download_k32(pull_site: Site, registry: Registry) -> None:
    registry.gate.clear()

    async def work() -> None:
        async with pull_site.client() as client:
            first = asyncio.ensure_future(pull(client))
            await pull_site.until(lambda: registry.num_weights() == 1)
            second = asyncio.ensure_future(pull(client, "SMALL:latest"))
            third = asyncio.ensure_future(
                client.post("/api/pull", json={"model": "small", "stream": False})
            )
            (running,) = pull_site.service.pulls._running.values()
            await pull_site.until(lambda: len(running._listeners) == 3)
            registry.gate.set()
            for lines in await asyncio.gather(first, second):
                assert lines[0] == {"status": "pulling manifest"}
                assert any(line.get("total") for line in lines)
                assert lines[-1] == {"status": "success"}
            assert (await third).json() == {"status": "success"}
            assert registry.num_weights() == 1

    run(work())


def test_two_processes_are_one_download(
    pull_site: Site, registry: Registry, tmp_path: Path
) -> None:
    """Another process holds the part file: this one waits for it."""
    digest = weights(registry)
    url = f"{registry.url}/v2/library/small/blobs/{digest}"
    target = pull_site.store.pulled.blob(digest)
    size = len(registry.blobs[digest])
    with download.open_client() as http:
        one = download.Download(http, url, target, size, digest[7:]).run()
        registry.gate.clear()
        next(one)
        other = download.Download(http, url, target, size, digest[7:]).run()
        assert next(other) < size
        registry.gate.set()
        assert list(one)[-1] == list(other)[-1] == size
    assert registry.num_weights() == 1 and left(pull_site) == {target.name}


async def read_lines(reply: httpx.Response) -> AsyncIterator[Json]:
    async for line in reply.aiter_lines():
        yield json.loads(line)


def test_a_pull_goes_on_while_one_listens_and_stops_when_none_does_k32(
    pull_site: Site, registry: Registry
) -> None:
    registry.gate.clear()

    async def work() -> None:
        async with pull_site.http(timeout=20) as client:
            body = {"model": "small"}
            async with client.stream("POST", "/api/pull", json=body) as first:
                lines = read_lines(first)  # held: an iterator that is dropped hangs up
                async for line in lines:
                    if line.get("completed"):
                        break
                listener = asyncio.ensure_future(client.post("/api/pull", json=body))
                running = pull_site.service.pulls._running
                await pull_site.until(lambda: len(next(iter(running.values()))._listeners) == 2)
            await pull_site.until(lambda: len(next(iter(running.values()))._listeners) == 1)
            registry.gate.set()
            assert (await listener).text.splitlines()[-1] == '{"status":"success"}'
            assert registry.num_weights() == 1

            await client.request("DELETE", "/api/delete", json=body)
            registry.gate.clear()
            async with client.stream("POST", "/api/pull", json=body) as only:
                async for line in read_lines(only):
                    if line.get("completed"):
                        break
            await pull_site.until(lambda: not running)
            registry.gate.set()
            await asyncio.to_thread(lambda: [t.join(5) for t in pull_site.service.pulls._threads])
            assert await names(client) == []
            assert [name for name in left(pull_site) if not name.endswith(".part")] == []
            assert (await pull(client))[-1] == {"status": "success"}
            assert str(registry.requests[-3][1]).startswith("bytes=")

    run(work())


def test_a_daemon_that_leaves_ends_pulls_which_can_go_on(
    pull_site: Site, registry: Registry
) -> None:
    registry.gate.clear()

    async def work() -> list[Json]:
        async with (
            pull_site.listening() as (url, server),
            httpx.AsyncClient(base_url=url) as client,
        ):
            lines = []
            async with client.stream("POST", "/api/pull", json={"model": "small"}) as reply:
                async for line in read_lines(reply):
                    lines.append(line)
                    if line.get("completed") and not server.should_exit:
                        server.leave()
                        registry.gate.set()
            return lines

    assert "shutting down" in run(work())[-1]["error"]


def test_a_disk_without_room_is_told_before_and_leaves_nothing(
    pull_site: Site, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with pull_site.client() as client:
            with monkeypatch.context() as patched:
                usage = shutil.disk_usage("/")._replace(free=100)
                patched.setattr(shutil, "disk_usage", lambda _: usage)
                assert "room for 100" in (await pull(client))[-1]["error"]
            assert registry.requests == [] and await names(client) == []

            def full(*_: Any) -> None:
                raise OSError(28, os.strerror(28))

            with monkeypatch.context() as patched:
                patched.setattr(download.os, "fsync", full)
                assert "disk is full" in (await pull(client))[-1]["error"]
            assert left(pull_site) == set() and await names(client) == []
            assert (await pull(client))[-1] == {"status": "success"}

    run(work())
