"""/metrics: what is counted, and that each name is documented."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from site_fakes import Site, run

MakeSite = Callable[..., Site]
OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "b"}]}
MODEL = 'model="tiny:latest"'


def values(page: str) -> dict[str, float]:
    """Samples by name and labels, as `name{label="value"}`."""
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = ",".join(f'{k}="{v}"' for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


async def scrape(client: httpx.AsyncClient) -> dict[str, float]:
    response = await client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    return values(response.text)


def test_replies_are_counted(make_site: MakeSite) -> None:
    site = make_site({"delay": 0.001})

    async def work() -> tuple[dict[str, float], list[dict[str, int]]]:
        async with site.client() as client:
            url = "/v1/chat/completions"
            asked = [CHAT, {**CHAT, "max_tokens": 2}, {**CHAT, "stop": "D E"}]
            usages = [(await client.post(url, json=body)).json()["usage"] for body in asked]
            native = (await client.post("/api/chat", json={**CHAT, "stream": False})).json()
            counts = native["prompt_eval_count"], native["eval_count"]
            usages.append(dict(zip(("prompt_tokens", "completion_tokens"), counts, strict=True)))
            return await scrape(client), usages

    found, usages = run(work())
    total = sum(usage["completion_tokens"] for usage in usages)
    prompts = sum(usage["prompt_tokens"] for usage in usages)
    assert found[f"emberd_completion_tokens_total{{{MODEL}}}"] == total
    assert found[f"emberd_prompt_tokens_total{{{MODEL}}}"] == prompts
    assert found[f"emberd_cached_prompt_tokens_total{{{MODEL}}}"] == 4  # the fake says 1 each
    assert found[f'emberd_sequences_total{{end="stop",{MODEL}}}'] == 3  # a stop string too
    assert found[f'emberd_sequences_total{{end="length",{MODEL}}}'] == 1
    assert found[f"emberd_time_to_first_token_seconds_count{{{MODEL}}}"] == 4
    assert found[f"emberd_time_to_first_token_seconds_sum{{{MODEL}}}"] > 0
    gaps = "emberd_token_gap_seconds"
    num_gaps = found[f"{gaps}_count{{{MODEL}}}"]
    assert num_gaps >= total - 4  # and those of tokens behind the stop string
    assert found[f"{gaps}_sum{{{MODEL}}}"] >= 0.001 * num_gaps
    buckets = [n for name, n in found.items() if name.startswith(f"{gaps}_bucket")]
    assert buckets == sorted(buckets) and buckets[-1] == num_gaps
    assert found[f'{gaps}_bucket{{le="0.001",{MODEL}}}'] == 0
    route = 'method="POST",route="/v1/chat/completions",status="200"'
    assert found[f"emberd_http_requests_total{{{route}}}"] == 3
    assert found['emberd_http_request_seconds_count{route="/api/chat"}'] == 1


def test_gauges_tell_what_is_now(make_site: MakeSite) -> None:
    site = make_site({"prefill": False}, queue_limit=9)

    async def work() -> None:
        async with site.client() as client:
            before = await scrape(client)
            assert before["emberd_models_loaded"] == 0
            assert before["emberd_queue_limit"] == 9
            assert not [name for name in before if MODEL in name]
            reply = asyncio.ensure_future(
                client.post("/v1/chat/completions", json={**CHAT, "n": 2})
            )
            await site.until(lambda: site.workers and len(site.workers[0].running) == 2)
            now = await scrape(client)
            info = site.workers[0].info
            assert now["emberd_queue_sequences"] == 2
            assert now[f"emberd_sequences_running{{{MODEL}}}"] == 2
            assert now[f"emberd_sequences_waiting{{{MODEL}}}"] == 0
            assert now[f"emberd_kv_blocks{{{MODEL}}}"] == info.num_blocks
            assert now[f"emberd_kv_blocks_free{{{MODEL}}}"] == info.num_blocks - 2
            assert now[f"emberd_kv_block_tokens{{{MODEL}}}"] == info.block_size
            assert now[f"emberd_model_weight_bytes{{{MODEL}}}"] == info.weight_bytes
            assert now[f"emberd_model_kv_bytes{{{MODEL}}}"] == info.kv_bytes
            site.workers[0].prefilled.set()
            await reply
            assert (await scrape(client))["emberd_queue_sequences"] == 0

    run(work())


def test_errors_are_counted_by_kind(make_site: MakeSite) -> None:
    site = make_site()

    async def work() -> dict[str, float]:
        async with site.client() as client:
            await client.post("/v1/chat/completions", json={"model": "none", "messages": [{}]})
            await client.post("/v1/chat/completions", json={**CHAT, "model": "none"})
            await client.get("/nothing")
            await client.get("/", headers={"host": "evil.example"})
            await client.request("BREW", "/nothing/2")
            return await scrape(client)

    found = run(work())
    assert found['emberd_errors_total{error="BadRequestError"}'] == 1
    assert found['emberd_errors_total{error="ModelNotFoundError"}'] == 1
    assert found['emberd_errors_total{error="HTTPException"}'] == 3
    assert found['emberd_http_requests_total{method="GET",route="none",status="404"}'] == 1
    assert found['emberd_http_requests_total{method="GET",route="none",status="403"}'] == 1
    assert found['emberd_http_requests_total{method="other",route="none",status="404"}'] == 1


def test_a_dead_worker_and_a_gone_client_are_told_apart(make_site: MakeSite) -> None:
    site = make_site({"delay": 0.005})
    endless = {"model": "tiny", "prompt": "e", "max_tokens": 5000}

    async def work() -> None:
        async with site.http() as client:
            async with client.stream(
                "POST", "/v1/completions", json={**endless, "stream": True}
            ) as r:
                async with contextlib.aclosing(r.aiter_lines()) as lines:
                    await anext(lines)
            await site.until(lambda: site.workers[0].cancelled)
            dying = asyncio.ensure_future(client.post("/v1/completions", json=endless))
            await site.until(lambda: site.workers[0].running)
            site.workers[0].alive = False
            assert (await dying).status_code == 500
            found = await scrape(client)
            assert found[f'emberd_sequences_total{{end="cancelled",{MODEL}}}'] == 1
            assert found[f'emberd_sequences_total{{end="error",{MODEL}}}'] == 1
            assert found['emberd_errors_total{error="WorkerDiedError"}'] == 1
            assert found["emberd_models_loaded"] == 0

    run(work())


@pytest.mark.parametrize(
    "accept", ["", "text/plain", "application/openmetrics-text; version=1.0.0"]
)
def test_scrapers_and_probes_are_answered_c15(make_site: MakeSite, accept: str) -> None:
    site = make_site()

    async def work() -> None:
        async with site.client() as client:
            head = await client.head("/metrics", headers={"accept": accept})
            assert (head.status_code, head.content) == (200, b"")
            page = await client.get("/metrics", headers={"accept": accept})
            assert page.text.endswith("# EOF\n") == ("openmetrics" in accept)
            assert page.headers["x-request-id"]

    run(work())


def test_every_name_is_documented_and_every_documented_name_is_there(make_site: MakeSite) -> None:
    site = make_site()

    async def work() -> set[str]:
        async with site.client() as client:
            await client.post("/v1/chat/completions", json=CHAT)
            await client.get("/nothing")
            page = (await client.get("/metrics")).text
        return set(re.findall(r"^# TYPE (emberd_\w+) ", page, re.MULTILINE))

    documented = set(re.findall(r"`(emberd_\w+)`", OPERATIONS.read_text(encoding="utf-8")))
    assert run(work()) == documented


def test_requests_that_wait_for_a_load_are_in_the_queue(make_site: MakeSite) -> None:
    site = make_site()

    async def work() -> None:
        site.load_gate = asyncio.Event()
        async with site.client() as client:
            reply = asyncio.ensure_future(client.post("/v1/chat/completions", json=CHAT))
            await site.until(lambda: site.service.num_taken)
            assert (await scrape(client))["emberd_queue_sequences"] == 1
            site.load_gate.set()
            assert (await reply).is_success
            assert (await scrape(client))["emberd_queue_sequences"] == 0

    run(work())
