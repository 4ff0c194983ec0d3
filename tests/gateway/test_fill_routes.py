"""Fill in the middle: `suffix` on two APIs, and llama.cpp's /infill (OK-01, OL-20, OL-27, OL-33, OL-34)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from site_fakes import CONTEXT, Site, run
from tiny_gguf import EOS, SURE, chain_model

MakeSite = Callable[..., Site]
Json = dict[str, Any]
NAMES = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"]
PRE, SUF, MID, SEP = range(257, 261)  # behind the one piece
PROMPT = (PRE, ord("a"), SUF, ord("b"), MID)


@pytest.fixture
def site(make_site: MakeSite, models_dir: Path) -> Site:
    """`fills` writes "mid" between two texts; `tiny` cannot."""
    transitions = {MID: {256: SURE}, 256: {EOS: SURE}}
    chain_model(
        models_dir / "fills.gguf",
        transitions,
        pieces=["mid"],
        control=NAMES,
        context_length=CONTEXT,
    )
    return make_site(models_dir=models_dir)


def post_all(site: Site, *requests: tuple[str, Json]) -> list[httpx.Response]:
    async def work() -> list[httpx.Response]:
        async with site.client() as client:
            return [await client.post(path, json=body) for path, body in requests]

    return run(work())


def test_openai_fills_by_suffix_ok01(site: Site) -> None:
    body = {"model": "fills", "suffix": "b"}
    text, ids, many, plain = post_all(
        site,
        ("/v1/completions", {**body, "prompt": "a"}),
        ("/v1/completions", {**body, "prompt": [ord("a")]}),
        ("/v1/completions", {**body, "prompt": ["a", "a"], "n": 2}),
        ("/v1/completions", {"model": "fills", "prompt": "a", "suffix": "", "max_tokens": 1}),
    )
    assert [c["text"] for c in text.json()["choices"] + ids.json()["choices"]] == ["mid", "mid"]
    assert [choice["text"] for choice in many.json()["choices"]] == ["mid"] * 4
    assert text.json()["usage"]["prompt_tokens"] == 5
    *filled, unfilled = [request.token_ids for request in site.workers[0].requests]
    assert set(filled) == {PROMPT}
    assert unfilled == (ord("a"),) and plain.status_code == 200


def test_ollama_fills_by_suffix_ol20(site: Site) -> None:
    body = {"model": "fills", "suffix": "b", "stream": False}
    filled, start = post_all(
        site, ("/api/generate", {**body, "prompt": "a"}), ("/api/generate", body)
    )
    assert filled.json()["response"] == start.json()["response"] == "mid"
    assert "context" not in filled.json()
    first, second = (request.token_ids for request in site.workers[0].requests)
    assert (first, second) == (PROMPT, (PRE, SUF, ord("b"), MID))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a", "suffix": "b"}),
        ("/api/generate", {"prompt": "a", "suffix": "b", "stream": False}),
        ("/infill", {"input_prefix": "a", "input_suffix": "b"}),
    ],
)
def test_a_model_that_cannot_fill_says_so_ol27(site: Site, path: str, body: Json) -> None:
    (response,) = post_all(site, (path, {"model": "tiny", **body}))
    assert response.status_code == 400
    error = response.json()["error"]
    assert "does not support insert" in (error if path == "/api/generate" else error["message"])
    assert not site.workers[0].requests


@pytest.mark.parametrize("name", ["system", "template", "context"])
def test_suffix_and_conversation_exclude_each_other_ol20(site: Site, name: str) -> None:
    body = {"model": "fills", "prompt": "a", "suffix": "b", name: [1] if name == "context" else "x"}
    (response,) = post_all(site, ("/api/generate", body))
    assert response.status_code == 400 and "'suffix'" in response.json()["error"]


def test_capabilities_and_template_tell_ol33_ol34(site: Site) -> None:
    fills, tiny = post_all(site, *(("/api/show", {"model": name}) for name in ("fills", "tiny")))
    assert "insert" in fills.json()["capabilities"] and ".Suffix" in fills.json()["template"]
    assert "insert" not in tiny.json()["capabilities"] and ".Suffix" not in tiny.json()["template"]


def test_infill_whole_and_streamed(site: Site) -> None:
    body = {
        "model": "fills",
        "input_prefix": "a",
        "input_suffix": "b",
        "prompt": "p",
        "input_extra": [{"filename": "f", "text": "x"}],
        "cache_prompt": False,
        "id_slot": 0,
    }
    whole, streamed, limited, nothing = post_all(
        site,
        ("/infill", body),
        ("/infill", {**body, "stream": True, "stop": ["d"]}),
        ("/infill", {**body, "n_predict": 1}),
        ("/infill", {**body, "n_predict": 0}),
    )
    answer = whole.json()
    assert (answer["content"], answer["stop"], answer["stop_type"]) == ("mid", True, "eos")
    assert (answer["tokens_predicted"], answer["model"]) == (2, "fills")
    assert whole.headers["x-emberd-ignored"] == "id_slot"
    assert all(request.cache_salt is None for request in site.workers[0].requests)
    assert set(request.token_ids for request in site.workers[0].requests) == {
        (SEP, *b"f\nx", SEP, *b"file\n", PRE, *b"ap", SUF, *b"b", MID)
    }
    assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line]
    first, last = map(json.loads, lines)
    assert (first["content"], first["stop"]) == ("mi", False)
    assert (last["content"], last["stop_type"], last["stopping_word"]) == ("", "word", "d")
    assert limited.json()["stop_type"] == nothing.json()["stop_type"] == "limit"
    assert nothing.json()["content"] == ""  # editors warm a cache so


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_prefix": 5}, "input_prefix"),
        ({"input_extra": [{"filename": "f"}]}, "input_extra[0].text"),
        ({"input_extra": "x"}, "input_extra"),
        ({"n_predict": "all"}, "n_predict"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"keep_alive": "soon"}, "keep_alive"),
    ],
)
def test_wrong_infills_are_refused(site: Site, fields: Json, param: str) -> None:
    body = {"model": "fills", "input_prefix": "a", "input_suffix": "b", **fields}
    (response,) = post_all(site, ("/infill", body))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_too_long_a_text_is_refused_with_both_numbers_k10(site: Site) -> None:
    requests: list[tuple[str, Json]] = [
        ("/infill", {"input_prefix": "a" * 150, "input_suffix": "b" * 150}),
        ("/infill", {"input_prefix": "a", "input_extra": [{"text": "x" * 5000}]}),
        ("/v1/completions", {"prompt": "a", "suffix": "b" * 300}),
    ]
    for response in post_all(site, *((path, {"model": "fills", **b}) for path, b in requests)):
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == "context_length_exceeded" and error["n_ctx"] == CONTEXT
