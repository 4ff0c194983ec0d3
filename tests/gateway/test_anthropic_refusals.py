"""POST /v1/messages that is refused, fails, is silent for long or hung up on (AN-22, AN-24, HT-11 to HT-31, K36)."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from anthropic_harness import (
    COUNT,
    MESSAGES,
    Json,
    MakeSite,
    body_of,
    events,
    post,
    thinking_site,
)

from site_fakes import CONTEXT, refused, run


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages[0].content[0]",
        ),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stream": "yes"}, "stream"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"thinking": {"type": "sometimes"}}, "thinking.type"),
        ({"output_config": {"effort": "heroic"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "w"}}, "tool_choice.name"),
        ({"tools": [{"name": "w"}]}, "tools[0].input_schema"),
    ],
)
def test_wrong_requests_are_refused_by_field_an22(
    make_site: MakeSite, fields: Json, named: str
) -> None:
    site = make_site()
    (response,) = post(site, MESSAGES, body_of("a", **fields))
    assert response.status_code == 400, response.text
    answer = response.json()
    assert set(answer) == {"type", "error", "request_id"}
    assert answer["type"] == "error"
    assert answer["error"]["type"] == "invalid_request_error"
    assert f"'{named}'" in answer["error"]["message"]
    assert answer["request_id"] == response.headers["request-id"]
    assert not any(worker.requests for worker in site.workers)


EVERYTHING: Json = {
    "model": "tiny",
    "max_tokens": 5,
    "system": [{"type": "text", "text": "s"}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "g"},
                {"type": "tool_use", "id": "1", "name": "w", "input": {"p": 1}},
                {"type": "server_tool_use", "id": "2", "name": "web_search", "input": {}},
                {"type": "web_search_tool_result", "tool_use_id": "2", "content": [{"title": "T"}]},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "1",
                    "content": [{"type": "text", "text": "r"}],
                },
                {"type": "document", "title": "D", "source": {"type": "text", "data": "d"}},
                {"type": "search_result", "title": "S", "content": [{"type": "text", "text": "a"}]},
            ],
        },
    ],
    "tools": [{"name": "w", "input_schema": {"type": "object", "properties": {"p": {}}}}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 5},
    "output_config": {"effort": "low"},
    "stop_sequences": ["z"],
}
JUNK: list[Any] = [
    None,
    0,
    -1,
    1.5,
    True,
    "",
    "text",
    [],
    {},
    [[]],
    [{}],
    {"type": []},
    "\ud800",
    10**30,
]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container of `value` with each of its keys."""
    keys = (
        range(len(value)) if isinstance(value, list) else value if isinstance(value, dict) else ()
    )
    return [(value, key) for key in keys] + [p for key in keys for p in places(value[key])]


