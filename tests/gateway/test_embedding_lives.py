"""Embedding requests that live long, end early or meet trouble, and the public client packages."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path

import httpx
import ollama
import openai
import pytest

from site_fakes import Site, run

MakeSite = Callable[..., Site]
OPENAI = "/v1/embeddings"
WIDTH = 5  # of the fake worker's vectors


def test_many_inputs_are_sent_a_few_at_a_time_and_a_hang_up_cancels_them(
    make_site: MakeSite, embedding_models: Path
) -> None:
    """HT-14."""
    site = make_site({"prefill": False}, models_dir=embedding_models)

    async def work() -> None:
        async with site.http(timeout=10) as client:
            body = {"model": "encoder", "input": ["the"] * 300}
            asked = asyncio.ensure_future(client.post(OPENAI, json=body))
            await site.until(lambda: site.workers and len(site.workers[0].running) == 128)
            asked.cancel()
            await site.until(lambda: not site.workers[0].running)
            await site.until(lambda: site.manager.loaded()[0].active == 0)
            assert len(site.workers[0].cancelled) == 128

    run(work())


def test_a_dead_worker_is_an_error_and_frees_the_model(
    make_site: MakeSite, embedding_models: Path
) -> None:
    site = make_site(models_dir=embedding_models)

    async def work() -> None:
        async with site.client() as client:
            body = {"model": "encoder", "input": ["the", "hello"]}
            await client.post(OPENAI, json=body)
            site.workers[0].alive = False
            again = await client.post(OPENAI, json=body)
            assert again.status_code == 200 and len(site.workers) == 2
            site.workers[1].prefilled.clear()
            asked = asyncio.ensure_future(client.post(OPENAI, json=body))
            await site.until(lambda: len(site.workers[1].running) == 2)
            site.workers[1].alive = False
            site.workers[1].prefilled.set()
            answer = await asked
            assert answer.status_code == 500 and "worker of 'fake' ended" in answer.text

    run(work())


def test_leaving_waits_for_embeddings_and_ends_them_after_the_grace_time_k38(
    make_site: MakeSite, embedding_models: Path
) -> None:
    site = make_site({"prefill": False}, models_dir=embedding_models, shutdown_grace=0.2)

    async def work() -> None:
        async with (
            site.listening() as (url, server),
            httpx.AsyncClient(base_url=url, timeout=10) as client,
        ):
            body = {"model": "encoder", "input": "the"}
            asked = asyncio.ensure_future(client.post(OPENAI, json=body))
            await site.until(lambda: site.workers and site.workers[0].running)
            server.leave()
            answer = await asked
            assert answer.status_code == 503
            assert "it waited 0.2 seconds" in answer.text

    run(work())


def test_a_full_queue_is_429(make_site: MakeSite, embedding_models: Path) -> None:
    """HT-15."""
    site = make_site({"prefill": False}, models_dir=embedding_models, queue_limit=1)

    async def work() -> None:
        async with site.client() as client:
            body = {"model": "encoder", "input": ["the"] * 5}
            first = asyncio.ensure_future(client.post(OPENAI, json=body))
            await site.until(lambda: site.workers and len(site.workers[0].running) == 5)
            second = await client.post(OPENAI, json=body)
            assert second.status_code == 429 and second.headers["retry-after"]
            site.workers[0].prefilled.set()
            assert (await first).status_code == 200

    run(work())


def test_openai_python_embeds_in_base64_by_default_cl03(
    make_site: MakeSite, embedding_models: Path
) -> None:
    site = make_site(models_dir=embedding_models)

    async def work() -> None:
        async with (
            site.listening() as (url, _),
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client,
        ):
            texts = ["the", "hello world"]
            answer = await client.embeddings.create(model="encoder", input=texts)
            floats = await client.embeddings.create(
                model="encoder", input=texts, encoding_format="float"
            )
            for one, other in zip(answer.data, floats.data, strict=True):
                assert one.embedding == pytest.approx(other.embedding, abs=1e-9)
                assert len(one.embedding) == WIDTH
            assert answer.usage.prompt_tokens == 7
            short = await client.embeddings.create(model="encoder", input="the", dimensions=3)
            assert len(short.data[0].embedding) == 3
            with pytest.raises(openai.BadRequestError, match="does not support embeddings"):
                await client.embeddings.create(model="tiny", input="the")

    run(work())


def test_ollama_python_embeds_cl04(make_site: MakeSite, embedding_models: Path) -> None:
    site = make_site(models_dir=embedding_models)

    async def work() -> None:
        async with site.listening() as (url, _), ollama.AsyncClient(host=url) as client:
            answer = await client.embed("encoder", ["the", "hello"])
            assert [len(one) for one in answer.embeddings] == [WIDTH, WIDTH]
            assert answer.prompt_eval_count == 6
            old = await client.embeddings("encoder", "the")
            assert math.hypot(*old.embedding) > 1
            with pytest.raises(ollama.ResponseError, match="does not support embeddings"):
                await client.embed("tiny", "the")
            assert (await client.show("encoder")).capabilities == ["embedding"]

    run(work())


def test_embeddings_are_counted_and_strictness_holds(
    make_site: MakeSite, embedding_models: Path
) -> None:
    site = make_site(models_dir=embedding_models, strict=True)

    async def work() -> None:
        async with site.client() as client:
            body = {"model": "encoder", "input": ["the", "hello"]}
            assert (await client.post(OPENAI, json=body)).status_code == 200
            page = (await client.get("/metrics")).text
            assert 'emberd_sequences_total{end="stop",model="encoder:latest"} 2.0' in page
            assert 'emberd_prompt_tokens_total{model="encoder:latest"} 6.0' in page
            for path, extra, name in (
                (OPENAI, {"user": "me"}, "user"),
                ("/api/embed", {"options": {"num_ctx": 64}}, "options.num_ctx"),
            ):
                refused = await client.post(path, json={**body, **extra})
                assert refused.status_code == 400 and name in refused.text

    run(work())
