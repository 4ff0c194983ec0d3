"""Chat completions and models of the OpenAI routes, whole answers and refusals (OC-, OM-, K03-K05, K10-K23, K36)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from openai_harness import Json, MakeSite, chat, chat_body, post, post_all

from site_fakes import CONTEXT, refused, run


def test_a_whole_chat_answer_has_the_shape_of_oc20_and_oc25(make_site: MakeSite) -> None:
    status, answer, headers = chat(make_site(), "a", model="TINY:latest")
    assert status == 200
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"] == headers["request-id"]
    assert answer["id"].startswith("chatcmpl-")
    assert isinstance(answer["created"], int)
    timings = answer.pop("timings")
    assert timings["prompt_n"] == 0
    assert timings["cache_n"] == 1
    assert timings["predicted_n"] == 3
    assert timings["predicted_per_second"] > 0
    del answer["id"], answer["created"], answer["system_fingerprint"]
    assert answer == {
        "object": "chat.completion",
        "model": "TINY:latest",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello world", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 1,
            "completion_tokens": 3,
            "total_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 1},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        },
    }


def test_characters_made_of_several_tokens_k03(make_site: MakeSite) -> None:
    assert chat(make_site(), "c")[1]["choices"][0]["message"]["content"] == "🙂!"


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (["D E"], "A B C "),
        ("D E", "A B C "),
        (["D Z"], "A B C D E F G"),
        (["A B"], ""),
        (["", "F"], "A B C D E "),
        ([], "A B C D E F G"),
        (None, "A B C D E F G"),
    ],
)
def test_stop_strings_k04(make_site: MakeSite, stop: Any, text: str) -> None:
    status, answer, _ = chat(make_site(), "b", stop=stop)
    assert status == 200
    assert answer["choices"][0]["message"]["content"] == text
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_stop_string_ends_generation_within_one_token_k04(make_site: MakeSite) -> None:
    site = make_site()
    answer = chat(site, "e", stop=" and")[1]
    assert answer["choices"][0]["message"]["content"] == " on"
    assert answer["usage"]["completion_tokens"] <= 3
    assert len(site.workers[0].cancelled) == 1


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_limits_are_exact_and_said_k05(make_site: MakeSite, name: str) -> None:
    answer = chat(make_site(), "e", **{name: 5})[1]
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["choices"][0]["finish_reason"] == "length"


def test_max_completion_tokens_wins_oc06(make_site: MakeSite) -> None:
    answer = chat(make_site(), "e", max_tokens=9, max_completion_tokens=2)[1]
    assert answer["usage"]["completion_tokens"] == 2


def test_a_limit_beyond_the_context_is_cut_to_what_is_left_ht33(make_site: MakeSite) -> None:
    answer = chat(make_site(), "e", max_tokens=32000)[1]
    assert answer["usage"]["total_tokens"] == CONTEXT
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "ten"}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"seed": 1 << 70}, "seed"),
        ({"stop": [1]}, "stop[0]"),
        ({"stream": "yes"}, "stream"),
        ({"n": 9}, "n"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user"}, {"role": "wizard", "content": "a"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [7]}, "messages[0]"),
        ({"keep_alive": "abc"}, "keep_alive"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"model": 5}, "model"),
    ],
)
def test_wrong_values_are_refused_by_name_k36(
    make_site: MakeSite, fields: Json, param: str
) -> None:
    status, answer, _ = chat(make_site(), "a", **fields)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["param"] == param
    assert param in answer["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"functions": [{"name": "x"}]}, "functions"),
    ],
)
def test_what_would_change_the_answer_is_refused_rather_than_ignored(
    make_site: MakeSite, fields: Json, param: str
) -> None:
    status, answer, _ = chat(make_site(), "a", **fields)
    assert status == 400
    assert answer["error"]["type"] == "not_supported_error"
    assert answer["error"]["param"] == param


def test_what_changes_nothing_is_accepted_and_listed_oc14(make_site: MakeSite) -> None:
    ignored = {"user": "me", "store": True, "metadata": {}, "prompt_cache_key": "k"}
    accepted = {
        "response_format": {"type": "text"},
        "logprobs": False,
        "logit_bias": {},
        "tools": [],
        "tool_choice": "none",
        "stop": None,
        "modalities": ["text"],
        "n": 1,
        "seed": -5,
        "top_k": 40.0,
    }
    status, _, headers = chat(make_site(), "a", **ignored, **accepted)
    assert status == 200
    assert headers["x-emberd-ignored"] == "user, store, metadata, prompt_cache_key"


def test_several_choices_come_from_one_prompt_oc13(make_site: MakeSite) -> None:
    site = make_site()
    answer = chat(site, "a", n=3, seed=7)[1]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in answer["choices"]} == {"Hello world"}
    assert answer["usage"]["prompt_tokens"] == 1
    assert answer["usage"]["completion_tokens"] == 9
    assert [request.params.seed for request in site.workers[0].requests] == [7, 8, 9]


@pytest.mark.parametrize("role", ["user", "system", "developer", "assistant"])
def test_content_as_parts_is_joined_by_one_rule_k23(make_site: MakeSite, role: str) -> None:
    site = make_site()
    parts = [{"type": "text", "text": "x"}, {"type": "text", "text": "a"}]
    bodies = [
        {"model": "tiny", "messages": [{"role": role, "content": content}]}
        for content in (parts, "x\na")
    ]
    answers = post_all(site, *(("/v1/chat/completions", body) for body in bodies))
    assert [status for status, _, _ in answers] == [200, 200]
    first, second = (request.token_ids for request in site.workers[0].requests)
    assert first == second


def test_a_part_that_cannot_be_served_is_named_k23(make_site: MakeSite) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:x"}}]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": parts}]
    status, answer, _ = chat(make_site(), "", messages=messages)
    assert status == 400
    assert "messages[1].content[1]" in answer["error"]["message"]


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers_k10(make_site: MakeSite) -> None:
    site = make_site()
    long = [{"role": "system", "content": "s"}, {"role": "user", "content": "x" * 299}]
    for status, answer, headers in post_all(
        site,
        ("/v1/chat/completions", {"model": "tiny", "messages": long}),
        ("/v1/chat/completions", {"model": "tiny", "messages": long, "stream": True}),
        ("/v1/completions", {"model": "tiny", "prompt": "x" * 300}),
    ):
        assert status == 400
        assert headers["content-type"] == "application/json"
        error = answer["error"]
        assert error["code"] == "context_length_exceeded"
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (300, CONTEXT)
        assert f"maximum context length is {CONTEXT} tokens" in error["message"]
        assert "request (300 tokens) exceeds the available context size" in error["message"]
    assert all(not worker.requests for worker in site.workers)


def test_what_no_pool_can_hold_is_refused_k14(make_site: MakeSite) -> None:
    status, answer, _ = post(
        make_site(ctx=64), "/v1/completions", {"model": "tiny", "prompt": "x" * 100}
    )
    assert status == 400
    assert answer["error"]["n_ctx"] == 64


def test_unknown_model_is_404_in_the_dialect(make_site: MakeSite) -> None:
    status, answer, _ = chat(make_site(), "a", model="nothing")
    assert status == 404
    assert answer["error"]["code"] == "model_not_found"
    assert "'nothing' not found" in answer["error"]["message"]


def test_a_failed_load_is_500_and_not_worth_repeating_ht15(make_site: MakeSite) -> None:
    status, answer, headers = chat(make_site({"load_error": refused()}), "a")
    assert status == 500
    assert answer["error"]["type"] == "api_error"
    assert "not enough memory" in answer["error"]["message"]
    assert headers["x-should-retry"] == "false"


def test_a_full_queue_says_come_back_ht15(make_site: MakeSite) -> None:
    site = make_site(queue_limit=2)

    async def work() -> None:
        async with site.client() as client:
            request = {"url": "/v1/chat/completions", "json": chat_body("a", n=2)}
            site.prefill = False
            first = asyncio.ensure_future(client.post(**request))
            await site.until(lambda: site.service.num_sequences == 2)
            second = await client.post(**request)
            assert second.status_code == 429
            assert second.headers["retry-after"] == "1"
            assert second.json()["error"]["type"] == "rate_limit_error"
            site.workers[0].prefilled.set()
            assert (await first).status_code == 200

    run(work())


@pytest.mark.parametrize(
    "name", ["self", "tokenizer", "template", "context", "environment", "", "a b", "extra", "vars"]
)
def test_template_variables_may_have_any_name_oc08(make_site: MakeSite, name: str) -> None:
    status, answer, _ = chat(make_site(), "a", chat_template_kwargs={name: 1})
    assert status == (400 if name == "template" else 200)
    if status == 400:
        assert answer["error"]["param"] == f"chat_template_kwargs.{name}"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/completions", {"prompt": ["a"] * 5}, "prompt"),
        ("/v1/completions", {"prompt": ["a"] * 2, "n": 3}, "n"),
        ("/v1/chat/completions", {"messages": chat_body("a")["messages"], "n": 5}, "n"),
    ],
)
def test_more_sequences_than_may_ever_wait_are_a_fault_of_the_caller_k14_ht15(
    make_site: MakeSite, path: str, fields: Json, param: str
) -> None:
    site = make_site(queue_limit=4)
    status, answer, headers = post(site, path, {"model": "tiny", **fields})
    assert (status, answer["error"]["param"]) == (400, param)
    assert "4 (EMBERD_QUEUE_LIMIT)" in answer["error"]["message"]
    assert "retry-after" not in headers


def test_the_reason_of_a_fault_in_a_union_is_told(make_site: MakeSite) -> None:
    answer = chat(make_site(), "a", stop=["x"] * 65)[1]
    assert "at most 64 items" in answer["error"]["message"]
    answer = chat(make_site(), "a", keep_alive="x" * 5000)[1]
    assert "not a duration" in answer["error"]["message"]
    assert len(answer["error"]["message"]) < 200


def test_sampling_reaches_the_worker_with_openai_defaults(make_site: MakeSite) -> None:
    site = make_site()

    async def work() -> None:
        async with site.client() as client:
            for fields in (
                {},
                {"temperature": 0, "top_k": -1, "seed": 1 << 33, "ignore_eos": True},
            ):
                body = chat_body("a", max_tokens=2, **fields)
                await client.post("/v1/chat/completions", json=body)

    run(work())
    plain, chosen = (request.params for request in site.workers[0].requests)
    assert (plain.temperature, plain.top_p, plain.top_k, plain.max_tokens) == (1.0, 1.0, 0, 2)
    assert 510 in plain.stop_token_ids
    assert (chosen.temperature, chosen.top_k, chosen.seed, chosen.ignore_eos) == (0, 0, 2, True)


def test_models_are_listed_with_the_context_under_all_its_names_om01(make_site: MakeSite) -> None:
    async def work() -> None:
        async with make_site().client() as client:
            listed = (await client.get("/v1/models")).json()
            assert listed["object"] == "list"
            (model,) = listed["data"]
            assert model["id"] == "tiny"
            assert model["object"] == "model"
            assert isinstance(model["created"], int)
            assert model["max_model_len"] == model["context_length"] == CONTEXT
            assert model["meta"]["n_ctx_train"] == CONTEXT
            assert model["loaded"] is False
            await client.post("/v1/chat/completions", json=chat_body("a"))
            for name in ("tiny", "Tiny:latest"):
                shown = (await client.get(f"/v1/models/{name}")).json()
                assert shown["id"] == name
                assert shown["loaded"] is True
            missing = await client.get("/v1/models/hf.co/owner/name:q4")
            assert missing.status_code == 404
            assert missing.json()["error"]["code"] == "model_not_found"

    run(work())


def test_an_empty_store_lists_no_models_and_not_null(make_site: MakeSite, tmp_path: Path) -> None:
    site = make_site(models_dir=tmp_path / "none")

    async def work() -> None:
        async with site.client() as client:
            assert (await client.get("/v1/models")).json() == {"object": "list", "data": []}
            assert (await client.get("/api/tags")).json() == {"models": []}

    run(work())
