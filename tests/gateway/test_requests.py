"""Requests seen and ended from outside: GET and DELETE /api/requests, on every dialect and at every stage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from emberd.gateway.requests import request_id
from site_fakes import Site, run

MakeSite = Callable[..., Site]
Json = dict[str, Any]
_CHAT: Json = {"model": "tiny", "messages": [{"role": "user", "content": "e"}], "max_tokens": 200}
ROUTES: dict[str, Json] = {
    "/v1/chat/completions": _CHAT,
    "/v1/completions": {"model": "tiny", "prompt": "e"},
    "/v1/responses": {"model": "tiny", "input": "e"},
    "/v1/messages": _CHAT,
    "/api/chat": _CHAT | {"stream": False},
    "/api/generate": {"model": "tiny", "prompt": "e", "stream": False},
}


async def listed(client: httpx.AsyncClient, **headers: str) -> list[Json]:
    answer = await client.get("/api/requests", headers=headers)
    assert answer.status_code == 200, answer.text
    found: list[Json] = answer.json()["requests"]
    return found


@pytest.mark.parametrize("path", ROUTES)
def test_a_running_request_is_listed_and_ended_by_its_id(make_site: MakeSite, path: str) -> None:
    site = make_site({"delay": 0.01})

    async def work() -> None:
        async with site.client() as client:
            reply = asyncio.ensure_future(client.post(path, json=ROUTES[path]))
            await site.until(lambda: site.workers and site.workers[0].running)
            (one,) = await listed(client)
            assert (one["path"], one["model"], one["state"]) == (path, "tiny:latest", "decode")
            assert one["prompt_tokens"] > 0 and one["age_seconds"] >= 0 and one["key"] is None
            ended = await client.delete(f"/api/requests/{one['id']}")
            assert ended.json() == {"id": one["id"], "cancelled": True}
            answer = await reply
            assert answer.status_code == 499 and "was cancelled" in answer.text
            assert answer.headers["x-request-id"] == one["id"]
            assert site.workers[0].cancelled == [f"{one['id']}-0"]
            assert await listed(client) == []
            gone = await client.delete(f"/api/requests/{one['id']}")
            assert gone.status_code == 404 and one["id"] in gone.json()["error"]

    run(work())
    assert site.service.num_taken == 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages"])
def test_a_stream_is_ended_by_the_id_in_its_body(make_site: MakeSite, path: str) -> None:
    site = make_site({"delay": 0.01})

    async def work() -> str:
        async with site.http() as client:
            async with client.stream("POST", path, json=ROUTES[path] | {"stream": True}) as reply:
                text = ""
                async for line in reply.aiter_lines():
                    text += line + "\n"
                    if '"id":"' in line and "cancelled" not in text:
                        id = line.split('"id":"')[1].split('"')[0]
                        assert request_id(id) == reply.headers["x-request-id"]
                        await client.delete(f"/api/requests/{id}")
                return text

    text = run(work())
    assert "the request was cancelled" in text and "[DONE]" not in text


def test_a_request_is_ended_while_its_model_loads(make_site: MakeSite) -> None:
    async def work() -> None:
        site = make_site({"load_gate": asyncio.Event()})
        async with site.client() as client:
            for path, body in [("/api/chat", _CHAT), ("/api/generate", {"model": "tiny"})]:
                reply = asyncio.ensure_future(client.post(path, json=body))
                await site.until(lambda: list(site.service.requests))
                (one,) = await listed(client)
                assert (one["state"], one["sequences"]) == ("starting", 0)
                assert (await client.delete(f"/api/requests/{one['id']}")).status_code == 200
                assert (await reply).status_code == 499
            assert site.service.num_taken == 0 and list(site.service.requests) == []

    run(work())


def test_an_embedding_is_ended(make_site: MakeSite, embedding_models: Any) -> None:
    site = make_site({"prefill": False}, models_dir=embedding_models)

    async def work() -> None:
        async with site.client() as client:
            body = {"model": "encoder", "input": ["the", "hello"]}
            reply = asyncio.ensure_future(client.post("/v1/embeddings", json=body))
            await site.until(lambda: site.workers and len(site.workers[0].running) == 2)
            (one,) = await listed(client)
            await client.delete(f"/api/requests/{one['id']}")
            assert (await reply).status_code == 499
            assert len(site.workers[0].cancelled) == 2

    run(work())


def test_a_key_ends_its_own_requests_and_one_that_manages_all(make_site: MakeSite) -> None:
    site = make_site({"delay": 0.01}, api_keys=_keys("ada-key:infer+list,bob-key:infer,boss-key"))

    async def work() -> None:
        async with site.client() as client:

            def sent(key: str) -> asyncio.Task[httpx.Response]:
                headers = {"x-api-key": key}
                return asyncio.ensure_future(client.post("/api/chat", json=_CHAT, headers=headers))

            replies = [sent("ada-key"), sent("bob-key")]
            await site.until(lambda: site.workers and len(site.workers[0].running) == 2)
            first, second = sorted(await listed(client, **{"x-api-key": "ada-key"}), key=_key)
            assert (first["key"], second["key"]) == (1, 2)
            assert "ada" not in str(first) and "bob" not in str(second)
            for key, one, status in [
                ("bob-key", first, 404),
                ("ada-key", second, 404),
                ("boss-key", first, 200),
                ("bob-key", second, 200),
            ]:
                answer = await client.delete(
                    f"/api/requests/{one['id']}", headers={"x-api-key": key}
                )
                assert answer.status_code == status, key
            for reply in replies:
                await reply

    run(work())


def _key(one: Json) -> int:
    key: int = one["key"]
    return key


def _keys(text: str) -> Any:
    from emberd.keys import parse_keys

    return parse_keys(text)
