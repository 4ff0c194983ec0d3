"""Priority classes on every dialect: bodies, header, keys, what is echoed, and places kept for better classes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from emberd.keys import parse_key, parse_keys
from site_fakes import Site, run

MakeSite = Callable[..., Site]
Json = dict[str, Any]
INTERACTIVE, NORMAL, BATCH = range(3)
_CHAT: Json = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}
OPENAI: dict[str, Json] = {
    "/v1/chat/completions": _CHAT,
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "a"},
}
ROUTES: dict[str, Json] = OPENAI | {
    "/v1/messages": _CHAT,
    "/api/chat": _CHAT | {"stream": False},
    "/api/generate": {"prompt": "a", "stream": False},
}


async def post(client: httpx.AsyncClient, path: str, **fields: Any) -> httpx.Response:
    headers = fields.pop("headers", {})
    return await client.post(
        path, json={"model": "tiny", **ROUTES[path], **fields}, headers=headers
    )


def classes(site: Site, path: str, *asked: Json) -> list[int]:
    """What the worker is told, request by request."""

    async def work() -> None:
        async with site.client() as client:
            for fields in asked:
                answer = await post(client, path, **fields)
                assert answer.status_code == 200, answer.text
                assert "priority" not in answer.headers.get("x-emberd-ignored", "")

    run(work())
    return [request.priority for request in site.workers[0].requests]


@pytest.mark.parametrize("path", ROUTES)
def test_numbers_and_the_header_choose_a_class_on_every_route(
    make_site: MakeSite, path: str
) -> None:
    header = {"x-emberd-priority": "Batch"}
    asked = [
        {},
        {"priority": 0},
        {"priority": -3},
        {"priority": 1},
        {"priority": None},
        {"headers": header},
        {"headers": header, "priority": -1},
        {"headers": {"x-emberd-priority": "-7"}, "priority": 5},
        {"headers": {"x-emberd-priority": "interactive"}},
    ]
    assert classes(make_site(), path, *asked) == [1, 1, 0, 2, 1, 2, 2, 0, 0]


@pytest.mark.parametrize("path", OPENAI)
def test_tiers_choose_a_class_and_are_echoed(make_site: MakeSite, path: str) -> None:
    site, told = make_site(), []
    tiers = ["auto", "default", "flex", "scale", "priority"]

    async def work() -> None:
        async with site.client() as client:
            for fields in [*({"service_tier": tier} for tier in tiers), {"priority": 3}]:
                answer = await post(client, path, **fields, store=False)
                told.append(answer.json().get("service_tier"))
            answer = await post(client, path, service_tier="flex", priority=-1)
            told.append(answer.json()["service_tier"])
            wrong = await post(client, path, service_tier="best")
            assert wrong.status_code == 400 and "service_tier" in wrong.text

    run(work())
    assert [one.priority for one in site.workers[0].requests] == [1, 1, 2, 1, 0, 2, 0]
    unasked = "flex" if path == "/v1/responses" else None
    assert told == ["default", "default", "flex", "default", "priority", unasked, "priority"]


@pytest.mark.parametrize(
    "fields",
    [
        {"priority": 0.5},
        {"priority": "high"},
        {"priority": True},
        {"headers": {"x-emberd-priority": "best"}},
        {"headers": {"x-emberd-priority": ""}},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/api/chat"])
def test_what_is_no_priority_is_refused_by_name(
    make_site: MakeSite, path: str, fields: Json
) -> None:
    site = make_site()

    async def work() -> httpx.Response:
        async with site.client() as client:
            return await post(client, path, **fields)

    answer = run(work())
    assert answer.status_code == 400 and "priority" in answer.text
    assert not site.workers


def test_a_key_has_a_class_which_its_requests_cannot_better(make_site: MakeSite) -> None:
    site = make_site(api_keys=parse_keys("plain,usual:infer:normal,slow::batch,fast::interactive"))
    asked = [
        ("plain", {}, NORMAL),
        ("plain", {"priority": -1}, INTERACTIVE),
        ("usual", {"priority": -1}, NORMAL),
        ("usual", {"priority": 1}, BATCH),
        ("slow", {}, BATCH),
        ("slow", {"priority": -1}, BATCH),
        ("fast", {}, INTERACTIVE),
        ("fast", {"priority": 1}, BATCH),
    ]
    found = classes(
        site, "/api/chat", *({**fields, "headers": {"x-api-key": key}} for key, fields, _ in asked)
    )
    assert found == [priority for *_, priority in asked]


def test_classes_of_keys_are_read() -> None:
    assert parse_key("k::Batch").priority == "batch"
    assert parse_key("k::batch").scopes == parse_key("k").scopes
    assert parse_key("k:infer+list:normal").scopes == {"infer", "list"}
    assert parse_key("k:infer").priority is None
    for wrong in ("k:infer:", "k::", "k::best", "k:infer:batch:2", "k:"):
        with pytest.raises(ValueError, match="as KEY:infer\\+list") as caught:
            parse_key(wrong)
        assert "best" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/completions", 429), ("/api/chat", 503), ("/v1/messages", 529)]
)
def test_a_quarter_of_the_queue_is_kept_from_batch_requests(
    make_site: MakeSite, path: str, status: int
) -> None:
    site = make_site({"prefill": False}, queue_limit=8)

    async def work() -> None:
        async with site.client() as client:
            replies = []
            for number in range(8):
                if number == 6:
                    refused = await post(client, path, priority=1)
                    assert refused.status_code == status
                    assert refused.headers["retry-after"].isdecimal()
                    assert "2 are kept from class batch" in refused.text
                priority = int(number < 6)
                replies.append(asyncio.ensure_future(post(client, path, priority=priority)))
                await site.until(
                    lambda n=number: site.workers and len(site.workers[0].running) == n + 1
                )
            listed = (await client.get("/api/requests")).json()["requests"]
            assert [one["priority"] for one in listed] == ["batch"] * 6 + ["normal"] * 2
            assert (await post(client, path)).status_code == status
            site.workers[0].prefilled.set()
            assert {(await reply).status_code for reply in replies} == {200}

    run(work())
