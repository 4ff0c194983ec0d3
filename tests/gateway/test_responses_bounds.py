"""Bodies of /v1/responses that are refused, and what binds its replies (OR-02, OC-10, OC-11, K08, K36)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from responses_harness import PATCH, RESPONSES, W, post, write_models

from site_fakes import Site

MakeSite = Callable[..., Site]
Json = dict[str, Any]
DEEP = json.loads("[" * 90 + "]" * 90)
NAMED = {"type": "function", "name": "w"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("responses"))


@pytest.fixture
def site(make_site: MakeSite, folder: Path) -> Site:
    return make_site(models_dir=folder, ctx=4096)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"role": "user", "content": "x"}, {"role": "x"}]}, "input[1].role"),
        ({"input": "x", "instructions": 1}, "instructions"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "x", "temperature": 3}, "temperature"),
        ({"input": "x", "n": 2}, "n"),
        ({"input": "x", "metadata": {"k": 1}}, "metadata.k"),
        ({"input": "x", "truncation": "some"}, "truncation"),
        ({"input": "x", "store": "yes"}, "store"),
        ({"input": "x", "include": "all"}, "include"),
        ({"input": "x", "reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"input": "x", "background": True, "stream": True}, "background"),
        ({"input": "x", "background": True, "store": False}, "background"),
        ({"input": "x", "conversation": "conv_1"}, "conversation"),
        ({"input": "x", "prompt": {"id": "p"}}, "prompt"),
        ({"input": "x", "tools": [1]}, "tools[0]"),
        ({"input": "x", "tools": [{"name": "w"}]}, "tools[0].type"),
        ({"input": "x", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": "x", "tools": [{**W, "parameters": []}]}, "tools[0].parameters"),
        ({"input": "x", "tools": [{**W, "description": 5}]}, "tools[0].description"),
        ({"input": "x", "tools": [W, W]}, "tools[1].name"),
        ({"input": "x", "tools": [{"type": "computer_use_preview"}]}, "tools[0].type"),
        ({"input": "x", "tools": [{"type": "namespace", "name": "n"}]}, "tools[0]"),
        ({"input": "x", "tools": [{**W, "name": ["w"]}]}, "tools[0].name"),
        ({"input": "x", "tools": [{"type": "web_search", "x": DEEP}]}, "tools"),
        ({"input": [{"role": "user", "content": "x", "y": DEEP}]}, "input[0]"),
        ({"input": "x", "tool_choice": "maybe"}, "tool_choice"),
        ({"input": "x", "tool_choice": {"type": "mcp", "x": DEEP}}, "tool_choice"),
        ({"input": "x", "tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
        ({"input": "x", "tool_choice": {"name": "w"}}, "tool_choice"),
        ({"input": "x", "tool_choice": "required"}, "tool_choice"),
        ({"input": "x", "tools": [W], "tool_choice": {**W, "name": "v"}}, "tool_choice.name"),
        ({"input": "x", "tool_choice": {"type": "allowed_tools"}}, "tool_choice.tools"),
    ],
    ids=str,
)
def test_bad_bodies_are_refused_by_field_k36(site: Site, fields: Json, param: str) -> None:
    (response,) = post(site, RESPONSES, fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param and param in error["message"]
    assert error["type"] in ("invalid_request_error", "not_supported_error")
    assert not site.workers or not site.workers[0].requests


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("conversation", "conv_1"),
        ("prompt", {"id": "p"}),
    ],
    ids=str,
)
def test_what_is_not_served_is_refused_or02(site: Site, field: str, value: Any) -> None:
    (response,) = post(site, RESPONSES, {"input": "p", "tools": [W], field: value})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["type"]) == (field, "not_supported_error")


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", ["w", "patch"]),
        (NAMED, ["w"]),
        ({"type": "custom", "name": "patch"}, ["patch"]),
        ({"type": "allowed_tools", "mode": "required", "tools": [NAMED]}, ["w"]),
    ],
    ids=str,
)
def test_forced_calls_bind_the_reply_oc11_or02(site: Site, choice: Any, names: list[str]) -> None:
    fields = {"input": "c", "tools": [{"type": "web_search"}, W, PATCH], "tool_choice": choice}
    (response,) = post(site, RESPONSES, fields)
    assert response.status_code == 200 and response.json()["tool_choice"] == choice
    grammar = site.workers[0].requests[0].params.grammar
    assert grammar is not None
    assert [name for name in ("w", "patch") if f' "{name}" ' in grammar] == names


def test_what_cannot_be_enforced_is_refused_by_its_place_k08(site: Site) -> None:
    bad = {"type": "object", "properties": {"n": {"type": "strin"}}}
    strict = {**W, "parameters": bad, "strict": True}
    inside = {"type": "namespace", "name": "n", "tools": [{**strict, "name": "v"}]}
    cases = [
        ({"tools": [{"type": "web_search"}, strict]}, "tools[1].parameters"),
        ({"tools": [{"type": "web_search"}, W, inside]}, "tools[2].tools[0].parameters"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": bad}}},
            "text.format.schema",
        ),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": "json"}}, "text.format"),
    ]
    bodies = [
        {"input": "p", **fields, **({"tool_choice": "required"} if "tools" in fields else {})}
        for fields, _ in cases
    ]
    for response, (_, path) in zip(post(site, RESPONSES, *bodies), cases, strict=True):
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"].startswith(path) and f"'{error['param']}'" in error["message"]
    assert not site.workers or not site.workers[0].requests


def test_a_text_format_binds_the_answer_oc10_or02(site: Site) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    given = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    bodies: list[Json] = [
        {"input": "p", "text": {"format": given}},
        {"input": "p", "text": {"format": {"type": "json_object"}}},
        {"input": "p", "text": {"format": {"type": "text"}}},
    ]
    answers = post(site, RESPONSES, *bodies)
    assert [answer.json()["text"]["format"]["type"] for answer in answers] == [
        *("json_schema", "json_object", "text")
    ]
    assert answers[0].json()["text"]["format"] == given
    grammars = [request.params.grammar for request in site.workers[0].requests]
    assert [grammar is None for grammar in grammars] == [False, False, True]
    assert grammars[0] is not None and '"n"' in grammars[0]
