"""POST /v1/responses and its relatives, and the bytes of its streams (OR-01 to OR-09, HT-30, HT-33, K05)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from responses_harness import RESPONSES, ask, events, post, stream

from emberd.errors import NotFoundError
from site_fakes import CONTEXT, Site, run

MakeSite = Callable[..., Site]
Json = dict[str, Any]
COUNT = f"{RESPONSES}/input_tokens"
IDS = r"(resp|msg|rs|fc|ctc)_[0-9a-f]{48}"


def test_a_response_has_openais_shape_or04_or05(make_site: MakeSite) -> None:
    given = {"instructions": "x", "metadata": {"k": "v"}, "temperature": 0, "max_output_tokens": 9}
    answer = ask(make_site(), input="b", **given)
    assert re.fullmatch(IDS, answer.pop("id")) and re.fullmatch(IDS, answer["output"][0].pop("id"))
    assert answer.pop("created_at") > 0 and answer.pop("completed_at") > 0
    part = {"type": "output_text", "text": "A B C D E F G", "annotations": [], "logprobs": []}
    message = {"type": "message", "status": "completed", "role": "assistant", "content": [part]}
    assert answer == {
        "object": "response",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "background": False,
        **given,
        "max_tool_calls": None,
        "model": "tiny",
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": True,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "output": [message],
        "usage": {
            "input_tokens": 2,
            "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 7,
        },
    }


def test_the_bytes_of_a_stream_or06_or07(make_site: MakeSite) -> None:
    response = stream(make_site({"delay": 0.005}), input="a")
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    text = re.sub(r"msg_[0-9a-f]{48}", "MSG", response.text)
    assert "[DONE]" not in text
    begin, created, in_progress, middle, completed = re.fullmatch(  # type: ignore[union-attr]
        r'(event: response\.created\ndata: \{"type":"response\.created","sequence_number":0,"response":)'
        r"(\{[^\n]+\})\}\n\nevent: response\.in_progress\n"
        r'data: \{"type":"response\.in_progress","sequence_number":1,"response":(\{[^\n]+\})\}\n\n'
        r"(event: response\.output_item\.added\n.+\n\n)"
        r"event: response\.completed\n"
        r'data: \{"type":"response\.completed","sequence_number":9,"response":(\{[^\n]+\})\}\n\n',
        text,
        re.DOTALL,
    ).groups()
    place = '"item_id":"MSG","output_index":0,"content_index":0'
    assert begin and middle == (
        'event: response.output_item.added\ndata: {"type":"response.output_item.added","sequence_number":2,'
        '"output_index":0,"item":{"id":"MSG","type":"message","status":"in_progress","role":"assistant",'
        '"content":[]}}\n\n'
        'event: response.content_part.added\ndata: {"type":"response.content_part.added",'
        f'"sequence_number":3,{place},'
        '"part":{"type":"output_text","text":"","annotations":[],"logprobs":[]}}\n\n'
        'event: response.output_text.delta\ndata: {"type":"response.output_text.delta",'
        f'"sequence_number":4,{place},"delta":"Hello","logprobs":[]}}\n\n'
        'event: response.output_text.delta\ndata: {"type":"response.output_text.delta",'
        f'"sequence_number":5,{place},"delta":" world","logprobs":[]}}\n\n'
        'event: response.output_text.done\ndata: {"type":"response.output_text.done",'
        f'"sequence_number":6,{place},"text":"Hello world","logprobs":[]}}\n\n'
        'event: response.content_part.done\ndata: {"type":"response.content_part.done",'
        f'"sequence_number":7,{place},'
        '"part":{"type":"output_text","text":"Hello world","annotations":[],"logprobs":[]}}\n\n'
        'event: response.output_item.done\ndata: {"type":"response.output_item.done","sequence_number":8,'
        '"output_index":0,"item":{"id":"MSG","type":"message","status":"completed","role":"assistant",'
        '"content":[{"type":"output_text","text":"Hello world","annotations":[],"logprobs":[]}]}}\n\n'
    )
    assert created == in_progress
    before, after = json.loads(created), json.loads(completed)
    assert (before["status"], before["output"], before["usage"]) == ("in_progress", [], None)
    changed = {key for key in after if after[key] != before[key]}
    assert changed == {"status", "completed_at", "output", "usage"}


@pytest.mark.parametrize("streamed", [False, True])
def test_a_response_that_the_limit_cuts_is_incomplete_or04_k05(
    make_site: MakeSite, streamed: bool
) -> None:
    """HT-33 too: a limit beyond the context is cut to what is left."""
    for limit, count in ((5, 5), (100_000, CONTEXT - 1)):
        site, fields = make_site(), {"input": "e", "max_output_tokens": limit}
        if streamed:
            *_, last = events(stream(site, **fields).text)
            assert last["type"] == "response.incomplete"
            answer = last["response"]
        else:
            answer = ask(site, **fields)
        assert answer["status"] == answer["output"][0]["status"] == "incomplete"
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
        assert answer["completed_at"] is None and answer["usage"]["output_tokens"] == count


def test_a_response_goes_on_from_a_stored_one_or09(make_site: MakeSite) -> None:
    """Its items come first, its instructions do not (OR-02); what is stored can be read, listed and deleted."""
    site = make_site()

    async def work() -> None:
        async with site.client() as client:

            async def create(**fields: Any) -> Json:
                response = await client.post(RESPONSES, json={"model": "tiny", **fields})
                assert response.status_code == 200, response.text
                answer: Json = response.json()
                return answer

            first = await create(input="a", instructions="I.")
            path = f"{RESPONSES}/{first['id']}"
            assert (await client.get(path)).json() == first
            second = await create(input="b", previous_response_id=first["id"], instructions="J.")
            assert second["previous_response_id"] == first["id"]
            third = await create(input=[], previous_response_id=second["id"], instructions="b")
            prompts = [bytes(request.token_ids).decode() for request in site.workers[0].requests]
            assert prompts[:2] == ["I.a", "J.aHello worldb"]
            assert prompts[2] == "baHello worldbA B C D E F G"

            deleted = await client.delete(path)
            assert deleted.json() == {"id": first["id"], "object": "response", "deleted": True}
            for gone in (await client.get(path), await client.delete(path)):
                assert gone.status_code == 404 and "not found" in gone.json()["error"]["message"]
            listed = (await client.get(f"{RESPONSES}/{third['id']}/input_items?order=asc")).json()
            texts = [item["content"][0]["text"] for item in listed["data"]]
            assert texts == ["a", "Hello world", "b", "A B C D E F G"]
            assert [item["role"] for item in listed["data"]] == ["user", "assistant"] * 2
            assert listed["data"][1] == first["output"][0] and not listed["has_more"]

    run(work())


def test_input_items_come_in_pages(make_site: MakeSite) -> None:
    site = make_site()

    async def work() -> None:
        async with site.client() as client:
            items = [{"role": "user", "content": letter} for letter in "xyza"]
            body = {"model": "tiny", "input": items}
            path = (
                f"{RESPONSES}/{(await client.post(RESPONSES, json=body)).json()['id']}/input_items"
            )
            page = (await client.get(f"{path}?limit=3")).json()
            assert [item["content"][0]["text"] for item in page["data"]] == ["a", "z", "y"]
            assert page["has_more"] and page["last_id"] == page["data"][-1]["id"]
            rest = (await client.get(f"{path}?after={page['last_id']}")).json()
            assert [item["content"][0]["text"] for item in rest["data"]] == ["x"]
            assert not rest["has_more"] and rest["first_id"] == rest["last_id"]
            for query in ("limit=0", "limit=101", "limit=x", "order=up", "after=nothing"):
                refused = await client.get(f"{path}?{query}")
                assert refused.status_code == 400
                assert refused.json()["error"]["param"] == query.split("=")[0]

    run(work())


def test_nothing_is_kept_of_what_is_not_to_be_stored_or09(make_site: MakeSite) -> None:
    for site, fields in (
        (make_site(), {"store": False}),
        (make_site(response_memory=0), {}),
        (make_site(), {"stream": True, "store": False}),
    ):
        first, second = post(
            site,
            RESPONSES,
            {"input": "a", **fields},
            {"input": "b", "previous_response_id": "resp_1"},
        )
        assert first.status_code == 200 and len(site.app.state.responses) == 0
        assert second.status_code == 404
        error = second.json()["error"]
        assert error["code"] == "previous_response_not_found"
        assert error["param"] == "previous_response_id" and error["type"] == "not_found_error"


def test_the_oldest_responses_make_room(make_site: MakeSite) -> None:
    site = make_site(response_memory=8000)
    too_large = {"input": "a", "metadata": {"k": "v" * 9000}}
    *answers, large = post(site, RESPONSES, *[{"input": "a"}] * 12, too_large)
    store, ids = site.app.state.responses, [answer.json()["id"] for answer in answers]
    assert 2 < len(store) < 12
    for id in ids[-len(store) :]:
        assert store.get(id).response["id"] == id
    for id in (ids[-len(store) - 1], large.json()["id"]):
        with pytest.raises(NotFoundError):
            store.get(id)


def test_items_are_referred_to_by_id_or01(make_site: MakeSite) -> None:
    site = make_site()

    async def work() -> None:
        async with site.client() as client:
            body: Json = {"model": "tiny", "input": "a"}
            item = (await client.post(RESPONSES, json=body)).json()["output"][0]["id"]
            for reference in ({"type": "item_reference", "id": item}, {"id": item}):
                body["input"] = [reference, {"role": "user", "content": "b"}]
                assert (await client.post(RESPONSES, json=body)).status_code == 200
                prompt = bytes(site.workers[0].requests[-1].token_ids).decode()
                assert prompt == "Hello worldb"
            body["input"] = [{"type": "item_reference", "id": "msg_1"}]
            refused = await client.post(RESPONSES, json=body)
            assert refused.status_code == 404
            assert refused.json()["error"]["param"] == "input[0].id"

    run(work())


@pytest.mark.parametrize("streamed", [False, True])
def test_a_prompt_that_does_not_fit_is_refused_ht30_k10(
    make_site: MakeSite, streamed: bool
) -> None:
    for length in (300, 100_000):
        fields = {"input": "x" * length, "stream": streamed, "instructions": "s"}
        site = make_site()
        (response,) = post(site, RESPONSES, fields)
        assert response.status_code == 400 and not site.workers[0].requests
        error = response.json()["error"]
        assert error["code"] == "context_length_exceeded" and error["param"] == "input"
        assert error["n_ctx"] == CONTEXT and error["n_prompt_tokens"] > CONTEXT
        assert f"maximum context length is {CONTEXT} tokens" in error["message"]


def test_the_oldest_turns_go_only_where_truncation_is_auto_or02_ht32(make_site: MakeSite) -> None:
    turns = [
        {"role": role, "content": letter * 100}
        for letter, role in zip("uvwx", ("user", "assistant") * 2, strict=True)
    ]
    fields = {"input": [*turns, {"role": "user", "content": "a"}], "instructions": "s"}
    site = make_site()
    refused, cut = post(site, RESPONSES, fields, {**fields, "truncation": "auto"})
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert cut.status_code == 200
    prompt = bytes(site.workers[0].requests[0].token_ids).decode()
    assert prompt == "s" + "w" * 100 + "x" * 100 + "a"
    assert cut.json()["emberd"] == {"truncated_messages": 2, "truncated_tokens": 200}
    assert cut.headers["x-emberd-truncated"] == "200" and cut.json()["truncation"] == "auto"
    (short,) = post(make_site(), RESPONSES, {"input": "a", "truncation": "auto"})
    assert "emberd" not in short.json() and "x-emberd-truncated" not in short.headers


def test_tokens_are_counted_without_loading_and_exactly(make_site: MakeSite) -> None:
    site = make_site()
    bodies: list[Json] = [
        {"input": "abc"},
        {"input": [{"role": "user", "content": "abc"}], "instructions": "defg"},
        {"input": "x" * 300},  # too long to be answered, and counted all the same
    ]
    counts = post(site, COUNT, *bodies)
    assert [count.json() for count in counts] == [
        {"object": "response.input_tokens", "input_tokens": number} for number in (3, 7, 300)
    ]
    assert not site.workers
    (far_too_long,) = post(site, COUNT, {"input": "x" * 100_000})
    assert far_too_long.json()["error"]["code"] == "context_length_exceeded"


def test_a_failed_stream_ends_in_response_failed_or08(make_site: MakeSite) -> None:
    site = make_site({"delay": 0.01})

    async def work() -> str:
        async with site.http() as client:
            body = {"model": "tiny", "input": "e", "stream": True}
            async with client.stream("POST", RESPONSES, json=body) as response:
                text = ""
                async for piece in response.aiter_text():
                    text += piece
                    if text.count("output_text.delta") > 4:
                        site.workers[0].alive = False
                return text

    *_, last = events(run(work()))
    assert last["type"] == "response.failed"
    failed = last["response"]
    assert failed["status"] == "failed" and failed["error"]["code"] == "server_error"
    assert "worker" in failed["error"]["message"] and failed["usage"]["output_tokens"] > 0
    assert len(site.app.state.responses) == 0


def test_a_silent_stream_begins_at_once_and_is_kept_alive_ht11_ht13(make_site: MakeSite) -> None:
    """HT-14 too: hanging up during the prompt ends the work."""
    site = make_site({"prefill": False}, ping=0.05)

    async def work() -> str:
        async with site.http() as client:
            body = {"model": "tiny", "input": "a", "stream": True}
            text = ""
            async with client.stream("POST", RESPONSES, json=body) as response:
                async for piece in response.aiter_text():
                    text += piece
                    if text.count(": ping\n\n") == 2:
                        break
            await site.until(lambda: site.workers[0].cancelled)
            return text

    text = run(work())
    assert text.startswith("event: response.created\n") and "output_item" not in text
    assert len(site.app.state.responses) == 0


def test_keep_alive_is_honoured_k31(make_site: MakeSite) -> None:
    site = make_site()

    async def work() -> None:
        async with site.client() as client:
            for value, seconds in ((7, 7.0), ("1h30m", 5400.0), (-1, math.inf)):
                body = {"model": "tiny", "input": "a", "keep_alive": value}
                assert (await client.post(RESPONSES, json=body)).status_code == 200
                (loaded,) = site.manager.loaded()
                assert loaded.keep_alive == seconds and loaded.active == 0
            body["keep_alive"] = "abc"
            refused = await client.post(RESPONSES, json=body)
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "keep_alive"

    run(work())


def test_log_probabilities_are_of_the_text_oc26_k18(make_site: MakeSite) -> None:
    plain, asked, listed = post(
        make_site(),
        RESPONSES,
        {"input": "b"},
        {"input": "b", "top_logprobs": 2},
        {"input": "b", "include": ["message.output_text.logprobs"]},
    )
    assert plain.json()["output"][0]["content"][0]["logprobs"] == []
    part = asked.json()["output"][0]["content"][0]
    assert [one["token"] for one in part["logprobs"]] == ["A B", " C D", " E F", " G"]
    assert all(bytes(one["bytes"]).decode() == one["token"] for one in part["logprobs"])
    assert all(len(one["top_logprobs"]) == 2 for one in part["logprobs"])
    assert asked.json()["top_logprobs"] == 2
    part = listed.json()["output"][0]["content"][0]
    assert [one["top_logprobs"] for one in part["logprobs"]] == [[]] * 4
    assert "x-emberd-ignored" not in listed.headers
    told = events(stream(make_site({"delay": 0.005}), input="b", top_logprobs=2).text)
    deltas = [event for event in told if event["type"] == "response.output_text.delta"]
    for delta in deltas:
        assert "".join(one["token"] for one in delta["logprobs"]) == delta["delta"]
    joined = [one for delta in deltas for one in delta["logprobs"]]
    done = next(event for event in told if event["type"] == "response.output_text.done")
    assert joined == done["logprobs"] == told[-1]["response"]["output"][0]["content"][0]["logprobs"]
    assert joined == asked.json()["output"][0]["content"][0]["logprobs"]


def test_logit_bias_is_taken_k17(make_site: MakeSite) -> None:
    site = make_site()
    taken, unknown = post(
        site,
        RESPONSES,
        {"input": "b", "logit_bias": {"97": -100}},
        {"input": "b", "logit_bias": {"999999": 1}},
    )
    assert taken.status_code == 200 and site.workers[0].requests[0].params.logit_bias == (
        (97, -100.0),
    )
    assert unknown.status_code == 400 and unknown.json()["error"]["param"] == "logit_bias"
