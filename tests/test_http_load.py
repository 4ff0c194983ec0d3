"""The load generator of the HTTP benchmarks, against a server of the test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest


class FakeServer:
    """Streams `tokens` events a request, cut where chunks end in the middle of one; or fails."""

    def __init__(self, tokens: int, fail_from: int = 1 << 30) -> None:
        self.tokens, self.fail_from = tokens, fail_from
        self.bodies: list[dict[str, Any]] = []
        self.url = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        self.bodies.append(json.loads(await reader.readexactly(length)))
        if len(self.bodies) > self.fail_from:
            writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nfull")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            usage = {"prompt_tokens": 3, "completion_tokens": self.tokens}
            events = [{"choices": [{"text": "data: {"}]}] * self.tokens
            events += [{"choices": [{"text": ""}]}, {"choices": [], "usage": usage}]
            stream = (
                "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
            )
            for first in range(0, len(stream), 11):
                part = stream[first : first + 11].encode()
                writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    @contextlib.contextmanager
    def running(self) -> Iterator[FakeServer]:
        loop, ready = asyncio.new_event_loop(), threading.Event()

        async def start() -> asyncio.Server:
            server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            ready.set()
            return server

        def serve() -> None:
            server = loop.run_until_complete(start())
            loop.run_forever()
            server.close()
            loop.run_until_complete(server.wait_closed())
            loop.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            assert ready.wait(10)
            yield self
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)


def a_load(http_load: Any, url: str, **more: Any) -> Any:
    settings = {"prompt_tokens": 3, "new_tokens": 4, "vocab_size": 50} | more
    return http_load.Load(url=url, model="m", **settings)


def test_closed_loop_counts_events_tokens_and_prompts(load: Any) -> None:
    http_load = load("http_load")
    with FakeServer(tokens=4).running() as server:
        outcome = http_load.run_load(a_load(http_load, server.url, requests=7, clients=3))
    assert (outcome.requests, outcome.failed, outcome.completion_tokens) == (7, 0, 28)
    prompts = [body["prompt"] for body in server.bodies]
    assert len({tuple(prompt) for prompt in prompts}) == 7  # no server can answer from a cache
    assert all(len(prompt) == 3 and 0 <= min(prompt) <= max(prompt) < 50 for prompt in prompts)
    assert all(body["max_tokens"] == 4 and body["stream"] for body in server.bodies)


def test_open_loop_sends_all_and_counts_the_failed(load: Any) -> None:
    http_load = load("http_load")
    with FakeServer(tokens=2, fail_from=4).running() as server:
        outcome = http_load.run_load(a_load(http_load, server.url, requests=6, rate=500.0))
    assert (outcome.requests, outcome.failed, outcome.completion_tokens) == (6, 2, 8)
    assert "503" in outcome.first_error and "full" in outcome.first_error


def test_overload_tells_the_served_from_the_refused(load: Any) -> None:
    overload = load("overload")
    http_load = load("http_load")
    with FakeServer(tokens=2, fail_from=4 + 6 + 3).running() as server:  # 4 are not counted
        shared = a_load(http_load, server.url, requests=6, new_tokens=2)
        capacity, over = overload.measure(shared, 2, (2.0,))
    assert (capacity.done, capacity.refused, capacity.goodput_ratio) == (6, 0, 1)
    assert (over.done, over.refused, over.broken, over.requests) == (3, 3, 0, 6)
    assert over.rate == pytest.approx(2 * capacity.goodput_tok_s / 2)
    assert 0 < over.ttft_p50_ms <= over.ttft_p95_ms and over.refusal_p95_ms > 0
    with FakeServer(tokens=2, fail_from=0).running() as server:
        shared = a_load(http_load, server.url, requests=2)
        with pytest.raises(ValueError, match="nothing was served"):
            overload.measure(shared, 1, (1.0,))


def test_load_goes_to_this_machine_alone(load: Any) -> None:
    http_load = load("http_load")
    with pytest.raises(ValueError, match="loopback"):
        http_load.run_load(a_load(http_load, "http://example.org:80", requests=1, clients=1))


def test_summary_takes_ttft_from_when_a_request_was_due(load: Any) -> None:
    http_load = load("http_load")
    traces = [
        http_load.Trace(due=10.0, arrivals=[10.5, 10.6, 10.9], end=11.0, completion_tokens=3),
        http_load.Trace(due=10.2, arrivals=[12.2], end=12.2, completion_tokens=1),
        http_load.Trace(due=10.3, end=10.4, error="refused"),
    ]
    outcome = http_load.summary(a_load(http_load, "", requests=3, clients=1), traces)
    assert (outcome.failed, outcome.completion_tokens) == (1, 4)
    assert outcome.seconds == pytest.approx(2.2) and outcome.tok_s == pytest.approx(4 / 2.2)
    assert outcome.ttft_p50_ms == pytest.approx(1250)
    assert outcome.gap_p50_ms == pytest.approx(200)


def test_percentiles_are_numpys(load: Any, rng: np.random.Generator) -> None:
    values = rng.exponential(size=37)
    for percent in (50, 95):
        found = load("http_load").percentile(values.tolist(), percent)
        assert found == pytest.approx(np.percentile(values, percent))
