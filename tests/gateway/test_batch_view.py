"""GET /api/batch/status and POST /api/batch/preempt, over the fake worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from emberd.inspection import BatchStatus, BlockCounts, PrefixShape, SequenceStatus, StepTimes
from site_fakes import FakeWorker, Site, run

MakeSite = Callable[..., Site]
Json = dict[str, Any]
BODY: Json = {"model": "tiny", "prompt": "e", "max_tokens": 200}


def test_the_batch_is_told_as_the_worker_has_it(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = BatchStatus(
        (
            SequenceStatus("req_1f-0", "prefill", None, 40, 20, 16, 0, 3, 1, priority=0),
            SequenceStatus("req_2e-1-1", "waiting", 0, 9, 0, 0, 0, 0, 0, priority=2),
        ),
        BlockCounts(total=16, free=10, idle=3, held=3, shared=1),
        PrefixShape(blocks=5, beginnings=1, ends=2, deepest=4),
        num_steps=7,
        steps={"both": StepTimes(3, 0.002, 0.0031, 0.004, 90, 3)},
    )

    async def inspect(self: FakeWorker, whole: bool = True) -> BatchStatus:
        return status

    monkeypatch.setattr(FakeWorker, "inspect", inspect)
    site = make_site()

    async def work() -> Json:
        async with site.client() as client:
            assert (await client.get("/api/batch/status")).json() == {"models": []}
            await client.post("/v1/completions", json={**BODY, "prompt": "a"})
            answer = await client.get("/api/batch/status")
            assert answer.status_code == 200
            return answer.json()

    (model,) = run(work())["models"]
    assert model["model"] == "tiny:latest" and model["tiers"] is None
    (running,), (waiting,) = model["running"], model["waiting"]
    assert (running["id"], running["sequence"], running["priority"]) == (
        "req_1f",
        "0",
        "interactive",
    )
    assert (running["num_computed_tokens"], running["num_preemptions"]) == (20, 1)
    assert (waiting["id"], waiting["sequence"], waiting["position"]) == ("req_2e", "1-1", 0)
    assert model["blocks"] | {"tokens": 16} == {
        "total": 16, "free": 10, "idle": 3, "held": 3, "shared": 1, "tokens": 16,
    }  # fmt: skip
    assert model["prefixes"] == {"blocks": 5, "beginnings": 1, "ends": 2, "deepest": 4}
    assert model["steps"]["both"]["p95_ms"] == 3.1 and model["num_steps"] == 7


def test_sequences_are_preempted_by_request_by_model_or_as_the_last(make_site: MakeSite) -> None:
    site = make_site({"delay": 0.01})

    async def work() -> None:
        async with site.client() as client:

            async def preempt(**body: Any) -> httpx.Response:
                return await client.post("/api/batch/preempt", json=body)

            assert (await preempt()).status_code == 404
            reply = asyncio.ensure_future(client.post("/v1/completions", json=BODY | {"n": 2}))
            await site.until(lambda: site.workers and len(site.workers[0].running) == 2)
            (one,) = (await client.get("/api/requests")).json()["requests"]
            for body, count in [({"id": one["id"]}, 2), ({"model": "tiny"}, 1), ({}, 1)]:
                answer = await preempt(**body)
                assert answer.json() == {"preempted": [one["id"]], "sequences": count}
            missing = await preempt(id="req_00")
            assert missing.status_code == 404 and "req_00" in missing.text
            assert (await preempt(id=one["id"], model="tiny")).status_code == 400
            assert (await preempt(model="nobody")).status_code == 404
            await client.delete(f"/api/requests/{one['id']}")
            await reply

    run(work())
