"""After a lost device (K30) /health says so until the model is loaded again, which the daemon does by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from emberd.models import recovery
from site_fakes import Site, refused, run

LOST = "the device Card was lost (unknown): the driver reset it"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "1"}], "max_tokens": 2}


def lose(worker: Any) -> None:
    """As a real client tells it."""
    worker.alive, worker.lost_device = False, LOST
    worker.on_death(worker)


@pytest.fixture
def site(make_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(recovery, "DELAYS", (0.0, 0.05))
    return make_site()


def test_the_model_is_loaded_again_and_health_tells_of_it(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            assert (await client.post("/v1/chat/completions", json=BODY)).status_code == 200
            site.load_gate = asyncio.Event()
            lose(site.workers[0])
            health = await client.get("/health")
            assert health.status_code == 503 and health.json() == {"status": "error", "error": LOST}
            waiting = asyncio.ensure_future(client.post("/v1/chat/completions", json=BODY))
            await site.until(lambda: site.manager._loading)
            site.load_gate.set()
            assert (await waiting).status_code == 200
            assert (await client.get("/health")).json() == {"status": "ok"}
            assert len(site.workers) == 2

    run(work())


def test_while_the_device_does_not_come_back_requests_get_503(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            await client.post("/v1/chat/completions", json=BODY)
            site.load_error = refused()
            lose(site.workers[0])
            for route in ("/v1/chat/completions", "/api/chat"):
                reply = await client.post(route, json=BODY)
                assert reply.status_code == 503 and "loading again" in reply.text, reply.text
                assert int(reply.headers["retry-after"]) > 0
            assert (await client.get("/health")).status_code == 503
            site.load_error = None
            await site.until(lambda: site.manager.failing is None)
            assert (await client.get("/health")).status_code == 200
            assert (await client.post("/v1/chat/completions", json=BODY)).status_code == 200

    run(work())


def test_a_model_that_is_unloaded_is_not_loaded_again(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            await client.post("/v1/chat/completions", json=BODY)
            site.load_error = refused()
            lose(site.workers[0])
            await client.post("/api/generate", json={"model": "tiny", "keep_alive": 0})
            await site.until(lambda: not site.manager._recovery._tasks)
            assert (await client.get("/health")).status_code == 200

    run(work())


def test_an_ordinary_death_is_no_lost_device(site: Site) -> None:
    async def work() -> None:
        async with site.client() as client:
            await client.post("/v1/chat/completions", json=BODY)
            worker: Any = site.workers[0]
            worker.alive, worker.lost_device = False, None
            worker.on_death(worker)
            assert (await client.get("/health")).status_code == 200
            assert (await client.post("/v1/chat/completions", json=BODY)).status_code == 200

    run(work())
