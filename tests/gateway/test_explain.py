"""GET /api/requests/{id}: where a prompt parts from earlier ones, and who may see that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import httpx
import pytest

from emberd.gateway import requests
from emberd.inspection import PrefixFinding
from emberd.keys import parse_keys
from emberd.protocol import GenerateRequest, SequenceUpdate
from site_fakes import FakeWorker, Site, run

MakeSite = Callable[..., Site]
Json = dict[str, Any]
BODY: Json = {"model": "tiny", "prompt": "a prompt that parts", "max_tokens": 3}
POSITION = 7


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch) -> list[PrefixFinding | None]:
    """What the workers tell, one for each request in turn."""
    told: list[PrefixFinding | None] = []
    plain = FakeWorker.generate

    async def generate(
        self: FakeWorker, request: GenerateRequest
    ) -> AsyncGenerator[SequenceUpdate, None]:
        finding = told.pop(0) if told else None
        async for update in plain(self, request):
            yield update._replace(finding=finding)
            finding = None

    monkeypatch.setattr(FakeWorker, "generate", generate)
    return told


async def asked(
    client: httpx.AsyncClient, body: Json = BODY, path: str = "/v1/completions", **headers: str
) -> str:
    answer = await client.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-request-id"]


async def told(client: httpx.AsyncClient, id: str, **headers: str) -> Json:
    answer = await client.get(f"/api/requests/{id}", headers=headers)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def test_an_ended_request_tells_the_first_token_that_differs(
    make_site: MakeSite, findings: list[PrefixFinding | None]
) -> None:
    site = make_site()

    async def work() -> None:
        async with site.client() as client:
            first = await asked(client)
            findings.append(PrefixFinding(POSITION, 4, f"{first}-0", (ord("X"), ord("y"))))
            id = await asked(client)
            for name in (id, id.replace("req_", "cmpl-")):
                one = await told(client, name)
                assert (one["id"], one["state"], one["path"]) == (id, "ended", "/v1/completions")
                (prompt,) = one["prompts"]
                text = BODY["prompt"]
                assert len(one["ends"]) == 1 and one["prompt_tokens"] == prompt["prompt_tokens"]
                assert prompt["cached_tokens"] == one["cached_tokens"] == 1  # as the worker says
                assert (prompt["outcome"], prompt["gone_tokens"]) == ("parted", 4)
                assert prompt["nearest"] == {"request": first, "tokens": POSITION}
                difference = prompt["difference"]
                assert difference["position"] == POSITION
                at = text.index(difference["before"]) + len(difference["before"])
                assert difference["token"] == {"id": ord(text[at]), "text": text[at]}
                assert text[at + 1 :].startswith(difference["after"])
                assert difference["nearest_token"] == {"id": ord("X"), "text": "X"}
                assert difference["nearest_after"] == "y"
            assert (await client.get("/api/requests")).json() == {"requests": []}

    run(work())


def test_outcomes(make_site: MakeSite, findings: list[PrefixFinding | None]) -> None:
    site = make_site()

    async def work() -> None:
        async with site.client() as client:

            async def outcome(finding: PrefixFinding | None, **fields: Any) -> Json:
                findings.append(finding)
                (prompt,) = (await told(client, await asked(client, BODY | fields)))["prompts"]
                assert (prompt["difference"] is None) == (prompt["outcome"] != "parted")
                return prompt

            size = (await outcome(None))["prompt_tokens"]
            assert (await outcome(PrefixFinding(0, 0)))["outcome"] == "new"
            assert (await outcome(PrefixFinding(4, 0)))["outcome"] == "longer"
            assert (await outcome(PrefixFinding(size, 0)))["outcome"] == "known"
            off = await outcome(None, cache_prompt=False)
            assert (off["outcome"], off["nearest"]) == ("off", None)
            assert (await outcome(None, n=3))["prompt_tokens"] == size, "of copies one is told"

    run(work())


def test_a_running_request_is_told_too_and_a_prompt_that_is_read_is_pending(
    make_site: MakeSite,
) -> None:
    site = make_site({"prefill": False})

    async def work() -> None:
        async with site.client() as client:
            reply = asyncio.ensure_future(client.post("/v1/completions", json=BODY))
            await site.until(lambda: site.workers and site.workers[0].running)
            (one,) = site.service.requests
            found = await told(client, one.caller.request_id)
            assert (found["state"], found["ends"]) == ("decode", None)
            assert [prompt["outcome"] for prompt in found["prompts"]] == ["pending"]
            await client.delete(f"/api/requests/{found['id']}")
            assert (await reply).status_code == 499
            ended = await told(client, found["id"])
            assert (ended["state"], ended["ends"]) == ("ended", ["error"])

    run(work())


def test_who_sees_what(make_site: MakeSite, findings: list[PrefixFinding | None]) -> None:
    """A key sees its own requests; where they part from those of others only one that manages."""
    keys = parse_keys("ada-key:infer,bob-key:infer,eve-key:list,boss-key")
    site = make_site(api_keys=keys)

    async def work() -> None:
        async with site.client() as client:
            ada, bob, boss = ({"x-api-key": f"{name}-key"} for name in ("ada", "bob", "boss"))
            first = await asked(client, **ada)
            finding = PrefixFinding(POSITION, 0, f"{first}-0", (ord("S"),))
            findings.extend([finding] * 2)
            own, other = await asked(client, **ada), await asked(client, **bob)
            assert (await told(client, own, **ada))["prompts"][0]["outcome"] == "parted"
            told_to_bob = await told(client, other, **bob)
            (prompt,) = told_to_bob["prompts"]
            assert prompt["outcome"] == "withheld" and prompt["cached_tokens"] == 1
            assert prompt["nearest"] is prompt["difference"] is None
            assert first not in str(told_to_bob) and str(POSITION) not in str(prompt)
            (prompt,) = (await told(client, other, **boss))["prompts"]
            assert prompt["nearest"]["request"] == first
            for id, headers, status in [
                (own, bob, 404),
                (other, ada, 404),
                (other, {"x-api-key": "eve-key"}, 403),
                ("req_00", boss, 404),
            ]:
                answer = await client.get(f"/api/requests/{id}", headers=headers)
                assert answer.status_code == status and answer.json()["error"]

    run(work())


def test_the_last_that_ended_are_kept(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "KEPT", 3)
    site = make_site()

    async def work() -> None:
        async with site.client() as client:
            ids = [await asked(client) for _ in range(4)]
            missing = await client.get("/api/requests/nothing")
            failed = await client.post("/v1/completions", json=BODY | {"model": "no such"})
            for id, status in [
                (ids[0], 404),
                (ids[1], 404),
                (ids[2], 200),
                (ids[3], 200),
                (failed.headers["x-request-id"], 200),
                (missing.headers["x-request-id"], 404),
            ]:
                assert (await client.get(f"/api/requests/{id}")).status_code == status
            assert (await told(client, failed.headers["x-request-id"]))["prompts"] == []

    run(work())


def test_texts_are_left_out_where_the_model_has_changed(
    make_site: MakeSite, models_dir: Any, findings: list[PrefixFinding | None]
) -> None:
    site = make_site(models_dir=models_dir)
    findings.append(PrefixFinding(POSITION, 0, None, (65,)))

    async def work() -> None:
        async with site.client() as client:
            id = await asked(client)
            (models_dir / "tiny.gguf").unlink()
            (prompt,) = (await told(client, id))["prompts"]
            assert prompt["difference"]["nearest_token"] == {"id": 65, "text": None}
            assert prompt["difference"]["before"] is None

    run(work())
