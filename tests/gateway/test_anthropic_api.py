"""POST /v1/messages and its relatives without sockets, and the bytes of its streams (AN-01 to AN-26, HT-30..33).

Longer than 400 lines because one API, and its tests share their requests and their reader of events.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from emberd.config import Config
from emberd.gateway.anthropic.describe import listing
from site_fakes import CONTEXT, Site, refused, run, write_model
from tiny_gguf import script_model

MakeSite = Callable[..., Site]
Json = dict[str, Any]
MESSAGES = "/v1/messages"
COUNT = f"{MESSAGES}/count_tokens"
THINKS = (
    "{% for t in tools or () %}{{ t['function']['name'] }}{% endfor %}"
    "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{# <think> </think> <tool_call> #}"
)


def body_of(trigger: str, **fields: Any) -> Json:
    messages = [{"role": "user", "content": trigger}]
    return {"model": "tiny", "max_tokens": 100, "messages": messages, **fields}


def post(site: Site, path: str, *bodies: Json, **headers: str) -> list[httpx.Response]:
    async def work() -> list[httpx.Response]:
        async with site.client(**headers) as client:
            return [await client.post(path, content=json.dumps(body)) for body in bodies]

    return run(work())


def ask(site: Site, trigger: str, **fields: Any) -> Json:
    (response,) = post(site, MESSAGES, body_of(trigger, **fields))
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def stream(site: Site, body: Json) -> httpx.Response:
    async def work() -> httpx.Response:
        async with site.listening() as (url, _), httpx.AsyncClient(base_url=url) as client:
            return await client.post(MESSAGES, json={**body, "stream": True})

    return run(work())


def events(text: str) -> list[Json]:
    """The data of each event, whose name must be its type."""
    assert text.endswith("\n\n")
    found = []
    for part in text[:-2].split("\n\n"):
        match = re.fullmatch(r"event: (\w+)\ndata: (\{[^\n]+\})", part)
        assert match, part
        found.append(json.loads(match[2]))
        assert found[-1]["type"] == match[1]
    return found


def thinking_site(folder: Path, scripts: dict[str, list[Any]], **site: Any) -> Site:
    """A site whose model has a thinking template."""
    (folder / "models").mkdir(parents=True)
    metadata = {"tokenizer.chat_template": THINKS}
    script_model(
        folder / "models" / "tiny.gguf", scripts, context_length=CONTEXT, metadata=metadata
    )
    return Site(Config(models_dir=folder / "models", cache_dir=folder / "cache"), **site)


def test_a_message_has_anthropics_shape_an07(make_site: MakeSite) -> None:
    answer = ask(make_site(), "b", temperature=0, top_k=1, top_p=0.5)
    assert re.fullmatch(r"msg_[0-9a-f]{24}", answer.pop("id"))
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [{"type": "text", "text": "A B C D E F G"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 0,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 1,
            "output_tokens": 5,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }


def test_the_bytes_of_a_stream_an20_an21(make_site: MakeSite) -> None:
    response = stream(make_site({"delay": 0.005}), body_of("a"))
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    text = re.sub("msg_[0-9a-f]{24}", "ID", response.text)
    usage = (
        '{{"input_tokens":{},"cache_creation_input_tokens":0,"cache_read_input_tokens":{},'
        '"output_tokens":{},"output_tokens_details":{{"thinking_tokens":0}}}}'
    )
    assert text == (
        'event: message_start\ndata: {"type":"message_start","message":{"id":"ID","type":"message",'
        '"role":"assistant","model":"tiny","content":[],"stop_reason":null,"stop_sequence":null,'
        f'"usage":{usage.format(1, 0, 0)}}}}}\n\n'
        'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
        '"content_block":{"type":"text","text":""}}\n\n'
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        '"delta":{"type":"text_delta","text":"Hello"}}\n\n'
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        '"delta":{"type":"text_delta","text":" world"}}\n\n'
        'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
        'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn",'
        f'"stop_sequence":null}},"usage":{usage.format(0, 1, 3)}}}\n\n'
        'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    )


@pytest.mark.parametrize(
    ("stop", "text", "matched"),
    [
        (["D E"], "A B C ", "D E"),
        (["D Z"], "A B C D E F G", None),
        (["A B"], "", "A B"),
        (["F", "D E"], "A B C ", "D E"),
    ],
)
def test_a_stop_sequence_is_named_and_no_part_of_the_text_an25_k04(
    make_site: MakeSite, stop: list[str], text: str, matched: str | None
) -> None:
    answer = ask(make_site(), "b", stop_sequences=stop)
    assert "".join(block["text"] for block in answer["content"]) == text
    assert answer["stop_sequence"] == matched
    assert answer["stop_reason"] == ("stop_sequence" if matched else "end_turn")
    streamed = events(stream(make_site({"delay": 0.002}), body_of("b", stop_sequences=stop)).text)
    assert streamed[-2]["delta"]["stop_sequence"] == matched
    assert "".join(e["delta"].get("text", "") for e in streamed if "delta" in e) == text


def test_why_it_ended_an08_ht33(make_site: MakeSite) -> None:
    answer = ask(make_site(), "e", max_tokens=5)
    assert (answer["stop_reason"], answer["usage"]["output_tokens"]) == ("max_tokens", 5)
    for limit in (32000, None):
        answer = ask(make_site(), "e", max_tokens=limit)
        assert answer["stop_reason"] == "model_context_window_exceeded"
        assert answer["usage"]["output_tokens"] == CONTEXT - 1
    exactly = ask(make_site(), "e", max_tokens=CONTEXT - 1)
    assert exactly["stop_reason"] == "max_tokens"


def test_the_whole_message_and_the_stream_count_the_same_k02(make_site: MakeSite) -> None:
    whole = ask(make_site(), "b")
    streamed = events(stream(make_site(), body_of("b")).text)
    assert streamed[-2]["usage"] == whole["usage"]


def test_thinking_comes_first_and_signed_an10(tmp_path: Path) -> None:
    scripts = {"1": ["<think>", "hm", "</think>", "\n\n", "Yes"]}
    sites = [thinking_site(tmp_path / name, scripts, delay=0.002) for name in ("a", "b", "c")]
    body = body_of("1", thinking={"type": "adaptive"})
    answer = post(sites[0], MESSAGES, body)[0].json()
    assert [block["type"] for block in answer["content"]] == ["thinking", "text"]
    thought, text = answer["content"]
    assert (thought["thinking"], text["text"]) == ("hm", "Yes")
    assert thought["signature"]
    assert answer["usage"]["output_tokens_details"]["thinking_tokens"] == 3
    streamed = events(stream(sites[1], body).text)
    deltas = [event["delta"] for event in streamed if event["type"] == "content_block_delta"]
    assert deltas == [
        {"type": "thinking_delta", "thinking": "hm"},
        {"type": "signature_delta", "signature": thought["signature"]},
        {"type": "text_delta", "text": "Yes"},
    ]
    hidden = body_of("1", thinking={"type": "adaptive", "display": "omitted"})
    assert post(sites[2], MESSAGES, hidden)[0].json()["content"][0] == {**thought, "thinking": ""}


def test_every_spelling_of_thinking_reaches_the_template(tmp_path: Path) -> None:
    site = thinking_site(tmp_path, {"1": ["Yes"]})
    wishes: list[Json] = [
        {"thinking": {"type": "disabled"}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"thinking": {"type": "adaptive"}},
        {"output_config": {"effort": "high"}},
        {},
    ]
    responses = post(site, MESSAGES, *(body_of("1", **wish) for wish in wishes))
    assert [response.status_code for response in responses] == [200] * 5
    prompts = [bytes(request.token_ids) for request in site.workers[0].requests]
    assert prompts[0] == b"1<think>\n\n</think>\n\n"
    assert prompts[1:] == [b"1"] * 4


def test_a_reply_that_is_gone_on_from_is_not_thought_about(tmp_path: Path) -> None:
    site = thinking_site(tmp_path, {"1": ["Yes"]})
    body = body_of("x", thinking={"type": "adaptive"})
    body["messages"].append({"role": "assistant", "content": "1"})
    assert post(site, MESSAGES, body)[0].json()["content"] == [{"type": "text", "text": "Yes"}]
    assert bytes(site.workers[0].requests[0].token_ids) == b"x<think>\n\n</think>\n\n1"


def test_a_thinking_budget_is_kept_to(tmp_path: Path) -> None:
    scripts = {"1": ["<think>", *(f" w{i}" for i in range(8))], "\n": ["Done"]}
    site = thinking_site(tmp_path, scripts)
    budget = {"type": "enabled", "budget_tokens": 4}
    (response,) = post(site, MESSAGES, body_of("1", thinking=budget))
    thought, text = response.json()["content"]
    assert (thought["thinking"], text["text"]) == ("w0 w1 w2", "Done")


def test_thinking_asked_of_a_model_that_cannot_is_let_be(make_site: MakeSite) -> None:
    wishes = [{"type": "enabled", "budget_tokens": 2000}, {"type": "adaptive"}]
    responses = post(make_site(), MESSAGES, *(body_of("a", thinking=wish) for wish in wishes))
    assert [r.json()["content"][0]["text"] for r in responses] == ["Hello world"] * 2
    listed = [response.headers.get("x-emberd-ignored") for response in responses]
    assert listed == ["thinking.type", None]


TOOL = {"name": "w", "input_schema": {"type": "object"}}
CALLS = [
    *("Sure.", "<tool", "_call>", '{"name": "w", "argu', 'ments": {"p"', ': "a"}}', "</tool_call>"),
    *("<tool_call>", '{"name": "w", "arguments": {"p', '": "b"}}', "</tool_call>\n"),
]


def test_calls_stream_block_by_block_as_they_are_made_k06_k07_an21(tmp_path: Path) -> None:
    site = thinking_site(tmp_path / "a", {"1": CALLS}, delay=0.005)
    streamed = events(stream(site, body_of("1", tools=[TOOL])).text)
    starts = [e["content_block"] for e in streamed if e["type"] == "content_block_start"]
    ids = [start.pop("id") for start in starts[1:]]
    assert all(re.fullmatch(r"toolu_\w{24}", id) for id in ids) and len(set(ids)) == 2
    empty = {"type": "tool_use", "name": "w", "input": {}}
    assert starts == [{"type": "text", "text": ""}, empty, empty]
    pieces: dict[int, list[str]] = {0: [], 1: [], 2: []}
    for event in streamed:
        if event["type"] == "content_block_delta":
            delta = event["delta"]
            pieces[event["index"]].append(delta.get("text", delta.get("partial_json")))
    assert "".join(pieces[0]) == "Sure."
    assert len(pieces[1]) > 1
    assert [json.loads("".join(pieces[i])) for i in (1, 2)] == [{"p": "a"}, {"p": "b"}]
    assert streamed[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    whole = post(thinking_site(tmp_path / "b", {"1": CALLS}), MESSAGES, body_of("1", tools=[TOOL]))[
        0
    ].json()
    assert [block.get("input", block.get("text")) for block in whole["content"]] == [
        "Sure.",
        {"p": "a"},
        {"p": "b"},
    ]
    assert whole["stop_reason"] == "tool_use"


def test_a_call_that_the_token_limit_cuts_ends_by_max_tokens_an08(tmp_path: Path) -> None:
    body = body_of("1", tools=[TOOL], max_tokens=5)
    answer = post(thinking_site(tmp_path, {"1": CALLS}), MESSAGES, body)[0].json()
    assert answer["stop_reason"] == "max_tokens"
    assert [block["type"] for block in answer["content"]] == ["text", "tool_use"]
    assert answer["content"][1]["input"] == {}


def test_a_call_counts_for_more_than_a_stop_sequence_behind_it(tmp_path: Path) -> None:
    calls = [*CALLS[:7], " Stop here."]
    body = body_of("1", tools=[TOOL], stop_sequences=["Stop"])
    answer = post(thinking_site(tmp_path, {"1": calls}), MESSAGES, body)[0].json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("tool_use", None)


def test_no_call_where_tool_choice_is_none(tmp_path: Path) -> None:
    body = body_of("1", tools=[TOOL], tool_choice={"type": "none"})
    answer = post(thinking_site(tmp_path, {"1": CALLS}), MESSAGES, body)[0].json()
    assert [block["type"] for block in answer["content"]] == ["text"]
    assert answer["stop_reason"] == "end_turn"


def test_a_last_message_of_the_assistant_is_gone_on_from(make_site: MakeSite) -> None:
    site = make_site()
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "<|eot|> a"}]
    (response,) = post(site, MESSAGES, {"model": "tiny", "messages": messages})
    assert response.json()["content"] == [{"type": "text", "text": "Hello world"}]
    assert bytes(site.workers[0].requests[0].token_ids) == b"x<|eot|> a"  # K20: no control token


def test_the_billing_header_does_not_change_the_prompt_an05(make_site: MakeSite) -> None:
    site = make_site()
    systems = [
        [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={mark};"},
            {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}},
        ]
        for mark in ("00000", "fffff")
    ]
    post(site, MESSAGES, *(body_of("a", system=system) for system in systems))
    first, second = (request.token_ids for request in site.workers[0].requests)
    assert first == second == tuple(b"be briefa")


def test_headers_and_queries_of_clients_are_taken_an01_ht07(make_site: MakeSite) -> None:
    headers = {
        "x-api-key": "none",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "a-2025,b-2026",
    }
    (response,) = post(make_site(), f"{MESSAGES}?beta=true", body_of("a"), **headers)
    assert response.status_code == 200
    assert response.headers["request-id"] == response.headers["x-request-id"]


def test_fields_that_do_nothing_are_listed_an02_an06(make_site: MakeSite) -> None:
    body = body_of(
        "a",
        metadata={"user_id": "u"},
        service_tier="auto",
        context_management={"edits": []},
        cache_control={"type": "ephemeral"},
        tools=[{"type": "web_search_20250305", "name": "web_search"}],
    )
    (response,) = post(make_site(), MESSAGES, body)
    assert response.status_code == 200
    ignored = response.headers["x-emberd-ignored"].split(", ")
    assert ignored == [
        "metadata",
        "service_tier",
        "context_management",
        "cache_control",
        "tools.web_search_20250305",
    ]


def test_sampling_reaches_the_worker_with_anthropics_defaults(make_site: MakeSite) -> None:
    site = make_site()
    post(site, MESSAGES, body_of("a"), body_of("a", temperature=0.5, top_k=3, top_p=0.25))
    plain, chosen = (request.params for request in site.workers[0].requests)
    assert (plain.temperature, plain.top_p, plain.top_k, plain.max_tokens) == (1.0, 1.0, 0, 100)
    assert (chosen.temperature, chosen.top_p, chosen.top_k) == (0.5, 0.25, 3)


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
        async with site.listening() as (url, _), httpx.AsyncClient(base_url=url) as client:
            body = body_of("e", stream=True, max_tokens=250)
            reply = asyncio.ensure_future(client.post(MESSAGES, json=body))
            await site.until(lambda: site.service.num_sequences == 1)
            await asyncio.sleep(0.05)
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
        async with site.listening() as (url, _), httpx.AsyncClient(base_url=url) as client:
            body = body_of("a", stream=True)
            reply = asyncio.ensure_future(client.post(MESSAGES, json=body))
            await site.until(lambda: site.service.num_sequences == 1)
            await asyncio.sleep(0.2)
            site.workers[0].prefilled.set()
            first, *rest = events((await reply).text)
            assert first["type"] == "message_start"
            assert first["message"]["usage"]["input_tokens"] == 1
            ping = {"type": "ping"}
            assert rest.count(ping) >= 2
            told = [
                event for event in rest if event != ping
            ]  # one may come while the stream is closed
            assert told[-1] == {"type": "message_stop"}

    run(work())


@pytest.mark.parametrize("streamed", [True, False])
def test_a_hang_up_cancels_c8(make_site: MakeSite, streamed: bool) -> None:
    site = make_site({"prefill": False})

    async def work() -> None:
        async with site.listening() as (url, _), httpx.AsyncClient(base_url=url) as client:
            body = body_of("e", stream=streamed)
            waiting = asyncio.ensure_future(client.post(MESSAGES, json=body))
            await site.until(lambda: site.service.num_sequences == 1)
            waiting.cancel()
            await site.until(lambda: site.workers[0].cancelled)
            await site.until(lambda: site.service.num_sequences == 0)

    run(work())


def test_tokens_are_counted_without_loading_and_exactly_an23(tmp_path: Path) -> None:
    site = thinking_site(tmp_path, {"a": ["Yes"]})
    body = {
        "model": "tiny",
        "system": [{"type": "text", "text": "be brief"}],
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "y"},
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
        ],
        "tools": [{"name": "w", "input_schema": {"type": "object"}}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }

    async def work() -> None:
        async with site.client() as client:
            counted = await client.post(COUNT, json=body)
            assert counted.status_code == 200
            assert set(counted.json()) == {"input_tokens"}
            assert not site.workers
            usage = (await client.post(MESSAGES, json=body)).json()["usage"]
            total = usage["input_tokens"] + usage["cache_read_input_tokens"]
            assert counted.json()["input_tokens"] == total == len("wbe briefxya")
            assert (await client.post(COUNT, json=body)).json() == counted.json()
            too_long = {**body, "messages": [{"role": "user", "content": "x" * 300}]}
            assert (await client.post(COUNT, json=too_long)).json()["input_tokens"] > 300
            lost = await client.post(COUNT, json={**body, "model": "nothing"})
            assert (lost.status_code, lost.json()["error"]["type"]) == (404, "not_found_error")

    run(work())


def test_tokens_of_what_is_far_too_long_are_not_all_counted_an23(make_site: MakeSite) -> None:
    near, far = post(make_site(), COUNT, body_of("x" * 300), body_of("x" * 1_000_000))
    assert near.json() == {"input_tokens": 300}
    assert far.status_code == 400
    message = far.json()["error"]["message"]
    assert re.match(rf"prompt is too long: \d+ tokens > {CONTEXT} maximum", message)


def test_tokens_are_counted_while_the_model_loads_an23(make_site: MakeSite) -> None:
    async def work() -> None:
        site = make_site({"load_gate": asyncio.Event()})
        async with site.client() as client:
            waiting = asyncio.ensure_future(client.post(MESSAGES, json=body_of("a")))
            await site.until(lambda: site.manager._loading)
            counted = await asyncio.wait_for(client.post(COUNT, json=body_of("a")), 5)
            assert counted.json() == {"input_tokens": 1}
            assert site.load_gate is not None
            site.load_gate.set()
            assert (await waiting).status_code == 200

    run(work())


def test_models_have_anthropics_shape_where_its_clients_ask_an26_om02(
    make_site: MakeSite,
) -> None:
    async def work() -> None:
        async with make_site().client(**{"anthropic-version": "2023-06-01"}) as client:
            listed = (await client.get("/v1/models")).json()
            (model,) = listed["data"]
            assert listed == {
                "data": [model],
                "has_more": False,
                "first_id": "tiny",
                "last_id": "tiny",
            }
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", model.pop("created_at"))
            assert model == {
                "type": "model",
                "id": "tiny",
                "display_name": "tiny",
                "lifecycle": "active",
                "max_input_tokens": CONTEXT,
                "max_tokens": CONTEXT,
            }
            shown = (await client.get("/v1/models/claude-opus-9")).json()
            assert (shown["id"], shown["display_name"]) == ("claude-opus-9", "tiny")
            missing = await client.get("/v1/models/nothing")
            assert missing.status_code == 404
            assert missing.json()["error"]["type"] == "not_found_error"

    run(work())


def test_pages_of_models_an26() -> None:
    items = [{"id": name} for name in "abcde"]
    for query, ids, more in (
        ({}, "abcde", False),
        ({"limit": "2"}, "ab", True),
        ({"limit": "2", "after_id": "b"}, "cd", True),
        ({"limit": "2", "after_id": "c"}, "de", False),
        ({"limit": "2", "before_id": "d"}, "bc", True),
        ({"before_id": "c"}, "ab", False),
        ({"before_id": "a"}, "", False),
    ):
        page = listing(items, query)
        assert "".join(item["id"] for item in page["data"]) == ids and page["has_more"] is more
        assert page["first_id"] == (ids[0] if ids else None)
        assert page["last_id"] == (ids[-1] if ids else None)


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=x", "limit=1001", "after_id=b", "after_id=tiny&before_id=tiny"]
)
def test_a_page_of_models_that_is_none_is_refused_an26(make_site: MakeSite, query: str) -> None:
    async def work() -> None:
        async with make_site().client(**{"anthropic-version": "2023-06-01"}) as client:
            response = await client.get(f"/v1/models?{query}")
            assert response.status_code == 400
            assert response.json()["error"]["type"] == "invalid_request_error"
            assert (await client.get("/v1/models?limit=1")).json()["last_id"] == "tiny"

    run(work())


def test_an_empty_store_lists_no_models_an26(make_site: MakeSite, tmp_path: Path) -> None:
    async def work() -> None:
        site = make_site(models_dir=tmp_path / "none")
        async with site.client(**{"anthropic-version": "2023-06-01"}) as client:
            listed = (await client.get("/v1/models")).json()
            assert listed == {"data": [], "has_more": False, "first_id": None, "last_id": None}

    run(work())


def test_claude_names_are_served_and_given_back_as_asked_an03(
    make_site: MakeSite, models_dir: Path
) -> None:
    write_model(models_dir / "other.gguf")
    site = make_site(
        models_dir=models_dir, aliases=(("claude-haiku-*", "other"), ("claude-*", "tiny"))
    )
    names = ("claude-opus-4-5", "claude-haiku-4-5-20251001")
    responses = post(site, MESSAGES, *(body_of("a", model=name) for name in names))
    assert [response.json()["model"] for response in responses] == list(names)
    loaded = [Path(worker.options.model_path).stem for worker in site.workers]
    assert loaded == ["tiny", "other"]
