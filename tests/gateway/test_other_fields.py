"""Fields of other servers on the OpenAI routes: used, or listed as ignored, or refused (OC-08)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from emberd.protocol import GenerateRequest
from site_fakes import CONTEXT, Site, run

MakeSite = Callable[..., Site]
Json = dict[str, Any]
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


def ask(site: Site, path: str, **fields: Any) -> tuple[Any, list[GenerateRequest]]:
    body: Json = {"model": "tiny", "max_tokens": 2, **fields}
    body |= (
        {"prompt": "e"} if path == COMPLETION else {"messages": [{"role": "user", "content": "e"}]}
    )

    async def work() -> Any:
        async with site.client() as client:
            return await client.post(path, json=body)

    response = run(work())
    return response, [request for worker in site.workers for request in worker.requests]


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize(
    ("fields", "sampled"),
    [
        ({"top_k": 3}, {"top_k": 3}),
        ({"min_p": 0.1}, {"min_p": 0.1}),
        ({"repeat_penalty": 1.3}, {"repetition_penalty": 1.3}),
        ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
        ({"repeat_last_n": 9}, {"penalty_window": 9}),
        ({"options": {"top_k": 3, "seed": 8, "temperature": 0.2}}, {"top_k": 3, "seed": 8, "temperature": 0.2}),
        *(({name: value}, None) for name, value in (
            ("typical_p", 0.9), ("dry_multiplier", 0.8), ("xtc_probability", 0.5),
            ("id_slot", 0),
        )),
        ({"options": {"mirostat": 2}}, None),
    ],
    ids=str,
)  # fmt: skip
def test_fields_of_other_servers_are_used_listed_or_refused_oc08(
    make_site: MakeSite, path: str, fields: Json, sampled: Json | None
) -> None:
    response, (request,) = ask(make_site(), path, **fields)
    assert response.status_code == 200
    listed = response.headers.get("x-emberd-ignored")
    if sampled is None:
        (name,) = fields
        assert listed == (name if name != "options" else "options.mirostat")
    else:
        assert listed is None
        assert {name: getattr(request.params, name) for name in sampled} == sampled


@pytest.mark.parametrize(
    ("fields", "salt"),
    [
        ({}, ""),
        ({"cache_prompt": True}, ""),
        ({"cache_prompt": False}, None),
        ({"cache_salt": "mine"}, "mine"),
        ({"cache_prompt": False, "cache_salt": "mine"}, None),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_what_is_said_of_the_prefix_cache_reaches_the_worker_oc08(
    make_site: MakeSite, path: str, fields: Json, salt: str | None
) -> None:
    response, (request,) = ask(make_site(), path, **fields)
    assert (response.status_code, request.cache_salt) == (200, salt)
    assert "x-emberd-ignored" not in response.headers


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"speculative.n_max": 3}),
        (COMPLETION, {"speculative.n_max": 3, "options": {"draft_num_predict": 7}}),
        (CHAT, {"options": {"draft_num_predict": 3}}),
    ],
)
def test_how_much_may_be_guessed_reaches_the_worker_oc08(
    make_site: MakeSite, path: str, fields: Json
) -> None:
    response, (request,) = ask(make_site(), path, **fields)
    assert (response.status_code, request.params.max_drafted) == (200, 3)
    assert "x-emberd-ignored" not in response.headers


def test_a_prediction_reaches_the_worker_as_tokens(make_site: MakeSite) -> None:
    parts = [{"type": "text", "text": "He"}, {"type": "text", "text": "llo"}]
    found = []
    for content in ("Hello", parts):
        prediction = {"type": "content", "content": content}
        response, (request,) = ask(make_site(), CHAT, prediction=prediction)
        assert response.status_code == 200 and "x-emberd-ignored" not in response.headers
        found.append(request.params.expected)
    assert found[0] == found[1] and len(found[0]) > 0
    response, _ = ask(make_site(), CHAT, prediction={"type": "content", "content": 5})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prediction.content")


def test_options_stand_behind_fields_beside_them_oc08(make_site: MakeSite) -> None:
    options = {"top_k": 3, "num_predict": 9, "stop": " and", "num_ctx": CONTEXT}
    response, (request,) = ask(make_site(), CHAT, top_k=5, options=options)
    assert (request.params.top_k, request.params.max_tokens) == (5, 2)
    assert response.json()["choices"][0]["message"]["content"] == " on"
    response, (request,) = ask(make_site(), COMPLETION, max_tokens=None, options={"num_predict": 3})
    assert request.params.max_tokens == 3
    response, _ = ask(make_site(), CHAT, stop="o", options={"stop": "n"})
    assert response.json()["choices"][0]["message"]["content"] == " "


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"num_ctx": CONTEXT + 1}, "num_ctx"),
        ({"options": {"num_ctx": CONTEXT + 1}}, "options.num_ctx"),
        ({"options": {"top_k": "many"}}, "options.top_k"),
        ({"options": [1]}, "options"),
        ({"options": {"num_predict": 0}}, "options.num_predict"),
        ({"num_ctx": 0}, "num_ctx"),
        ({"cache_prompt": "no"}, "cache_prompt"),
        ({"cache_salt": ""}, "cache_salt"),
    ],
)
def test_wrong_ones_are_refused_by_name_oc08_k10(
    make_site: MakeSite, fields: Json, param: str
) -> None:
    response, requests = ask(make_site(), CHAT, **fields)
    assert (response.status_code, requests) == (400, [])
    assert response.json()["error"]["param"] == param
