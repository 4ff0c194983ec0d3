"""Create, copy, delete and blobs (OL-39, OL-40): what they make, what they refuse, and what they never touch (K37)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from ollama_layout import digest_of
from site_fakes import Site, run

MakeSite = Callable[..., Site]
Json = dict[str, Any]
BAD_DIGESTS = [
    "sha256:" + "A" * 64,
    "sha256:" + "a" * 63,
    "sha512:" + "a" * 64,
    "a" * 64,
    "sha256-" + "a" * 64,
    "sha256:..%2f..%2f..%2fetc%2fpasswd",
    "sha256:" + "a" * 5000,
]
BAD_NAMES = [
    *("../../etc/passwd", "..%2f..%2fx", "a/../../b", "/etc/passwd", "C:\\x", "\\\\server\\share"),
    *("a\0b", "x" * 5000, "", "a b", ".hidden", "a/b/c/d/e", "a:b:c", "ünicode"),
]


@pytest.fixture
def site(make_site: MakeSite, models_dir: Path) -> Site:
    return make_site(models_dir=models_dir)


async def post(client: httpx.AsyncClient, path: str, status: int = 200, **body: Any) -> Any:
    reply = await client.post(path, json=body)
    assert reply.status_code == status, reply.text
    return (
        reply.json()
        if reply.headers.get("content-type", "").startswith("application/json")
        else reply.text
    )


async def create(client: httpx.AsyncClient, **body: Any) -> list[Json]:
    text = await post(client, "/api/create", **body)
    return [json.loads(line) for line in text.splitlines()]


async def delete(client: httpx.AsyncClient, name: str) -> httpx.Response:
    return await client.request("DELETE", "/api/delete", json={"model": name})


async def names(client: httpx.AsyncClient) -> set[str]:
    return {model["name"] for model in (await client.get("/api/tags")).json()["models"]}


async def upload(client: httpx.AsyncClient, data: bytes, status: int = 201) -> str:
    digest = digest_of(data)
    reply = await client.post(f"/api/blobs/{digest}", content=data)
    assert reply.status_code == status, reply.text
    return digest


def below(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def test_create_from_a_model_ol40(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            lines = await create(
                client,
                model="mario",
                **{"from": "tiny"},
                system="You are Mario.",
                template="{% for m in messages %}[{{ m.content }}]{% endfor %}",
                parameters={"temperature": 0.5, "stop": ["END"], "num_ctx": 64, "mirostat": 1},
                messages=[{"role": "user", "content": "hi"}],
                license=["one", "two"],
            )
            assert lines[-2:] == [{"status": "writing manifest"}, {"status": "success"}]
            assert await names(client) == {"tiny:latest", "mario:latest"}
            shown = await post(client, "/api/show", model="mario")
            assert shown["system"] == "You are Mario."
            assert shown["template"].startswith("{% for m in messages %}[")
            assert shown["license"] == "one\ntwo"
            assert shown["messages"] == [{"role": "user", "content": "hi"}]
            parameters = [line.split(None, 1) for line in shown["parameters"].splitlines()]
            assert sorted(parameters) == [
                ["num_ctx", "64"],
                ["stop", '"END"'],
                ["temperature", "0.5"],
            ]
            reply = await post(
                client,
                "/api/chat",
                model="mario",
                stream=False,
                messages=[{"role": "user", "content": "a"}],
            )
            assert reply["done"]
            (worker,) = site.workers
            loaded = site.manager.loaded()[0]
            prompt = loaded.tokenizer.decode(worker.requests[-1].token_ids, show_special=True)
            assert prompt == "[You are Mario.][hi][a]"

    run(work())


def test_only_fields_that_do_nothing_are_listed(make_site: MakeSite, models_dir: Path) -> None:
    async def work() -> None:
        async with make_site(models_dir=models_dir).client() as client:
            body = {
                "model": "x",
                "from": "tiny",
                "parameters": {"top_k": 1, "mirostat": 2},
                "colour": "y",
            }
            reply = await client.post("/api/create", json=body)
            ignored = reply.headers["x-emberd-ignored"].split(", ")
            assert sorted(ignored) == ["colour", "parameters.mirostat"]
        async with make_site(models_dir=models_dir, strict=True).client() as client:
            await post(client, "/api/create", model="y", **{"from": "tiny"})
            said = await post(client, "/api/create", 400, **body)
            assert "mirostat" in said["error"] and "'from'" not in said["error"]

    run(work())


def test_create_from_a_created_model_adds_to_it_ol40(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            await create(
                client,
                model="one",
                **{"from": "tiny"},
                system="A",
                parameters={"top_k": 1, "seed": 2},
            )
            await create(client, model="two", **{"from": "one"}, parameters={"top_k": 5})
            shown = await post(client, "/api/show", model="two")
            assert shown["system"] == "A" and shown["details"]["parent_model"] == "one:latest"
            assert dict(site.store.find("two").recipe.parameters) == {"top_k": 5, "seed": 2}
            await create(client, model="two", **{"from": "two"}, system="B")
            assert site.store.find("two").recipe.system == "B"
            assert (
                await post(client, "/api/create", model="x", stream=False, **{"from": "one"})
            ) == {"status": "success"}

    run(work())


def test_create_from_a_blob_ol40(site: Site, tiny_model: Path) -> None:
    data = tiny_model.read_bytes()

    async def work() -> None:
        async with site.client() as client:
            digest = digest_of(data)
            assert (await client.head(f"/api/blobs/{digest}")).status_code == 404
            body = {"model": "up", "files": {"m.gguf": digest}}
            said = await post(client, "/api/create", 400, **body)
            assert f"/api/blobs/{digest}" in said["error"]
            assert await upload(client, data) == digest
            assert (await client.head(f"/api/blobs/{digest}")).status_code == 200
            await upload(client, data, status=200)
            assert (await create(client, **body))[-1] == {"status": "success"}
            reply = await post(client, "/api/generate", model="up", prompt="a", stream=False)
            assert reply["response"] == "Hello world"
            assert (await delete(client, "up")).status_code == 200
            assert list(site.store.pulled.root.rglob("sha256-*")) == []

    run(work())


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "from"),
        ({"from": "tiny", "files": {"a": "sha256:" + "a" * 64}}, "files"),
        ({"files": {"a": "sha256:" + "a" * 64, "b": "sha256:" + "b" * 64}}, "files"),
        *(({"files": {"a": digest}}, "files") for digest in BAD_DIGESTS),
        ({"from": "tiny", "adapters": {"a": "b"}}, "adapters"),
        ({"from": "tiny", "quantize": "q4_0"}, "quantize"),
        ({"modelfile": "FROM tiny"}, "modelfile"),
        ({"from": "tiny", "template": "{{ .Prompt }}"}, "template"),
        ({"from": "tiny", "template": "{% for %}"}, "template"),
        ({"from": "tiny", "parameters": {"top_k": "many"}}, "parameters.top_k"),
        ({"from": "tiny", "parameters": {"temperature": -1}}, "parameters.temperature"),
        ({"from": "tiny", "messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"from": "../tiny"}, "model"),
    ],
)
def test_what_cannot_be_created_is_refused_by_field_ol40(
    site: Site, body: Json, field: str
) -> None:
    async def work() -> None:
        async with site.client() as client:
            before = below(site.store.models_dir)
            said = await post(client, "/api/create", 400, model="new", **body)
            assert f"'{field}'" in said["error"]
            assert below(site.store.models_dir) == before

    run(work())


def test_create_from_what_is_not_there_is_404(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            said = await post(client, "/api/create", 404, model="new", **{"from": "nobody"})
            assert said["error"] == "model 'nobody' not found"

    run(work())


def test_a_blob_that_is_no_model_is_refused_and_makes_none(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            digest = await upload(client, b"no model at all")
            await post(client, "/api/create", 400, model="new", files={"m.gguf": digest})
            assert await names(client) == {"tiny:latest"}

    run(work())


def test_bytes_unlike_their_digest_are_not_kept_ol40(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            before = below(site.store.models_dir)
            reply = await client.post(f"/api/blobs/{digest_of(b'a')}", content=b"b" * (3 << 20))
            assert reply.status_code == 400 and "'digest'" in reply.json()["error"]
            assert (await client.head(f"/api/blobs/{digest_of(b'a')}")).status_code == 404
            assert below(site.store.models_dir) == before

    run(work())


def test_an_upload_is_larger_than_other_bodies_may_be(
    make_site: MakeSite, models_dir: Path
) -> None:
    site = make_site(models_dir=models_dir, max_body=1000)

    async def work() -> None:
        async with site.client() as client:
            await upload(client, bytes(200_000))

    run(work())


@pytest.mark.parametrize("digest", BAD_DIGESTS)
def test_what_is_no_digest_is_refused_k37(site: Site, digest: str) -> None:
    async def work() -> None:
        async with site.client() as client:
            before = below(site.store.models_dir.parent)
            for method in ("HEAD", "POST", "GET"):
                reply = await client.request(method, f"/api/blobs/{digest}", content=b"x")
                assert reply.status_code in (400, 404), digest
                assert str(site.store.models_dir) not in reply.text
            assert below(site.store.models_dir.parent) == before

    run(work())


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_lead_elsewhere_change_nothing_k37(site: Site, name: str) -> None:
    async def work() -> None:
        async with site.client() as client:
            before = below(site.store.models_dir.parent)
            bodies: list[tuple[str, Json]] = [
                ("/api/copy", {"source": "tiny", "destination": name}),
                ("/api/copy", {"source": name, "destination": "new"}),
                ("/api/create", {"model": name, "from": "tiny"}),
                ("/api/create", {"model": "new", "from": name}),
                ("/api/show", {"model": name}),
                ("/api/generate", {"model": name, "prompt": "a"}),
                (
                    "/v1/chat/completions",
                    {"model": name, "messages": [{"role": "user", "content": "a"}]},
                ),
            ]
            replies = [await client.post(path, json=body) for path, body in bodies]
            replies.append(await delete(client, name))
            for reply in replies:
                assert reply.status_code in (400, 404), reply.text
                assert str(site.store.models_dir) not in reply.text
            assert below(site.store.models_dir.parent) == before

    run(work())


def test_copy_gives_a_second_name_ol39(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            await create(client, model="mario", **{"from": "tiny"}, system="It is me.")
            reply = await client.post(
                "/api/copy", json={"source": "mario", "destination": "me/luigi:v2"}
            )
            assert (reply.status_code, reply.content) == (200, b"")
            assert await names(client) == {"tiny:latest", "mario:latest", "me/luigi:v2"}
            assert (await post(client, "/api/show", model="Me/Luigi:V2"))["system"] == "It is me."
            await post(client, "/api/copy", 404, source="nobody", destination="x")
            assert "'source'" in (await post(client, "/api/copy", 400, destination="x"))["error"]
            weights = [
                path for path in site.store.models_dir.rglob("*") if path.stat().st_size > 1e5
            ]
            assert len(weights) == 1  # nothing was copied

    run(work())


def test_delete_forgets_what_was_made_and_keeps_the_file_ol39(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            await create(client, model="mario", **{"from": "tiny"}, system="It is me.")
            await post(client, "/api/generate", model="mario")
            reply = await delete(client, "MARIO")
            assert (reply.status_code, reply.content) == (200, b"")
            assert await names(client) == {"tiny:latest"}
            assert site.manager.loaded() == []
            reply = await delete(client, "mario")
            assert (reply.status_code, reply.json()) == (404, {"error": "model 'mario' not found"})
            reply = await client.request("DELETE", "/api/delete", json={})
            assert reply.status_code == 400 and "'model'" in reply.json()["error"]
            assert (await client.request("DELETE", "/api/delete")).status_code == 400

    run(work())


def test_files_that_emberd_did_not_make_are_not_deleted_ol39(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            before = below(site.store.models_dir)
            reply = await delete(client, "tiny")
            assert reply.status_code == 400 and "only reads" in reply.json()["error"]
            assert below(site.store.models_dir) == before

    run(work())


def test_a_blob_stays_while_another_name_needs_it(site: Site, tiny_model: Path) -> None:
    async def work() -> None:
        async with site.client() as client:
            digest = await upload(client, tiny_model.read_bytes())
            await create(client, model="one", files={"m.gguf": digest})
            await create(client, model="two", **{"from": "one"}, system="S")
            await delete(client, "one")
            assert (await client.head(f"/api/blobs/{digest}")).status_code == 200
            await post(client, "/api/generate", model="two")
            await delete(client, "two")
            assert (await client.head(f"/api/blobs/{digest}")).status_code == 404

    run(work())


def test_a_name_of_the_start_cannot_be_taken(site: Site, tiny_model: Path) -> None:
    site.store.register(str(tiny_model))

    async def work() -> None:
        async with site.client() as client:
            body = {"model": "tiny", "from": "tiny", "system": "x"}
            assert "'model'" in (await post(client, "/api/create", 400, **body))["error"]

    run(work())


def test_a_delete_for_another_host_deletes_nothing_k34(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            await create(client, model="mario", **{"from": "tiny"})
            reply = await client.request(
                "DELETE", "/api/delete", json={"model": "mario"}, headers={"host": "evil.example"}
            )
            assert reply.status_code == 403
            assert "mario:latest" in await names(client)

    run(work())


@pytest.mark.parametrize("path", ["/api/push", "/api/me", "/api/signout"])
def test_what_is_not_served_says_so_ol40(site: Site, path: str) -> None:
    async def work() -> None:
        async with site.client() as client:
            said = await post(client, path, 501, model="tiny")
            assert "not supported" in said["error"]

    run(work())
