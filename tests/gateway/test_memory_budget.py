"""Several models and memory for two of them, over real HTTP with fake workers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from emberd.config import Config
from emberd.models.memory import need_of
from site_fakes import Site, run, write_model
from tiny_gguf import random_model

NAMES = ("one", "two", "three")
KV = 1 << 20


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Three models; any two of them fit."""
    return make(tmp_path)


def make(tmp_path: Path, share: float = 2.5, **settings: Any) -> Site:
    for name in NAMES:
        write_model(tmp_path / "models" / f"{name}.gguf")
    folders = {"models_dir": tmp_path / "models", "cache_dir": tmp_path / "cache"}
    values: dict[str, Any] = {"device": "cpu", "kv_memory": KV, **folders, **settings}
    facts = Site(Config(**values)).store.find("one").facts
    need = need_of(facts, Config(**values), "cpu")
    site = Site(Config(**values, memory=int(share * need.wanted)))
    site.worker_bytes = (4 * facts.num_parameters, need.kv_most)
    return site


class Client:
    """Asks over HTTP; `loaded` are the models that /api/ps tells, the last used first."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def ask(self, model: str, **fields: Any) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": "a"}], **fields}
        return await self.http.post("/v1/chat/completions", json=body)

    def later(self, model: str, **fields: Any) -> asyncio.Task[httpx.Response]:
        return asyncio.ensure_future(self.ask(model, **fields))

    async def loaded(self) -> list[str]:
        models = (await self.http.get("/api/ps")).json()["models"]
        return [model["name"].removesuffix(":latest") for model in models]


@contextlib.asynccontextmanager
async def served(site: Site) -> AsyncIterator[Client]:
    async with site.http(timeout=15) as http:
        yield Client(http)


def num_waiting(site: Site) -> int:
    """Requests that wait for loads."""
    return sum(site.manager._waiting.values())


def ok(responses: list[httpx.Response]) -> bool:
    return [response.status_code for response in responses] == [200] * len(responses)


def test_the_least_recently_used_idle_model_leaves_for_another(site: Site) -> None:
    async def work() -> None:
        async with served(site) as client:
            assert ok([await client.ask(name) for name in ("one", "two", "one")])
            assert await client.loaded() == ["one", "two"]
            assert ok([await client.ask("three")])
            assert await client.loaded() == ["three", "one"]
            assert [worker.alive for worker in site.workers] == [True, False, True]
            assert ok([await client.ask("two")])
            assert await client.loaded() == ["two", "three"]
            assert site.starts == ["one", "two", "three", "two"]

    run(work())


def test_a_model_that_is_kept_for_ever_leaves_last_k31(site: Site) -> None:
    async def work() -> None:
        async with served(site) as client:
            assert ok([await client.ask("one", keep_alive=-1), await client.ask("two")])
            assert ok([await client.ask("three")])
            assert await client.loaded() == ["three", "one"]
            assert ok([await client.ask("three", keep_alive=-1), await client.ask("two")])
            assert await client.loaded() == ["two", "three"]

    run(work())


def test_a_running_model_never_leaves_and_who_waits_comes_next(site: Site) -> None:
    site.prefill = False

    async def work() -> None:
        async with served(site) as client:
            first, second = client.later("one"), client.later("two")
            await site.until(
                lambda: [bool(worker.running) for worker in site.workers] == [True] * 2
            )
            third = client.later("three")
            await site.until(lambda: site.manager._room.leaving is not None)
            assert set(await client.loaded()) == {"one", "two"}
            left = site.manager._room.leaving[0].stem
            again = client.later(left)  # new requests for it stand behind the one that waits
            await asyncio.sleep(0.05)
            by_name = {Path(worker.options.model_path).stem: worker for worker in site.workers}
            assert len(by_name[left].running) == 1 and not third.done()
            by_name[left].prefilled.set()
            await site.until(lambda: len(site.workers) == 3)
            assert site.starts[2] == "three" and not by_name[left].alive
            for worker in site.workers:
                worker.prefilled.set()
            await site.until(lambda: len(site.workers) == 4)
            site.workers[3].prefilled.set()
            assert ok(list(await asyncio.gather(first, second, third, again)))
            assert site.starts[3] == left

    run(work())


def test_all_who_wait_share_one_load_and_each_is_answered(site: Site) -> None:
    site.load_gate = asyncio.Event()

    async def work() -> None:
        async with served(site) as client:
            asked = [client.later(name) for name in NAMES for _ in range(4)]
            await site.until(lambda: len(site.starts) == 2 and num_waiting(site) == len(asked))
            site.load_gate.set()  # type: ignore[union-attr]
            assert ok(list(await asyncio.gather(*asked)))
            assert sorted(site.starts) == sorted(NAMES)
            assert len(await client.loaded()) == 2

    run(work())


def test_a_load_that_fails_says_why_and_leaves_the_rest_running(site: Site) -> None:
    site.bad = {"three"}

    async def work() -> None:
        async with served(site) as client:
            assert ok([await client.ask("one")])
            site.load_gate = asyncio.Event()
            asked = [client.later("three") for _ in range(2)]
            await site.until(lambda: num_waiting(site) == len(asked))
            site.load_gate.set()
            failed = await asyncio.gather(*asked)
            assert [response.status_code for response in failed] == [500, 500]
            assert "not enough memory" in failed[0].json()["error"]["message"]
            assert site.starts == ["one", "three"]
            assert await client.loaded() == ["one"]
            assert ok([await client.ask("two"), await client.ask("one")])
            assert site.workers[0].alive and len(site.workers) == 2  # no room is lost

    run(work())


def test_a_model_that_alone_is_too_large_is_refused_and_nothing_leaves(tmp_path: Path) -> None:
    site = make(tmp_path, 1.5)
    random_model(tmp_path / "models" / "large.gguf", layers=6, ffn=2048)

    async def work() -> None:
        async with served(site) as client:
            assert ok([await client.ask("one")])
            answer = await client.ask("large")
            assert answer.status_code == 500
            message = answer.json()["error"]["message"]
            assert "large:latest" in message and "--memory" in message and "MiB" in message
            assert await client.loaded() == ["one"]

    run(work())


def test_zero_keep_alive_gives_its_memory_to_the_next_k31(site: Site) -> None:
    async def work() -> None:
        async with served(site) as client:
            assert ok([await client.ask("one"), await client.ask("two", keep_alive=0)])
            assert ok([await client.ask("three")])
            assert await client.loaded() == ["three", "one"]

    run(work())


def test_a_load_ends_when_all_who_wait_have_hung_up(site: Site) -> None:
    site.load_gate = asyncio.Event()

    async def work() -> None:
        async with served(site) as client:
            first, second = client.later("one"), client.later("one")
            await site.until(lambda: site.manager._waiting.total() == 2)
            first.cancel()
            await site.until(lambda: site.manager._waiting.total() == 1)
            assert site.manager._loading
            second.cancel()
            await site.until(lambda: not site.manager._loading)
            site.load_gate.set()  # type: ignore[union-attr]
            assert not site.workers and await client.loaded() == []
            assert ok([await client.ask("one")])

    run(work())


def test_who_asks_while_a_load_is_given_up_gets_the_next_one(site: Site) -> None:
    site.load_gate = asyncio.Event()

    async def work() -> None:
        first = asyncio.ensure_future(site.manager.acquire("one"))
        await site.until(lambda: site.starts)
        first.cancel()
        second = asyncio.ensure_future(site.manager.acquire("one"))
        await site.until(lambda: len(site.starts) == 2)
        site.load_gate.set()  # type: ignore[union-attr]
        assert (await second).active == 1
        await site.manager.close()

    run(work())


def test_who_hangs_up_while_waiting_for_room_lets_the_running_model_be(site: Site) -> None:
    site.prefill = False

    async def work() -> None:
        async with served(site) as client:
            running = [client.later("one"), client.later("two")]
            await site.until(
                lambda: [bool(worker.running) for worker in site.workers] == [True] * 2
            )
            third = client.later("three")
            await site.until(lambda: site.manager._room.leaving is not None)
            third.cancel()
            await site.until(lambda: site.manager._room.leaving is None)
            running += [client.later("one"), client.later("two")]
            await site.until(lambda: [len(worker.running) for worker in site.workers] == [2, 2])
            for worker in site.workers:
                worker.prefilled.set()
            assert ok(list(await asyncio.gather(*running)))
            assert sorted(site.starts) == ["one", "two"]

    run(work())


def test_a_pool_is_no_larger_than_others_leave_room_for(tmp_path: Path) -> None:
    site = make(tmp_path, 1.0, kv_memory=None)

    async def work() -> None:
        async with served(site) as client:
            assert ok([await client.ask("one")])
            (worker,) = site.workers
            limit = worker.options.kv_limit
            assert limit is not None and site.config.memory is not None
            assert 0 < limit < site.config.memory
            facts = site.store.find("one").facts
            assert limit + need_of(facts, site.config, "cpu").fixed == site.config.memory

    run(work())


@pytest.mark.parametrize("fits", [True, False])
def test_kv_ram_counts_as_taken_on_the_cpu_device(tmp_path: Path, fits: bool) -> None:
    """Two models beside each other, or one at a time where their blocks in main memory leave no room for both."""
    site = make(tmp_path, 2.5 if fits else 1.9, kv_ram=KV)
    fixed, kv = site.worker_bytes
    site.worker_bytes = (fixed - KV, kv)  # as measured: nothing is in it yet
    assert site.config.memory is not None and 2 * (fixed - KV + kv) < site.config.memory

    async def work() -> None:
        async with served(site) as client:
            for name in NAMES[:2]:
                assert ok([await client.ask(name)])
            assert await client.loaded() == (["two", "one"] if fits else ["two"])

    run(work())