@pytest.mark.slow
def test_no_junk_anywhere_in_a_body_is_more_than_a_400_k36(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    bodies = []
    for _ in range(150):
        body = copy.deepcopy(EVERYTHING)
        found = places(body)
        holder, key = found[rng.integers(len(found))]
        holder[key] = copy.deepcopy(JUNK[rng.integers(len(JUNK))])
        bodies.append(body)
    whole = post(thinking_site(tmp_path, {"a": ["Yes"]}), MESSAGES, EVERYTHING)[0]
    assert whole.status_code == 200, whole.text
    for path in (MESSAGES, COUNT):
        site = thinking_site(tmp_path / path.rpartition("/")[2], {"a": ["Yes"]})
        for body, response in zip(bodies, post(site, path, *bodies), strict=True):
            assert response.status_code in (200, 400, 404), (body, response.text)
            if response.status_code != 200:
                assert set(response.json()) == {"type", "error", "request_id"}
                assert len(response.text) < 1000


def test_a_prompt_that_is_too_long_says_so_in_the_words_agents_know_ht31(
    make_site: MakeSite,
) -> None:
    for more in ({}, {"stream": True}):
        (response,) = post(make_site(), MESSAGES, body_of("x" * 300, **more))
        assert response.status_code == 400
        message = response.json()["error"]["message"]
        assert message.startswith(f"prompt is too long: 300 tokens > {CONTEXT} maximum")


def test_other_errors_have_anthropics_types_an22(make_site: MakeSite) -> None:
    (response,) = post(make_site(), MESSAGES, body_of("a", model="nothing"))
    assert (response.status_code, response.json()["error"]["type"]) == (404, "not_found_error")
    (response,) = post(make_site(max_body=50), MESSAGES, body_of("a" * 100))
    assert (response.status_code, response.json()["error"]["type"]) == (413, "request_too_large")
    (response,) = post(make_site({"load_error": refused()}), MESSAGES, body_of("a"))
    assert (response.status_code, response.json()["error"]["type"]) == (500, "api_error")
    assert response.headers["x-should-retry"] == "false"

    async def work() -> None:
        async with make_site().client() as client:
            wrong = await client.get(MESSAGES)
            assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
            assert wrong.json()["type"] == "error"
            unknown = await client.post(f"{MESSAGES}/batches", json={})
            assert unknown.json()["error"]["type"] == "not_found_error"
            foreign = await client.post(MESSAGES, json={}, headers={"host": "evil.example"})
            assert foreign.status_code == 403
            assert foreign.json()["error"]["type"] == "permission_error"

    run(work())


def test_a_full_queue_is_529_ht15(make_site: MakeSite) -> None:
    site = make_site({"prefill": False}, queue_limit=1)

    async def work() -> None:
        async with site.client() as client:
            first = asyncio.ensure_future(client.post(MESSAGES, json=body_of("a")))
            await site.until(lambda: site.service.num_sequences == 1)
            second = await client.post(MESSAGES, json=body_of("a"))
            assert second.status_code == 529
            assert second.headers["retry-after"] == "1"
            assert second.json()["error"]["type"] == "overloaded_error"
            assert (await client.post(COUNT, json=body_of("a"))).status_code == 200
            site.workers[0].prefilled.set()
            assert (await first).status_code == 200

    run(work())


def test_an_error_in_a_stream_is_its_last_event_an22(make_site: MakeSite) -> None:
    site = make_site({"delay": 0.002})

    async def work() -> None:
        async with site.http() as client:
            body = body_of("e", stream=True, max_tokens=250)
            reply = asyncio.ensure_future(client.post(MESSAGES, json=body))
            await site.until(lambda: site.workers and site.workers[0].num_tokens >= 10)
            site.workers[0].alive = False
            response = await reply
            *_, last = events(response.text)
            assert last["type"] == "error"
            assert last["error"]["type"] == "api_error"
            assert "worker of 'fake' ended" in last["error"]["message"]
            assert last["request_id"] == response.headers["request-id"]

    run(work())


def test_a_silent_stream_begins_at_once_and_pings_an24_ht11_ht13(make_site: MakeSite) -> None:
    site = make_site({"prefill": False}, ping=0.05)

    async def work() -> None:
        async with site.http() as client:
            text, ping = "", {"type": "ping"}
            async with client.stream("POST", MESSAGES, json=body_of("a", stream=True)) as reply:
                async for piece in reply.aiter_text():
                    text += piece
                    if text.count("event: ping\n") == 2:
                        site.workers[0].prefilled.set()
            first, *rest = events(text)
            assert first["type"] == "message_start"
            assert first["message"]["usage"]["input_tokens"] == 1
            told = [
                event for event in rest if event != ping
            ]  # one may come while the stream is closed
            assert told[-1] == {"type": "message_stop"}

    run(work())


@pytest.mark.parametrize("streamed", [True, False])
def test_a_hang_up_cancels_c8(make_site: MakeSite, streamed: bool) -> None:
    site = make_site({"prefill": False})

    async def work() -> None:
        async with site.http() as client:
            body = body_of("e", stream=streamed)
            waiting = asyncio.ensure_future(client.post(MESSAGES, json=body))
            await site.until(lambda: site.service.num_sequences == 1)
            waiting.cancel()
            await site.until(lambda: site.workers[0].cancelled)
            await site.until(lambda: site.service.num_sequences == 0)

    run(work())
