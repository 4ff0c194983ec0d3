"""Tools and thinking of /v1/responses, with scripted models (OR-02, OR-05, OR-06, K06, K07, OC-12), and bad bodies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from responses_harness import PATCH, RESPONSES, SCRIPTS, W, ask, events, post, write_models
from responses_harness import stream as stream_of

from emberd.gateway.openai.responses.items import reasoning_text
from emberd.gateway.openai.responses.tools import read_tools
from site_fakes import Site, run

MakeSite = Callable[..., Site]
Json = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("responses"))


@pytest.fixture
def site(make_site: MakeSite, folder: Path) -> Site:
    return make_site(models_dir=folder, ctx=4096)


def told_by(site: Site, **fields: Any) -> list[Json]:
    return events(stream_of(site, **fields).text)


def test_calls_of_a_whole_response_or05_k06_k07(site: Site) -> None:
    answer = ask(site, input="c", tools=[W])
    assert answer["status"] == "completed" and answer["tools"] == [W]
    message, *calls = answer["output"]
    assert message["content"][0]["text"] == "Sure."
    assert [one["arguments"] for one in calls] == ['{"p": "a"}', '{"p": "b"}']
    assert all(
        set(one) == {"id", "type", "status", "call_id", "name", "arguments"} for one in calls
    )
    assert len({one["id"] for one in calls} | {one["call_id"] for one in calls}) == 4
    assert all(one["id"][:3] == "fc_" and one["call_id"][:5] == "call_" for one in calls)


def test_calls_of_a_stream_or06_k06_k07(site: Site) -> None:
    told = told_by(site, input="c", tools=[W])
    names = [event["type"].removeprefix("response.") for event in told]
    call_names = ["function_call_arguments.delta", "function_call_arguments.done"]
    item = ["output_item.added", "output_item.done"]
    assert list(dict.fromkeys(names)) == [
        *("created", "in_progress", item[0], "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", item[1], *call_names, "completed"),
    ]
    completed = told[-1]["response"]
    for index, done in enumerate(completed["output"]):
        own = [event for event in told if event.get("output_index") == index]
        assert own[0]["type"].endswith("item.added") and own[-1]["item"] == done
        assert own[0]["item"]["status"] == "in_progress" and own[0]["item"]["id"] == done["id"]
        assert all(event["item_id"] == done["id"] for event in own[1:-1])
        deltas = "".join(event.get("delta", "") for event in own)
        assert deltas == done.get("arguments", "Sure.")
        if done["type"] == "function_call":
            assert (own[-2]["name"], own[-2]["arguments"]) == ("w", done["arguments"])
    assert len(completed["output"]) == 3


def test_text_that_only_begins_like_a_call_is_text_k07(site: Site) -> None:
    with_tools, without, none = (
        {"input": "p", "tools": [W]},
        {"input": "c"},
        {"input": "c", "tools": [W], "tool_choice": "none"},
    )
    answers = [a.json()["output"] for a in post(site, RESPONSES, with_tools, without, none)]
    texts = [one[0]["content"][0]["text"] for one in answers if len(one) == 1]
    assert texts[0] == "A <tool_box> is no <tool_call> at all."
    assert texts[1] == texts[2] == "".join(SCRIPTS["c"])


def test_a_call_that_the_limit_cuts_is_incomplete(site: Site) -> None:
    answer = ask(site, input="c", tools=[W], max_output_tokens=4)
    assert answer["status"] == answer["output"][-1]["status"] == "incomplete"
    assert answer["output"][0]["status"] == "completed"
    assert answer["output"][-1]["type"] == "function_call"


def test_parallel_calls_can_be_turned_off(site: Site) -> None:
    answer = ask(site, input="c", tools=[W], parallel_tool_calls=False)
    assert [item["type"] for item in answer["output"]] == ["message", "function_call"]
    assert answer["parallel_tool_calls"] is False and answer["status"] == "completed"


def test_custom_tools_are_functions_to_the_model_or02(site: Site) -> None:
    told = told_by(site, input="f", tools=[PATCH])
    (item,) = told[-1]["response"]["output"]
    assert item["type"] == "custom_tool_call" and item["id"].startswith("ctc_")
    assert (item["name"], item["input"]) == ("patch", '+ "x"\n')
    names = [event["type"].removeprefix("response.") for event in told[2:-1]]
    inner = ["custom_tool_call_input.delta", "custom_tool_call_input.done"]
    assert names == ["output_item.added", *inner, "output_item.done"]
    assert told[3]["delta"] == told[4]["input"] == item["input"]


def test_namespaces_are_opened_and_told_again_or02(site: Site) -> None:
    inside = {"type": "namespace", "name": "mcp", "description": "d", "tools": [W, PATCH]}
    answer = ask(site, input="c", tools=[inside])
    calls = answer["output"][1:]
    assert [(one["name"], one["namespace"]) for one in calls] == [("w", "mcp")] * 2
    for tools in (read_tools([W, inside], None), read_tools([inside, W], None)):
        assert sorted(tools.known) == ["mcp__w", "patch", "w"]
    assert tools.shown_name("w", "mcp") == "mcp__w" and tools.shown_name("w", None) == "w"
    assert tools.shown_name("gone", "mcp") == "gone"


def test_what_does_nothing_is_listed_or01_or02(make_site: MakeSite, folder: Path) -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}
    fields = {
        "input": [{"type": "web_search_call", "id": "ws_1"}, {"role": "user", "content": "p"}],
        "tools": [W, {"type": "web_search"}, {"type": "local_shell"}, {**PATCH, "format": grammar}],
        "include": ["reasoning.encrypted_content", "web_search_call.results"],
        "reasoning": {"effort": "high", "summary": "auto"},
        "text": {"verbosity": "low"},
        "prompt_cache_key": "k",
        "client_metadata": {},
    }
    listed = [
        *("text.verbosity", "prompt_cache_key", "client_metadata"),
        *("tools.web_search", "tools.local_shell", "tools.custom.format", "input.web_search_call"),
        *("include.web_search_call.results", "reasoning.effort"),
    ]
    site = make_site(models_dir=folder)
    (response,) = post(site, RESPONSES, fields)
    assert response.status_code == 200
    assert sorted(response.headers["x-emberd-ignored"].split(", ")) == sorted(listed)
    assert response.json()["output"][0]["content"][0]["text"] == "".join(SCRIPTS["p"])
    prompt = bytes(site.workers[0].requests[0].token_ids).decode()
    assert prompt == "w,patch,p"
    del fields["prompt_cache_key"], fields["client_metadata"], fields["text"]
    (refused,) = post(make_site(models_dir=folder, strict=True), RESPONSES, fields)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "tools.web_search"


def test_tools_are_given_as_allowed_or02(site: Site) -> None:
    allowed = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "custom", "name": "patch"}],
    }
    bodies = [
        {"input": "p", "tools": [W, PATCH], "tool_choice": c} for c in (allowed, "auto", "none")
    ]
    assert all(answer.status_code == 200 for answer in post(site, RESPONSES, *bodies))
    prompts = [bytes(request.token_ids).decode() for request in site.workers[0].requests]
    assert prompts == ["patch,p", "w,patch,p", "p"]


def test_thinking_is_an_item_of_its_own_or05_or06(site: Site) -> None:
    told = told_by(site, model="thinks", input="t", include=["reasoning.encrypted_content"])
    reasoning, message = told[-1]["response"]["output"]
    assert reasoning["id"].startswith("rs_") and reasoning["type"] == "reasoning"
    assert reasoning["summary"] == [{"type": "summary_text", "text": "Hm, well."}]
    assert message["content"][0]["text"] == "Yes."
    own = [event for event in told if event.get("output_index") == 0]
    names = [event["type"].removeprefix("response.") for event in own]
    part, text = "reasoning_summary_part", "reasoning_summary_text"
    assert list(dict.fromkeys(names)) == [
        *("output_item.added", f"{part}.added", f"{text}.delta"),
        *(f"{text}.done", f"{part}.done", "output_item.done"),
    ]
    assert all(event["summary_index"] == 0 for event in own[1:-1])
    usage = told[-1]["response"]["usage"]
    assert usage["output_tokens_details"]["reasoning_tokens"] > 0
    assert "encrypted_content" not in own[0]["item"]
    sent_back = {"summary": [], "encrypted_content": reasoning["encrypted_content"]}
    assert reasoning_text(sent_back) == "Hm, well."


def test_stored_thinking_reaches_the_next_prompt_or09(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            body: Json = {"model": "thinks", "input": "t"}
            first = (await client.post(RESPONSES, json=body)).json()
            assert "encrypted_content" not in first["output"][0]
            body = {"model": "thinks", "input": "q", "previous_response_id": first["id"]}
            (message,) = (await client.post(RESPONSES, json=body)).json()["output"]
            assert message["content"][0]["text"] == "No."  # blanks alone are no item
            prompt = bytes(site.workers[0].requests[-1].token_ids).decode()
            assert prompt == "tHm, well.Yes.q"

    run(work())


def test_effort_reaches_the_template_and_is_a_budget_oc12(site: Site) -> None:
    off = {"model": "thinks", "input": "t", "reasoning": {"effort": "none"}}
    low = {
        "model": "thinks",
        "input": "e",
        "reasoning": {"effort": "minimal"},
        "max_output_tokens": 600,
    }
    answers = [a.json() for a in post(site, RESPONSES, off, low)]
    assert bytes(site.workers[0].requests[0].token_ids).decode().startswith("-t")
    num_tokens = answers[1]["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert 512 <= num_tokens <= 512 + len("\n</think>\n\n")
    assert answers[1]["reasoning"] == {"effort": "minimal", "summary": None}


HERMES = '<tool_call>\n{"name": "w", "arguments": %s}\n</tool_call>'


def test_arguments_of_history_reach_the_template(site: Site) -> None:
    """A whole turn there and back, by the items that were told."""

    async def work() -> None:
        async with site.client() as client:
            body: Json = {
                "model": "tiny",
                "input": [{"role": "user", "content": "c"}],
                "tools": [W],
            }
            told = (await client.post(RESPONSES, json=body)).json()["output"]
            ids = [one["call_id"] for one in told if one["type"] == "function_call"]
            kind = "function_call_output"
            outputs = [{"type": kind, "call_id": id, "output": "p"} for id in ids]
            body["input"] += [*told, *outputs]
            answer = (await client.post(RESPONSES, json=body)).json()
            assert answer["output"][0]["content"][0]["text"].startswith("A <tool_box>")
            prompt = bytes(site.workers[0].requests[-1].token_ids).decode()
            calls = [HERMES % one["arguments"] for one in told if one["type"] == "function_call"]
            assert (
                prompt == "w,c" + "\n".join(["Sure.", *calls]) + "pp"
            )  # its template has no word for calls
            assert json.loads(told[1]["arguments"]) == {"p": "a"}

    run(work())


def test_log_probabilities_leave_out_thinking_and_calls_k18(site: Site) -> None:
    thought, called = post(
        site,
        RESPONSES,
        {"model": "thinks", "input": "t", "top_logprobs": 1},
        {"input": "c", "tools": [W], "top_logprobs": 1},
    )
    (message,) = [one for one in thought.json()["output"] if one["type"] == "message"]
    tokens = [one["token"] for one in message["content"][0]["logprobs"]]
    assert tokens == ["</think>", "\n\n", "Yes."]  # with those in between that tell nothing
    message, *_ = called.json()["output"]
    tokens = [one["token"] for one in message["content"][0]["logprobs"]]
    assert tokens == ["Sure."]
