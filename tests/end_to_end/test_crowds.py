"""Many requests at once: K11 and K12 of bug_kinds.md, 32 streams, and 500 requests of which a tenth is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from chain_models import SMALL_POOL_TOKENS
from daemon import Daemon, wait_until
from dialects import CHAT, COMPLETION, OLLAMA_CHAT, OLLAMA_GENERATE, ROUTES, ask, ask_async, body
from emberd.protocol import GenerateRequest, SamplingParams, WorkerOptions
from emberd.worker.client import WorkerClient
from tiny_gguf import random_model

NUM_CHATS, NUM_AT_ONCE, NUM_REQUESTS = 64, 16, 500


async def leave_early(http: httpx.AsyncClient, route: str, request: dict[str, Any]) -> None:
    """Start a stream and hang up after its first line."""
    async with http.stream("POST", route, json=request) as response:
        assert response.status_code == 200
        async for _ in response.aiter_lines():
            return


async def all_at_once(work: list[Coroutine[Any, Any, Any]], limit: int) -> list[Any]:
    places = asyncio.Semaphore(limit)

    async def one(coroutine: Coroutine[Any, Any, Any]) -> Any:
        async with places:
            return await coroutine

    return await asyncio.gather(*map(one, work))


@pytest.mark.slow
def test_k11_no_cross_talk(small_daemon: Daemon) -> None:
    """K11: 64 chats, 16 at a time over room for 4, a tenth cancelled: each as on an idle daemon."""
    prompts = [f"marker{number:03d} tell me" * 2 for number in range(NUM_CHATS)]
    cancelled = set(range(3, NUM_CHATS, 10))
    alone = [
        ask(small_daemon.http, ROUTES[i % 4], "random", prompt, max_tokens=12)
        for i, prompt in enumerate(prompts)
    ]

    async def crowded() -> list[Any]:
        async with small_daemon.async_http() as http:
            return await all_at_once(
                [
                    leave_early(http, route, body(route, "random", prompt, stream=True))
                    if i in cancelled
                    else ask_async(http, route, "random", prompt, stream=i % 3 > 0, max_tokens=12)
                    for i, prompt in enumerate(prompts)
                    for route in [ROUTES[i % 4]]
                ],
                NUM_AT_ONCE,
            )

    for i, (wanted, found) in enumerate(zip(alone, asyncio.run(crowded()), strict=True)):
        if i in cancelled:
            continue
        assert (found.text, found.reason) == (wanted.text, "length"), prompts[i]
        assert found.num_completion_tokens == 12
        assert not any(f"marker{other:03d}" in found.text for other in range(NUM_CHATS))


def test_k12_a_seed_belongs_to_its_request(daemon: Daemon) -> None:
    """K12: seed 42 alone, beside an unseeded request, beside seed 7, beside seven, and joining late."""
    options: dict[str, Any] = {"temperature": 0.8, "max_tokens": 40}
    wanted = ask(daemon.http, CHAT, "four", "go", seed=42, **options).text
    assert set(wanted) == set("abcd") and len(wanted) == 40
    assert ask(daemon.http, CHAT, "four", "go", seed=7, **options).text != wanted

    async def scenario() -> None:
        async with daemon.async_http() as http:

            def seeded(route: str = CHAT, **more: Any) -> Coroutine[Any, Any, Any]:
                return ask_async(http, route, "four", "go", **{**options, "seed": 42, **more})

            async def beside(*others: Coroutine[Any, Any, Any], late: float = 0) -> str:
                running = [asyncio.ensure_future(other) for other in others]
                await asyncio.sleep(late)
                text = (await seeded()).text
                await asyncio.gather(*running)
                return str(text)

            assert await beside(seeded(seed=None)) == wanted
            assert await beside(seeded(seed=7)) == wanted
            assert await beside(*(seeded(seed=None, stream=True) for _ in range(7))) == wanted
            assert await beside(seeded(seed=3, max_tokens=200), late=0.2) == wanted
            alike = {"top_k": 0, "top_p": 1.0}  # what the native routes would set otherwise
            for route in (COMPLETION, OLLAMA_CHAT, OLLAMA_GENERATE):
                assert (await seeded(route, **alike)).text == wanted

    asyncio.run(scenario())


@pytest.mark.slow
def test_32_streams_at_once_give_what_each_gives_alone(daemon: Daemon) -> None:
    """Done when 5: the same text as alone, on all four routes, greedy and seeded."""
    asked: list[tuple[str, str, dict[str, Any]]] = [
        (ROUTES[i % 4], f"stream {i}: " + "word " * (i % 7), {"temperature": i % 2, "seed": i})
        for i in range(32)
    ]
    alone = [
        ask(daemon.http, route, "random", prompt, max_tokens=24, **options)
        for route, prompt, options in asked
    ]

    async def crowded() -> list[Any]:
        async with daemon.async_http() as http:
            return await asyncio.gather(
                *(
                    ask_async(http, route, "random", prompt, stream=True, max_tokens=24, **options)
                    for route, prompt, options in asked
                )
            )

    found = [dataclasses.replace(reply, pieces=()) for reply in asyncio.run(crowded())]
    assert found == alone


@pytest.mark.slow
def test_500_requests_of_which_a_tenth_is_cancelled(
    small_daemon: Daemon, rng: np.random.Generator
) -> None:
    """Done when 5, over HTTP: afterwards a prompt that needs every block of the pool is served."""
    cancelled = set(rng.choice(NUM_REQUESTS, NUM_REQUESTS // 10, replace=False).tolist())

    async def one(http: httpx.AsyncClient, i: int) -> None:
        route = ROUTES[i % 4]
        if i in cancelled:
            request = body(route, "script", "xy2", stream=True, max_tokens=400)
            await leave_early(http, route, request)
        else:
            reply = await ask_async(http, route, "script", "x" * (i % 40) + "1", stream=i % 2 > 0)
            assert reply.text == "A B C D E F G"

    async def scenario() -> None:
        async with small_daemon.async_http() as http:
            await all_at_once([one(http, i) for i in range(NUM_REQUESTS)], NUM_AT_ONCE)

    asyncio.run(scenario())
    wait_until(lambda: small_daemon.num_active("script") == 0)
    whole_pool = "x" * (SMALL_POOL_TOKENS - 2) + "1"
    assert ask(small_daemon.http, COMPLETION, "script", whole_pool).text == "A B"


@pytest.mark.slow
def test_500_requests_leave_the_count_of_free_blocks(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """Done when 5, at a real worker process, whose messages tell the count."""
    path = random_model(tmp_path / "random.gguf")
    options = WorkerOptions(str(path), "cpu", context_length=256, kv_memory=1 << 20)
    cancelled = set(rng.choice(NUM_REQUESTS, NUM_REQUESTS // 10, replace=False).tolist())
    prompts = [tuple(rng.integers(0, 256, 1 + i % 50).tolist()) for i in range(NUM_REQUESTS)]

    async def one(worker: WorkerClient, i: int) -> None:
        request = GenerateRequest(f"r{i}", prompts[i], SamplingParams(max_tokens=8, seed=i))
        count = 0
        async with contextlib.aclosing(worker.generate(request)) as updates:
            async for update in updates:
                count += len(update.token_ids)
                if i in cancelled:
                    return
        assert count == 8

    async def scenario() -> None:
        worker = await WorkerClient.start(options)
        free_before = worker.stats.num_free_blocks
        assert free_before == worker.info.num_blocks
        await all_at_once([one(worker, i) for i in range(NUM_REQUESTS)], 64)
        while worker.stats.num_running or worker.stats.num_waiting:
            await asyncio.sleep(0.01)
        assert worker.stats.num_free_blocks == free_before
        await worker.close()

    asyncio.run(asyncio.wait_for(scenario(), 120))
