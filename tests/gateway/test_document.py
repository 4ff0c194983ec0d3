"""The API document: every route is described, and every example is taken by the route itself (C15)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from emberd.gateway.app import MODULES
from emberd.gateway.examples import EXAMPLES, MODEL
from emberd.gateway.ollama.library_schema import PullRequest
from site_fakes import CONTEXT, Site, run
from tiny_gguf import EOS, SURE, chain_model

MakeSite = Callable[..., Site]
Json = dict[str, Any]
ROUTES = {
    f"{method} {re.sub(r':path}', '}', route.path)}"
    for module in MODULES
    for route in module.router.routes
    if isinstance(route, APIRoute) and route.include_in_schema
    for method in route.methods
}
NEEDS_OTHERS = {
    "POST /api/pull",
    "GET /api/requests/{id}",
    "DELETE /api/requests/{id}",
    "POST /api/batch/preempt",
}


@pytest.fixture
def site(make_site: MakeSite, tmp_path: Path) -> Site:
    """One model that does everything: it answers, embeds and fills in."""
    chain_model(
        tmp_path / "models" / f"{MODEL}.gguf",
        {last: {ord("y"): SURE} for last in range(255)} | {ord("y"): {EOS: SURE}},
        control=["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
        context_length=CONTEXT,
        metadata={"llama.pooling_type": 3},
    )
    return make_site(models_dir=tmp_path / "models")


@pytest.fixture(autouse=True)
def models_folder(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()


async def document_of(client: httpx.AsyncClient) -> Json:
    return (await client.get("/openapi.json")).json()


def test_every_route_has_an_example_and_every_example_a_route() -> None:
    assert set(EXAMPLES) == ROUTES


def test_every_route_is_described_c15(site: Site) -> None:
    async def work() -> Json:
        async with site.client() as client:
            return await document_of(client)

    document = run(work())
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert 10 < len(operation["summary"]) < 100, (method, path)
            assert {"200", "4XX", "5XX"} <= set(operation["responses"]), (method, path)
            if "requestBody" in operation:
                content = operation["requestBody"]["content"]["application/json"]
                name = content["schema"]["$ref"].rpartition("/")[2]
                assert (
                    content["example"].keys()
                    <= document["components"]["schemas"][name]["properties"].keys()
                )
    assert (
        "example"
        in document["paths"]["/v1/chat/completions"]["post"]["responses"]["4XX"]["content"][
            "application/json"
        ]
    )


@pytest.mark.slow
def test_every_example_is_taken_and_answered_as_it_says(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            order = sorted(EXAMPLES, key=lambda route: ("{id}" in route, "delete" in route.lower()))
            stored = ""
            for route in order:
                example = EXAMPLES[route]
                method, path = route.split(" ")
                if route in NEEDS_OTHERS or "{digest}" in path:
                    continue
                path = path.replace("{name}", MODEL).replace("{id}", stored)
                if path.endswith("/cancel"):
                    body = {**(EXAMPLES["POST /v1/responses"].body or {}), "background": True}
                    started = (await client.post("/v1/responses", json=body)).json()
                    path = f"/v1/responses/{started['id']}/cancel"
                answer = await client.request(method, path, json=example.body)
                assert answer.status_code == 200, (route, answer.text)
                if isinstance(example.answer, dict):
                    assert example.answer.keys() <= answer.json().keys(), route
                if route == "POST /v1/responses":
                    stored = answer.json()["id"]

    run(work())


def test_the_example_of_a_pull_is_one() -> None:
    assert PullRequest.model_validate(EXAMPLES["POST /api/pull"].body).wanted()


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.text, self.links = "", list[str]()

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        self.links += [value or "" for name, value in attributes if name in ("src", "href")]


def test_the_page_shows_every_route_and_fetches_nothing(site: Site) -> None:
    async def work() -> httpx.Response:
        async with site.client() as client:
            return await client.get("/docs")

    response = run(work())
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    page = Page()
    page.feed(response.text)
    assert page.links == ["/openapi.json"]
    for route in ROUTES:
        assert route in re.sub(r"\s+", " ", page.text), route
    for example in EXAMPLES.values():
        assert example.summary in page.text
    assert '"max_tokens": 32' in page.text


JUNK: list[Any] = [None, True, -1, 0, 1.5, 1e300, "", "\0", "x" * 70, [], [[]], [None]]
JUNK += [{}, {"": []}, [{"a": 1}]]


@pytest.mark.slow
def test_no_junk_in_any_field_of_any_route_is_more_than_a_400_k36(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            document = await document_of(client)
            for route, example in EXAMPLES.items():
                method, path = route.split(" ")
                if example.body is None or route in NEEDS_OTHERS:
                    continue
                body = document["paths"][path][method.lower()]["requestBody"]
                name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
                for field in document["components"]["schemas"][name]["properties"]:
                    for junk in JUNK:
                        sent = {**example.body, field: junk}
                        answer = await client.request(method, path, json=sent)
                        assert answer.status_code < 500, (route, field, junk, answer.text)

    asyncio.run(asyncio.wait_for(work(), 300))
