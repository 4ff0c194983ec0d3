"""POST /v1/messages without sockets, and the bytes of its streams (AN-01 to AN-21, HT-33)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from anthropic_harness import (
    MESSAGES,
    Json,
    MakeSite,
    ask,
    body_of,
    events,
    post,
    stream,
    thinking_site,
)

from site_fakes import CONTEXT


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
