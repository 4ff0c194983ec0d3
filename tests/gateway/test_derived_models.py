"""Models made from others: their own system text, parameters, template and messages are used by every API (OL-08)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from emberd.models.recipe import Recipe
from site_fakes import FakeWorker, Site, refused, run

MakeSite = Callable[..., Site]
MARIO = Recipe.from_json(
    {
        "system": "You are Mario. b",
        "parameters": {"temperature": 0.25, "top_k": 7, "num_predict": 3, "stop": [" C D"]},
        "parent": "tiny:latest",
    }
)


@pytest.fixture
def site(make_site: MakeSite, models_dir: Path) -> Site:
    site = make_site(models_dir=models_dir)
    site.store.keep("mario", models_dir / "tiny.gguf", MARIO)
    return site


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def asked(worker: FakeWorker, site: Site) -> str:
    """The prompt that the worker got last."""
    loaded = site.manager.loaded()[0]
    return loaded.tokenizer.decode(worker.requests[-1].token_ids, show_special=True)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {"messages": said("a"), "stream": False}),
        ("/api/generate", {"prompt": "a", "stream": False}),
        ("/v1/chat/completions", {"messages": said("a")}),
        ("/v1/messages", {"messages": said("a"), "max_tokens": 3}),
    ],
)
def test_every_api_uses_the_recipe_ol08(site: Site, path: str, body: dict[str, Any]) -> None:
    async def work() -> None:
        async with site.client() as client:
            reply = await client.post(path, json={"model": "mario", **body})
            assert reply.status_code == 200, reply.text
            (worker,) = site.workers
            assert asked(worker, site) == "You are Mario. ba"
            params = worker.requests[-1].params
            assert (params.temperature, params.top_k, params.max_tokens) == (0.25, 7, 3)
            plain = await client.post(path, json={**body, "model": "tiny"})
            assert plain.status_code == 200
            assert worker.requests[-1].params.top_k != 7
            assert len(worker.requests[-1].token_ids) == 1

    run(work())


def test_what_a_request_says_comes_before_the_recipe_ol08(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            body = {
                "model": "mario",
                "messages": [{"role": "system", "content": "Be brief. "}, *said("b")],
                "options": {"temperature": 1.5, "num_predict": 9, "stop": ["no such"]},
                "stream": False,
            }
            reply = (await client.post("/api/chat", json=body)).json()
            (worker,) = site.workers
            assert asked(worker, site) == "Be brief. b"
            params = worker.requests[-1].params
            assert (params.temperature, params.top_k, params.max_tokens) == (1.5, 7, 9)
            assert reply["message"]["content"] == "A B C D E F G"

    run(work())


def test_the_recipe_s_stops_end_a_reply(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            body = {"model": "mario", "messages": said("b"), "stream": False}
            reply = (await client.post("/api/chat", json=body)).json()
            assert reply["message"]["content"] == "A B"

    run(work())


def test_a_recipe_s_template_and_messages_make_the_prompt(site: Site, models_dir: Path) -> None:
    recipe = Recipe.from_json(
        {
            "template": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
            "messages": [
                {"role": "user", "content": "one"},
                {"role": "assistant", "content": "two"},
            ],
        }
    )
    site.store.keep("shots", models_dir / "tiny.gguf", recipe)

    async def work() -> None:
        async with site.client() as client:
            body = {"model": "shots", "messages": said("a"), "stream": False}
            assert (await client.post("/api/chat", json=body)).status_code == 200
            assert asked(site.workers[0], site) == "<user>one<assistant>two<user>a"

    run(work())


def test_models_of_one_file_share_its_worker(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            bodies = [
                {"model": name, "messages": said("a"), "stream": False}
                for name in ("tiny", "mario", "tiny", "mario")
            ]
            replies = await asyncio.gather(
                *(client.post("/api/chat", json=body) for body in bodies)
            )
            assert [reply.status_code for reply in replies] == [200] * 4
            assert len(site.workers) == 1
            listed = (await client.get("/api/ps")).json()["models"]
            assert {model["name"] for model in listed} == {"tiny:latest", "mario:latest"}
            for name in ("tiny", "mario"):
                assert site.workers[0].alive
                await client.post("/api/generate", json={"model": name, "keep_alive": 0})
            await site.until(lambda: not site.workers[0].alive)
            await client.post("/api/chat", json=bodies[1])
            assert len(site.workers) == 2

    run(work())


def test_a_dead_worker_is_replaced_for_all_who_shared_it(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            for name in ("tiny", "mario"):
                await client.post("/api/generate", json={"model": name})
            site.workers[0].alive = False
            for name in ("mario", "tiny"):
                body = {"model": name, "messages": said("a"), "stream": False}
                assert (await client.post("/api/chat", json=body)).status_code == 200
            assert len(site.workers) == 2

    run(work())


def test_a_load_that_fails_for_all_who_share_it_can_be_tried_again(site: Site) -> None:
    site.load_error = refused()

    async def work() -> None:
        async with site.client() as client:
            bodies = [
                {"model": name, "messages": said("a"), "stream": False}
                for name in ("tiny", "mario")
            ]
            for status, error in ((500, refused()), (200, None)):
                site.load_error = error
                work = [client.post("/api/chat", json=body) for body in bodies]
                replies = await asyncio.gather(*work)
                assert [reply.status_code for reply in replies] == [status] * 2
            assert len(site.workers) == 1

    run(work())


def test_a_changed_recipe_is_used_at_once(site: Site, models_dir: Path) -> None:
    async def work() -> None:
        async with site.client() as client:
            body = {"model": "mario", "messages": said("a"), "stream": False}
            await client.post("/api/chat", json=body)
            site.store.keep("mario", models_dir / "tiny.gguf", Recipe(system="Now Luigi. "))
            await client.post("/api/chat", json=body)
            assert asked(site.workers[0], site) == "Now Luigi. a"
            assert len(site.workers) == 1

    run(work())


def test_a_derived_model_is_told_with_its_parameters_ol30_ol31_ol35(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            tags = {m["name"]: m for m in (await client.get("/api/tags")).json()["models"]}
            assert tags["mario:latest"]["details"]["parent_model"] == "tiny:latest"
            assert tags["mario:latest"]["digest"] != tags["tiny:latest"]["digest"]
            shown = (await client.post("/api/show", json={"model": "mario"})).json()
            assert shown["system"] == "You are Mario. b"
            lines = [line.split(None, 1) for line in shown["parameters"].splitlines()]
            assert ["temperature", "0.25"] in lines and ["stop", '" C D"'] in lines
            assert ["top_k", "7"] in lines
            assert "FROM tiny:latest" in shown["modelfile"]
            assert str(site.store.models_dir) not in str(shown)
            listed = (await client.get("/v1/models")).json()["data"]
            assert {model["id"] for model in listed} == {"mario", "tiny"}

    run(work())
