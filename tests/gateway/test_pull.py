"""`/api/pull` from a registry (OL-38): Ollama's words, names and hosts (K37), what a record may hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pulling import NAME, left, names, pull, weights
from registry_fakes import Registry, running_registry
from site_fakes import Site, run

MakeSite = Callable[..., Site]


def test_lines_in_ollamas_words_ol38(pull_site: Site, registry: Registry) -> None:
    async def work() -> None:
        async with pull_site.client() as client:
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


def test_without_a_stream_one_object_ol38(pull_site: Site) -> None:
    async def work() -> None:
        async with pull_site.client() as client:
            reply = await client.post("/api/pull", json={"name": "small", "stream": False})
            assert (reply.status_code, reply.json()) == (200, {"status": "success"})
            reply = await client.post("/api/pull", json={"name": "none", "stream": False})
            assert reply.status_code == 404 and "not found" in reply.json()["error"]

    run(work())


def test_names_with_hosts_and_tags(pull_site: Site, registry: Registry, tiny_model: Path) -> None:
    registry.add("someone/thing:1b", tiny_model.read_bytes())

    async def work() -> None:
        async with pull_site.client() as client:
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
    pull_site: Site, registry: Registry, name: str
) -> None:
    async def work() -> None:
        async with pull_site.client() as client:
            for path in ("/api/pull", "/api/create"):
                body = {"model": name, "from": "tiny", "insecure": True}
                reply = await client.post(path, json=body)
                assert reply.status_code == 400, reply.text
                assert str(pull_site.store.models_dir) not in reply.text
            assert registry.asked == [] and left(pull_site) == set()

    run(work())


@pytest.mark.parametrize(
    "manifest",
    [b"", b"[]", b'{"layers": 7}', b'{"layers": []}', b"{" * 100_000, b" " * (2 << 20)],
    ids=["empty", "list", "number", "none", "deep", "huge"],
)
def test_a_bad_manifest_is_told(pull_site: Site, registry: Registry, manifest: bytes) -> None:
    registry.manifests[NAME] = manifest

    async def work() -> None:
        async with pull_site.client() as client:
            assert "error" in (await pull(client))[-1]
            assert registry.requests == [] and left(pull_site) == set()

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
    pull_site: Site, registry: Registry, digest: Any
) -> None:
    registry.manifests[NAME]["layers"][0]["digest"] = digest

    async def work() -> None:
        async with pull_site.client() as client:
            assert "manifest" in (await pull(client))[-1]["error"]
            assert registry.requests == [] and left(pull_site) == set()

    run(work())


def test_an_adapter_is_refused_before_anything_is_fetched(
    pull_site: Site, registry: Registry
) -> None:
    registry.add(NAME, b"GGUF", adapter="lora")

    async def work() -> None:
        async with pull_site.client() as client:
            assert "adapters" in (await pull(client))[-1]["error"]
            assert registry.requests == []

    run(work())


def test_what_cannot_be_served_says_so_and_can_be_removed(
    pull_site: Site, registry: Registry
) -> None:
    registry.add(NAME, b"GGUF" + bytes(100))

    async def work() -> None:
        async with pull_site.client() as client:
            assert "cannot be served" in (await pull(client))[-1]["error"]
            assert await names(client) == []
            reply = await client.request("DELETE", "/api/delete", json={"model": "small"})
            assert reply.status_code == 200
            assert left(pull_site) == set()

    run(work())


def test_a_newer_version_takes_the_place_of_the_older(
    pull_site: Site, registry: Registry, tiny_model: Path
) -> None:
    async def work() -> None:
        async with pull_site.client() as client:
            await pull(client)
            registry.add(NAME, tiny_model.read_bytes() + bytes(64))
            await pull(client)
            (blob,) = (path for path in pull_site.store.models_dir.rglob("sha256-*"))
            assert blob.name == weights(registry).replace(":", "-")

    run(work())


def test_blobs_may_lie_behind_a_redirect(pull_site: Site, registry: Registry) -> None:
    with running_registry() as other:
        other.blobs = dict(registry.blobs)
        registry.redirect = other.url

        async def work() -> None:
            async with pull_site.client() as client:
                assert (await pull(client))[-1] == {"status": "success"}
                assert other.num_weights() == 1

        run(work())
