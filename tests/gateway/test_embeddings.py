"""The three embedding routes: OE-01 to OE-03, K33, OL-41; with a fake worker behind real tokenizers."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from emberd.gateway.embeddings import MAX_INPUTS
from site_fakes import Site, fake_embedding, run
from tiny_encoder import CLS, SEP, TOKENS

MakeSite = Callable[..., Site]
WIDTH = 5  # of the fake worker's vectors
THE = TOKENS.index("\u2581the")
OPENAI, EMBED, EMBEDDINGS = "/v1/embeddings", "/api/embed", "/api/embeddings"


@pytest.fixture
def site(make_site: MakeSite, embedding_models: Path) -> Site:
    return make_site(models_dir=embedding_models, ctx=64)


def posts(site: Site, *requests: tuple[str, dict[str, Any]]) -> list[httpx.Response]:
    async def work() -> list[httpx.Response]:
        async with site.client() as client:
            return [await client.post(path, json=body) for path, body in requests]

    return run(work())


def post(site: Site, path: str, body: dict[str, Any]) -> httpx.Response:
    """The only request to a site: its workers are ended behind it."""
    return posts(site, (path, body))[0]


def vector(site: Site, index: int) -> list[float]:
    """What the worker gave for the index-th text."""
    found: list[float] = fake_embedding(site.workers[0].embeds[index]).tolist()
    return found


def unit(values: list[float]) -> list[float]:
    length = math.hypot(*values)
    return [value / length for value in values]


def error(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 400, response.text
    found: dict[str, Any] = response.json()["error"]
    return found


def test_openai_embeds_in_order_at_length_one_oe01_oe02(site: Site) -> None:
    response = post(site, OPENAI, {"model": "encoder", "input": ["the", "hello world", "the"]})
    assert response.status_code == 200, response.text
    answer = response.json()
    assert (answer["object"], answer["model"]) == ("list", "encoder")
    assert [item["index"] for item in answer["data"]] == [0, 1, 2]
    assert {item["object"] for item in answer["data"]} == {"embedding"}
    by_name = {request.request_id: request for request in site.workers[0].embeds}
    in_order = sorted(by_name, key=lambda name: int(name.rpartition("-")[2]))
    assert [by_name[name].token_ids for name in in_order] == [
        (CLS, THE, SEP),
        (CLS, TOKENS.index("\u2581hello"), TOKENS.index("\u2581world"), SEP),
        (CLS, THE, SEP),
    ]
    assert {request.pooling for request in by_name.values()} == {"mean"}
    for item, name in zip(answer["data"], in_order, strict=True):
        expected = unit(fake_embedding(by_name[name]).tolist())
        assert item["embedding"] == pytest.approx(expected, rel=1e-6)
    assert answer["usage"] == {"prompt_tokens": 10, "total_tokens": 10}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("the", [(CLS, THE, SEP)]),
        ([THE, 7], [(THE, 7)]),
        ([[THE, 7], [9]], [(THE, 7), (9,)]),
    ],
)
def test_openai_takes_texts_and_ids_oe01(site: Site, given: Any, wanted: Any) -> None:
    response = post(site, OPENAI, {"model": "encoder", "input": given, "user": "me"})
    assert response.status_code == 200, response.text
    assert sorted(r.token_ids for r in site.workers[0].embeds) == sorted(wanted)
    assert response.headers["x-emberd-ignored"] == "user"


def test_base64_is_little_endian_float32_and_equals_float_k33(site: Site) -> None:
    body = {"model": "encoder", "input": ["the", "hello"]}
    answers = posts(
        site,
        (OPENAI, {**body, "encoding_format": "float"}),
        (OPENAI, body),
        (OPENAI, {**body, "encoding_format": "base64"}),
    )
    floats, default, texts = (answer.json()["data"] for answer in answers)
    assert default == floats
    for item, text in zip(floats, texts, strict=True):
        assert "\n" not in text["embedding"]
        raw = base64.b64decode(text["embedding"], validate=True)
        assert len(raw) == 4 * WIDTH
        assert list(struct.unpack(f"<{WIDTH}f", raw)) == item["embedding"]


def test_base64_of_the_known_vector_k33() -> None:
    from array import array

    from emberd.gateway.openai.embeddings import _encoded

    assert _encoded(array("f", [1, -0.5, 0.25]), True) == "AACAPwAAAL8AAIA+"
    assert _encoded(array("f", [1, -0.5, 0.25]), False) == [1, -0.5, 0.25]


@pytest.mark.parametrize("wanted", ["binary", "", 3, "FLOAT"])
def test_other_encodings_are_refused_k33(site: Site, wanted: Any) -> None:
    body = {"model": "encoder", "input": "the", "encoding_format": wanted}
    assert error(post(site, OPENAI, body))["param"] == "encoding_format"


def test_dimensions_cut_and_norm_again_oe01(site: Site) -> None:
    body = {"model": "encoder", "input": "the", "dimensions": 2}
    wrong = [(OPENAI, {**body, "dimensions": count}) for count in (0, -1, WIDTH + 1, 1.5)]
    first, *others = posts(site, (OPENAI, body), *wrong)
    (item,) = first.json()["data"]
    assert item["embedding"] == pytest.approx(unit(vector(site, 0)[:2]), rel=1e-6)
    assert {error(response)["param"] for response in others} == {"dimensions"}


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ("", "input"),
        (["the", ""], "input[1]"),
        ([], "input"),
        ([[]], "input[0]"),
        ([[1], []], "input[1]"),
        ([5, len(TOKENS)], "input"),
        ([[5], [-1]], "input[1]"),
        (["the"] * (MAX_INPUTS + 1), "input"),
        ({"text": "the"}, "input"),
        (None, "input"),
    ],
)
def test_wrong_inputs_are_named_oe01(site: Site, given: Any, param: str) -> None:
    fault = error(post(site, OPENAI, {"model": "encoder", "input": given}))
    assert fault["param"] == param
    assert fault["type"] == "invalid_request_error"


def test_what_is_too_long_is_refused_or_cut_on_wish_oe02(site: Site) -> None:
    long = "the " * 63  # and two marks: one more than fits
    inputs: list[tuple[Any, str]] = [
        (long, "input"),
        (["the", long], "input[1]"),
        ([THE] * 65, "input"),
    ]
    requests = [(OPENAI, {"model": "encoder", "input": given}) for given, _ in inputs]
    requests.append((OPENAI, {"model": "encoder", "input": long, "truncate": True}))
    *refusals, cut = posts(site, *requests)
    for response, (_, param) in zip(refusals, inputs, strict=True):
        fault = error(response)
        assert (fault["code"], fault["param"]) == ("context_length_exceeded", param)
        assert (fault["n_prompt_tokens"], fault["n_ctx"]) == (65, 64)
    assert cut.status_code == 200
    assert [r.token_ids for r in site.workers[0].embeds] == [(CLS, *[THE] * 62, SEP)]


def test_a_text_that_is_far_too_long_is_read_only_as_far_as_needed_oe02(site: Site) -> None:
    body = {"model": "encoder", "input": "the " * 200_000}
    refused, cut = posts(site, (OPENAI, body), (OPENAI, {**body, "truncate": True}))
    fault = error(refused)
    assert fault["code"] == "context_length_exceeded" and "at least" in fault["message"]
    assert 64 < fault["n_prompt_tokens"] < 20_000
    assert cut.status_code == 200
    assert [r.token_ids for r in site.workers[0].embeds] == [(CLS, *[THE] * 62, SEP)]


def test_a_generative_model_says_no_unless_its_file_has_a_pooling_oe03(site: Site) -> None:
    body = {"model": "tiny", "input": "a", "prompt": "a"}
    *refusals, good = posts(
        site,
        *((path, body) for path in (OPENAI, EMBED, EMBEDDINGS)),
        (OPENAI, {"model": "both", "input": "a"}),
    )
    for response in refusals:
        assert response.status_code == 400
        assert "does not support embeddings" in response.text
    assert good.status_code == 200
    (worker,) = site.workers  # the first model was not loaded for nothing
    (request,) = worker.embeds
    assert (request.pooling, request.token_ids) == ("last", (ord("a"),))


def test_an_encoder_does_not_generate(site: Site) -> None:
    messages = [{"role": "user", "content": "a"}]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": messages},
        "/v1/completions": {"prompt": "a"},
        "/api/chat": {"messages": messages},
        "/api/generate": {"prompt": "a"},
    }
    requests = ((path, {"model": "encoder", **body}) for path, body in bodies.items())
    for response in posts(site, *requests):
        assert response.status_code == 400
        task = "chat" if response.request.url.path == "/api/chat" else "generate"
        assert f'\\"encoder\\" does not support {task}' in response.text
    assert site.workers == []


def test_capabilities_tell_which_model_is_for_what_ol33(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            wanted = {
                "tiny": ["completion", "tools"],
                "both": ["completion", "tools", "embedding"],
                "encoder": ["embedding"],
            }
            tags = (await client.get("/api/tags")).json()["models"]
            found = {tag["name"].removesuffix(":latest"): tag["capabilities"] for tag in tags}
            assert found == wanted
            models = (await client.get("/v1/models")).json()["data"]
            assert {model["id"]: model["capabilities"] for model in models} == wanted
            shown = (await client.post("/api/show", json={"model": "encoder"})).json()
            assert shown["capabilities"] == ["embedding"]
            assert shown["model_info"]["bert.embedding_length"] == 64
            assert shown["details"]["family"] == "bert"

    run(work())


def test_ollama_embed_ol41(site: Site) -> None:
    body = {"model": "encoder", "input": ["the", "hello"], "options": {"num_ctx": 4096}}
    response = post(site, EMBED, body)
    assert response.status_code == 200, response.text
    assert response.headers["x-emberd-ignored"] == "options.num_ctx"
    answer = response.json()
    assert set(answer) == {
        "model",
        "embeddings",
        "total_duration",
        "load_duration",
        "prompt_eval_count",
    }
    assert answer["prompt_eval_count"] == 6
    assert answer["total_duration"] >= answer["load_duration"] > 0
    for found in answer["embeddings"]:
        assert len(found) == WIDTH and math.hypot(*found) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("given", ["", [], None])
def test_ollama_embed_of_nothing_is_no_embeddings_ol41(site: Site, given: Any) -> None:
    response = post(site, EMBED, {"model": "encoder", "input": given})
    assert response.status_code == 200, response.text
    assert response.json()["embeddings"] == []


@pytest.mark.parametrize("given", [[""], ["", "the"], ["", ""]])
def test_ollama_embed_has_a_vector_for_each_text_of_a_list(site: Site, given: list[str]) -> None:
    """Empty ones too, of which an encoder sees its special tokens."""
    response = post(site, EMBED, {"model": "encoder", "input": given})
    assert response.status_code == 200, response.text
    assert len(response.json()["embeddings"]) == len(given)


def test_ollama_embed_cuts_unless_told_not_to_ol41(site: Site) -> None:
    long = "the " * 63
    body = {"model": "encoder", "input": long}
    cut, refused = posts(site, (EMBED, body), (EMBED, {**body, "truncate": False}))
    assert cut.status_code == 200
    assert [len(request.token_ids) for request in site.workers[0].embeds] == [64]
    assert refused.status_code == 400
    assert "context size (64 tokens)" in refused.json()["error"]


def test_ollamas_older_route_is_not_normalised_ol41(site: Site) -> None:
    prompts: list[dict[str, Any]] = [{"prompt": "the"}, {"prompt": ""}, {}]
    requests = ((EMBEDDINGS, {"model": "encoder", **prompt}) for prompt in prompts)
    answers = [response.json() for response in posts(site, *requests)]
    assert answers == [{"embedding": vector(site, 0)}, {"embedding": []}, {"embedding": []}]


def test_keep_alive_is_taken_and_checked(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            for path, field in ((OPENAI, "input"), (EMBED, "input"), (EMBEDDINGS, "prompt")):
                body = {"model": "encoder", field: "the", "keep_alive": -1}
                assert (await client.post(path, json=body)).status_code == 200
                (loaded,) = site.manager.loaded()
                assert math.isinf(loaded.keep_alive) and loaded.active == 0
                body["keep_alive"] = "soon"
                assert (await client.post(path, json=body)).status_code == 400

    run(work())
