"""`/api/pull` from a registry (OL-38, K32): progress, resume, checks, one download for many, what a failure leaves."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from emberd.models import download
from registry_fakes import Registry, running_registry
from site_fakes import Site, run

MakeSite = Callable[..., Site]
Json = dict[str, Any]
NAME = "library/small:latest"


@pytest.fixture
def registry(tiny_model: Path) -> Iterator[Registry]:
    with running_registry() as registry:
        registry.add(NAME, tiny_model.read_bytes(), system="Be kind. ", params={"top_k": 3})
        yield registry


@pytest.fixture
def site(make_site: MakeSite, registry: Registry, tmp_path: Path) -> Site:
    return make_site(models_dir=tmp_path / "own", registries=(registry.url, "*"))


def weights(registry: Registry) -> str:
    digest: str = registry.manifests[NAME]["layers"][0]["digest"]
    return digest


def left(site: Site) -> set[str]:
    """Names of all files below the models folder."""
    return {path.name for path in site.store.models_dir.rglob("*") if path.is_file()}


async def pull(client: httpx.AsyncClient, model: str = "small", **more: Any) -> list[Json]:
    reply = await client.post("/api/pull", json={"model": model, **more}, timeout=30)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in reply.text.splitlines()]


async def names(client: httpx.AsyncClient) -> list[str]:
    return [model["name"] for model in (await client.get("/api/tags")).json()["models"]]


def test_lines_in_ollamas_words_ol38(site: Site, registry: Registry) -> None:
    async def work() -> None:
        async with site.client() as client:
            lines = await pull(client)
            statuses = list(dict.fromkeys(line["status"] for line in lines))
            digests = [layer["digest"] for layer in registry.manifests[NAME]["layers"]]
            assert statuses == [
                "pulling manifest",
                *(f"pulling {digest[7:19]}" for digest in digests),
                "verifying sha256 digest",
                "writing manifest",
                "success",
            ]
            told = [line for line in lines if line.get("digest") == digests[0]]
            assert {line["total"] for line in told} == {len(registry.blobs[digests[0]])}
            assert told[-1]["completed"] == told[-1]["total"]
            assert await names(client) == ["small:latest"]
            shown = (await client.post("/api/show", json={"model": "small"})).json()
            assert shown["system"] == "Be kind. "
            reply = await client.post(
                "/api/generate", json={"model": "Small:latest", "prompt": "a", "stream": False}
            )
            assert reply.json()["response"] == "Hello world"

    run(work())


def test_without_a_stream_one_object_ol38(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            reply = await client.post("/api/pull", json={"name": "small", "stream": False})
            assert (reply.status_code, reply.json()) == (200, {"status": "success"})
            reply = await client.post("/api/pull", json={"name": "none", "stream": False})
            assert reply.status_code == 404 and "not found" in reply.json()["error"]

    run(work())


def test_names_with_hosts_and_tags(site: Site, registry: Registry, tiny_model: Path) -> None:
    registry.add("someone/thing:1b", tiny_model.read_bytes())

    async def work() -> None:
        async with site.client() as client:
            await pull(client, f"{registry.host}/someone/thing:1b")
            await pull(client, f"{registry.host}/{NAME}")
            assert sorted(await names(client)) == ["small:latest", "someone/thing:1b"]
            assert registry.num_weights() == 1  # the same bytes: fetched once

    run(work())


def test_plain_http_only_where_insecure_is_said(
    make_site: MakeSite, registry: Registry, tmp_path: Path
) -> None:
    site = make_site(models_dir=tmp_path / "own")

    async def work() -> None:
        async with site.client() as client:
            name = f"{registry.host}/{NAME}"
            reply = await client.post("/api/pull", json={"model": f"http://{name}"})
            assert reply.status_code == 400 and "insecure" in reply.json()["error"]
            assert "error" in (await pull(client, name))[-1]  # https, which is not there
            assert registry.requests == []
            for model in (f"http://{name}", name):
                assert (await pull(client, model, insecure=True))[-1] == {"status": "success"}
            assert await names(client) == [name]

    run(work())


def test_only_listed_registries_are_asked(
    make_site: MakeSite, registry: Registry, tmp_path: Path
) -> None:
    site = make_site(models_dir=tmp_path / "own", registries=("registry.example",))

    async def work() -> None:
        async with site.client() as client:
            body = {"model": f"http://{registry.host}/{NAME}", "insecure": True}
            reply = await client.post("/api/pull", json=body)
            assert reply.status_code == 400 and "EMBERD_REGISTRIES" in reply.json()["error"]
            assert registry.asked == []

    run(work())


@pytest.mark.parametrize(
    "name",
    [
        *("../../etc/passwd", "..%2f..%2fx", "a/../../b", "/etc/passwd", "C:\\x", "\\\\server\\x"),
        *("a\0b", "x" * 5000, "", "a b", "a//b", "x:y:z", "a/b/c/d/e:f", "ns/é"),
        *("http://169.254.169.254/latest", "file:///etc/passwd", "-x/y/z", "host.example@x/y/z"),
    ],
)
def test_names_that_lead_elsewhere_are_refused_k37(
    site: Site, registry: Registry, name: str
) -> None:
    async def work() -> None:
        async with site.client() as client:
            for path in ("/api/pull", "/api/create"):
                body = {"model": name, "from": "tiny", "insecure": True}
                reply = await client.post(path, json=body)
                assert reply.status_code == 400, reply.text
                assert str(site.store.models_dir) not in reply.text
            assert registry.asked == [] and left(site) == set()

    run(work())


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
    site: Site, registry: Registry, fault: Callable[[bytes], bytes], said: str
) -> None:
    digest = weights(registry)

    async def work() -> None:
        async with site.client() as client:
            registry.wrong[digest] = fault(registry.blobs[digest])
            lines = await pull(client)
            assert said in lines[-1]["error"]
            assert await names(client) == [] and left(site) == set()
            registry.wrong.clear()
            assert (await pull(client))[-1] == {"status": "success"}
            assert await names(client) == ["small:latest"]
            assert registry.requests[-3:][0] == (digest, None)  # from the start

    run(work())


def test_a_size_unlike_the_record_is_told_k32(site: Site, registry: Registry) -> None:
    registry.manifests[NAME]["layers"][0]["size"] += 1

    async def work() -> None:
        async with site.client() as client:
            assert "its record says" in (await pull(client))[-1]["error"]
            assert await names(client) == [] and left(site) == set()

    run(work())


def test_a_cut_pull_is_resumed_by_range_k32(site: Site, registry: Registry) -> None:
    digest, size = weights(registry), len(registry.blobs[weights(registry)])
    registry.cut = 0.6

    async def work() -> None:
        async with site.client() as client:
            assert "cut after" in (await pull(client))[-1]["error"]
            assert await names(client) == []
            (part,) = left(site)
            assert part.endswith(".part")
            lines = await pull(client)
            assert lines[-1] == {"status": "success"}
            start = int(str(registry.requests[1][1]).removeprefix("bytes=").rstrip("-"))
            assert registry.requests[1][0] == digest and 0 < start <= int(size * 0.6)
            assert await names(client) == ["small:latest"]
            assert site.store.find("small").path.read_bytes() == registry.blobs[digest]

    run(work())


def test_a_server_that_ignores_the_range_makes_it_start_over_k32(
    site: Site, registry: Registry
) -> None:
    digest = weights(registry)
    registry.cut, registry.ignores_range = 0.6, True

    async def work() -> None:
        async with site.client() as client:
            assert "error" in (await pull(client))[-1]
            assert (await pull(client))[-1] == {"status": "success"}
            assert str(registry.requests[1][1]).startswith("bytes=")
            assert site.store.find("small").path.read_bytes() == registry.blobs[digest]

    run(work())


def test_a_failing_server_keeps_what_came(site: Site, registry: Registry) -> None:
    registry.cut = 0.6

    async def work() -> None:
        async with site.client() as client:
            await pull(client)
            (before,) = (path.stat().st_size for path in site.store.models_dir.rglob("*.part"))
            registry.status = 503
            assert "answered 503" in (await pull(client))[-1]["error"]
            (after,) = (path.stat().st_size for path in site.store.models_dir.rglob("*.part"))
            assert before == after > 0

    run(work())


def test_a_part_that_is_too_long_or_wrong_is_fetched_anew(site: Site, registry: Registry) -> None:
    digest = weights(registry)
    part = site.store.pulled.blob(digest).with_name(f"{digest.replace(':', '-')}.part")

    async def work() -> None:
        async with site.client() as client:
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


def test_two_pulls_at_once_are_one_download_k32(site: Site, registry: Registry) -> None:
    registry.gate.clear()

    async def work() -> None:
        async with site.client() as client:
            first = asyncio.ensure_future(pull(client))
            await site.until(lambda: registry.num_weights() == 1)
            second = asyncio.ensure_future(pull(client, "SMALL:latest"))
            third = asyncio.ensure_future(
                client.post("/api/pull", json={"model": "small", "stream": False})
            )
            await asyncio.sleep(0.1)
            registry.gate.set()
            for lines in await asyncio.gather(first, second):
                assert lines[0] == {"status": "pulling manifest"}
                assert any(line.get("total") for line in lines)
                assert lines[-1] == {"status": "success"}
            assert (await third).json() == {"status": "success"}
            assert registry.num_weights() == 1

    run(work())


def test_two_processes_are_one_download(site: Site, registry: Registry, tmp_path: Path) -> None:
    """Another process holds the part file: this one waits for it."""
    digest = weights(registry)
    url = f"{registry.url}/v2/library/small/blobs/{digest}"
    target = site.store.pulled.blob(digest)
    size = len(registry.blobs[digest])
    with download.open_client() as http:
        one = download.Download(http, url, target, size, digest[7:]).run()
        registry.gate.clear()
        next(one)
        other = download.Download(http, url, target, size, digest[7:]).run()
        assert next(other) < size
        registry.gate.set()
        assert list(one)[-1] == list(other)[-1] == size
    assert registry.num_weights() == 1 and left(site) == {target.name}


async def read_lines(reply: httpx.Response) -> AsyncIterator[Json]:
    async for line in reply.aiter_lines():
        yield json.loads(line)


def test_a_pull_goes_on_while_one_listens_and_stops_when_none_does_k32(
    site: Site, registry: Registry
) -> None:
    registry.gate.clear()

    async def work() -> None:
        async with (
            site.listening() as (url, _),
            httpx.AsyncClient(base_url=url, timeout=20) as client,
        ):
            body = {"model": "small"}
            async with client.stream("POST", "/api/pull", json=body) as first:
                async for line in read_lines(first):
                    if line.get("completed"):
                        break
                listener = asyncio.ensure_future(client.post("/api/pull", json=body))
                running = site.service.pulls._running
                await site.until(lambda: len(next(iter(running.values()))._listeners) == 2)
            await site.until(lambda: len(next(iter(running.values()))._listeners) == 1)
            registry.gate.set()
            assert (await listener).text.splitlines()[-1] == '{"status":"success"}'
            assert registry.num_weights() == 1

            await client.request("DELETE", "/api/delete", json=body)
            registry.gate.clear()
            async with client.stream("POST", "/api/pull", json=body) as only:
                async for line in read_lines(only):
                    if line.get("completed"):
                        break
            await site.until(lambda: not running)
            registry.gate.set()
            await asyncio.to_thread(lambda: [t.join(5) for t in site.service.pulls._threads])
            assert await names(client) == []
            assert [name for name in left(site) if not name.endswith(".part")] == []
            assert (await pull(client))[-1] == {"status": "success"}
            assert str(registry.requests[-3][1]).startswith("bytes=")

    run(work())


def test_a_daemon_that_leaves_ends_pulls_which_can_go_on(site: Site, registry: Registry) -> None:
    registry.gate.clear()

    async def work() -> list[Json]:
        async with site.listening() as (url, server), httpx.AsyncClient(base_url=url) as client:
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
    site: Site, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with site.client() as client:
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
            assert left(site) == set() and await names(client) == []
            assert (await pull(client))[-1] == {"status": "success"}

    run(work())


@pytest.mark.parametrize(
    "manifest",
    [b"", b"[]", b'{"layers": 7}', b'{"layers": []}', b"{" * 100_000, b" " * (2 << 20)],
    ids=["empty", "list", "number", "none", "deep", "huge"],
)
def test_a_bad_manifest_is_told(site: Site, registry: Registry, manifest: bytes) -> None:
    registry.manifests[NAME] = manifest

    async def work() -> None:
        async with site.client() as client:
            assert "error" in (await pull(client))[-1]
            assert registry.requests == [] and left(site) == set()

    run(work())


@pytest.mark.parametrize(
    "digest",
    [
        "sha256:../../../x",
        "sha256:" + "A" * 64,
        "sha256:" + "a" * 63,
        "sha512:" + "a" * 64,
        7,
        None,
    ],
)
def test_a_bad_digest_in_a_record_is_refused_k37(
    site: Site, registry: Registry, digest: Any
) -> None:
    registry.manifests[NAME]["layers"][0]["digest"] = digest

    async def work() -> None:
        async with site.client() as client:
            assert "manifest" in (await pull(client))[-1]["error"]
            assert registry.requests == [] and left(site) == set()

    run(work())


def test_an_adapter_is_refused_before_anything_is_fetched(site: Site, registry: Registry) -> None:
    registry.add(NAME, b"GGUF", adapter="lora")

    async def work() -> None:
        async with site.client() as client:
            assert "adapters" in (await pull(client))[-1]["error"]
            assert registry.requests == []

    run(work())


def test_what_cannot_be_served_says_so_and_can_be_removed(site: Site, registry: Registry) -> None:
    registry.add(NAME, b"GGUF" + bytes(100))

    async def work() -> None:
        async with site.client() as client:
            assert "cannot be served" in (await pull(client))[-1]["error"]
            assert await names(client) == []
            reply = await client.request("DELETE", "/api/delete", json={"model": "small"})
            assert reply.status_code == 200
            assert left(site) == set()

    run(work())


def test_a_newer_version_takes_the_place_of_the_older(
    site: Site, registry: Registry, tiny_model: Path
) -> None:
    async def work() -> None:
        async with site.client() as client:
            await pull(client)
            registry.add(NAME, tiny_model.read_bytes() + bytes(64))
            await pull(client)
            (blob,) = (path for path in site.store.models_dir.rglob("sha256-*"))
            assert blob.name == weights(registry).replace(":", "-")

    run(work())


def test_blobs_may_lie_behind_a_redirect(site: Site, registry: Registry) -> None:
    with running_registry() as other:
        other.blobs = dict(registry.blobs)
        registry.redirect = other.url

        async def work() -> None:
            async with site.client() as client:
                assert (await pull(client))[-1] == {"status": "success"}
                assert other.num_weights() == 1

        run(work())
