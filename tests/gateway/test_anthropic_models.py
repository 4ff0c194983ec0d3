"""What Anthropic's clients ask beside messages: tokens counted, models listed, claude names (AN-03, AN-23, AN-26)."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from anthropic_harness import COUNT, MESSAGES, MakeSite, body_of, post, thinking_site

from emberd.gateway.anthropic.describe import listing
from site_fakes import CONTEXT, run, write_model


def test_tokens_are_counted_without_loading_and_exactly_an23(tmp_path: Path) -> None:
    site = thinking_site(tmp_path, {"a": ["Yes"]})
    body = {
        "model": "tiny",
        "system": [{"type": "text", "text": "be brief"}],
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "y"},
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
        ],
        "tools": [{"name": "w", "input_schema": {"type": "object"}}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }

    async def work() -> None:
        async with site.client() as client:
            counted = await client.post(COUNT, json=body)
            assert counted.status_code == 200
            assert set(counted.json()) == {"input_tokens"}
            assert not site.workers
            usage = (await client.post(MESSAGES, json=body)).json()["usage"]
            total = usage["input_tokens"] + usage["cache_read_input_tokens"]
            assert counted.json()["input_tokens"] == total == len("wbe briefxya")
            assert (await client.post(COUNT, json=body)).json() == counted.json()
            too_long = {**body, "messages": [{"role": "user", "content": "x" * 300}]}
            assert (await client.post(COUNT, json=too_long)).json()["input_tokens"] > 300
            lost = await client.post(COUNT, json={**body, "model": "nothing"})
            assert (lost.status_code, lost.json()["error"]["type"]) == (404, "not_found_error")

    run(work())


def test_tokens_of_what_is_far_too_long_are_not_all_counted_an23(make_site: MakeSite) -> None:
    near, far = post(make_site(), COUNT, body_of("x" * 300), body_of("x" * 1_000_000))
    assert near.json() == {"input_tokens": 300}
    assert far.status_code == 400
    message = far.json()["error"]["message"]
    assert re.match(rf"prompt is too long: \d+ tokens > {CONTEXT} maximum", message)


def test_tokens_are_counted_while_the_model_loads_an23(make_site: MakeSite) -> None:
    async def work() -> None:
        site = make_site({"load_gate": asyncio.Event()})
        async with site.client() as client:
            waiting = asyncio.ensure_future(client.post(MESSAGES, json=body_of("a")))
            await site.until(lambda: site.manager._loading)
            counted = await asyncio.wait_for(client.post(COUNT, json=body_of("a")), 5)
            assert counted.json() == {"input_tokens": 1}
            assert site.load_gate is not None
            site.load_gate.set()
            assert (await waiting).status_code == 200

    run(work())


def test_models_have_anthropics_shape_where_its_clients_ask_an26_om02(
    make_site: MakeSite,
) -> None:
    async def work() -> None:
        async with make_site().client(**{"anthropic-version": "2023-06-01"}) as client:
            listed = (await client.get("/v1/models")).json()
            (model,) = listed["data"]
            assert listed == {
                "data": [model],
                "has_more": False,
                "first_id": "tiny",
                "last_id": "tiny",
            }
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", model.pop("created_at"))
            assert model == {
                "type": "model",
                "id": "tiny",
                "display_name": "tiny",
                "lifecycle": "active",
                "max_input_tokens": CONTEXT,
                "max_tokens": CONTEXT,
            }
            shown = (await client.get("/v1/models/claude-opus-9")).json()
            assert (shown["id"], shown["display_name"]) == ("claude-opus-9", "tiny")
            missing = await client.get("/v1/models/nothing")
            assert missing.status_code == 404
            assert missing.json()["error"]["type"] == "not_found_error"

    run(work())


def test_pages_of_models_an26() -> None:
    items = [{"id": name} for name in "abcde"]
    for query, ids, more in (
        ({}, "abcde", False),
        ({"limit": "2"}, "ab", True),
        ({"limit": "2", "after_id": "b"}, "cd", True),
        ({"limit": "2", "after_id": "c"}, "de", False),
        ({"limit": "2", "before_id": "d"}, "bc", True),
        ({"before_id": "c"}, "ab", False),
        ({"before_id": "a"}, "", False),
    ):
        page = listing(items, query)
        assert "".join(item["id"] for item in page["data"]) == ids and page["has_more"] is more
        assert page["first_id"] == (ids[0] if ids else None)
        assert page["last_id"] == (ids[-1] if ids else None)


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=x", "limit=1001", "after_id=b", "after_id=tiny&before_id=tiny"]
)
def test_a_page_of_models_that_is_none_is_refused_an26(make_site: MakeSite, query: str) -> None:
    async def work() -> None:
        async with make_site().client(**{"anthropic-version": "2023-06-01"}) as client:
            response = await client.get(f"/v1/models?{query}")
            assert response.status_code == 400
            assert response.json()["error"]["type"] == "invalid_request_error"
            assert (await client.get("/v1/models?limit=1")).json()["last_id"] == "tiny"

    run(work())


def test_an_empty_store_lists_no_models_an26(make_site: MakeSite, tmp_path: Path) -> None:
    async def work() -> None:
        site = make_site(models_dir=tmp_path / "none")
        async with site.client(**{"anthropic-version": "2023-06-01"}) as client:
            listed = (await client.get("/v1/models")).json()
            assert listed == {"data": [], "has_more": False, "first_id": None, "last_id": None}

    run(work())


def test_claude_names_are_served_and_given_back_as_asked_an03(
    make_site: MakeSite, models_dir: Path
) -> None:
    write_model(models_dir / "other.gguf")
    site = make_site(
        models_dir=models_dir, aliases=(("claude-haiku-*", "other"), ("claude-*", "tiny"))
    )
    names = ("claude-opus-4-5", "claude-haiku-4-5-20251001")
    responses = post(site, MESSAGES, *(body_of("a", model=name) for name in names))
    assert [response.json()["model"] for response in responses] == list(names)
    loaded = [Path(worker.options.model_path).stem for worker in site.workers]
    assert loaded == ["tiny", "other"]
