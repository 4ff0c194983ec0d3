"""Load on an OpenAI-compatible server of this machine: streamed completions, each with its arrival times.

Speaks HTTP/1.1 over asyncio streams, since a general client's cost a chunk would be measured along with the
server. Standard library only. Loopback only.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from multiprocessing import get_context
from typing import Any
from urllib.parse import urlsplit

LOOPBACK = {"127.0.0.1", "localhost", "::1"}


@dataclass(frozen=True, slots=True)
class Load:
    """What to send: `clients` in a closed loop, or `rate` requests a second whatever comes back."""

    url: str
    model: str
    prompt_tokens: int
    new_tokens: int
    vocab_size: int
    requests: int  # in all
    clients: int = 0
    rate: float = 0.0
    timeout: float = 300.0  # seconds of one request
    processes: int = 1
    seed: int = 0


@dataclass(slots=True)
class Trace:
    """One request. Times are of the machine's monotonic clock; `due` is when it should have been sent."""

    due: float
    arrivals: list[float] = field(default_factory=list)  # of events that carry text
    end: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """All requests of one load. Milliseconds are over requests (TTFT) and over events (gaps)."""

    clients: int
    rate: float
    requests: int
    failed: int
    seconds: float
    completion_tokens: int
    tok_s: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    gap_p50_ms: float
    gap_p95_ms: float
    first_error: str | None


def run_load(load: Load) -> Outcome:
    """Send the load from `processes` processes and sum up. ValueError for a host that is not this machine."""
    return summary(load, run_traces(load))


def run_traces(load: Load) -> list[Trace]:
    """As `run_load`, each request by itself."""
    if urlsplit(load.url).hostname not in LOOPBACK:
        raise ValueError(f"{load.url} is not on this machine; load is sent to loopback only")
    start = time.monotonic()
    if load.processes == 1:
        return _run_share(load, start)
    context = get_context("spawn")
    with ProcessPoolExecutor(load.processes, mp_context=context) as pool:
        list(pool.map(abs, range(load.processes)))  # so that no process starts under load
        start = time.monotonic() + 0.05
        shares = list(_shares(load))
        found = pool.map(_run_share, shares, [start] * len(shares))
        return [trace for part in found for trace in part]


def summary(load: Load, traces: Sequence[Trace]) -> Outcome:
    """Figures of finished requests; failed ones are counted, and otherwise left out."""
    good = [trace for trace in traces if trace.error is None]
    firsts = [1e3 * (trace.arrivals[0] - trace.due) for trace in good if trace.arrivals]
    gaps = [1e3 * (b - a) for trace in good for a, b in pairwise(trace.arrivals)]
    seconds = max((t.end for t in good), default=0.0) - min((t.due for t in good), default=0.0)
    tokens = sum(trace.completion_tokens for trace in good)
    errors = [trace.error for trace in traces if trace.error is not None]
    return Outcome(
        clients=load.clients,
        rate=load.rate,
        requests=len(traces),
        failed=len(errors),
        seconds=seconds,
        completion_tokens=tokens,
        tok_s=tokens / seconds if seconds else 0.0,
        ttft_p50_ms=percentile(firsts, 50),
        ttft_p95_ms=percentile(firsts, 95),
        gap_p50_ms=percentile(gaps, 50),
        gap_p95_ms=percentile(gaps, 95),
        first_error=errors[0] if errors else None,
    )


def percentile(values: Sequence[float], percent: int) -> float:
    """The percentile, between neighbours where it falls between; 0 of nothing."""
    if len(values) < 2:
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _shares(load: Load) -> Iterator[Load]:
    """The load cut into one part a process, none of them empty."""
    count = load.processes
    for index in range(count):
        clients = (load.clients + index) // count
        requests = (load.requests + index) // count
        if requests and (clients or load.rate):
            yield replace(
                load,
                clients=clients,
                requests=requests,
                rate=load.rate / count,
                seed=load.seed * count + index,
            )


def _run_share(load: Load, start: float) -> list[Trace]:
    time.sleep(max(0.0, start - time.monotonic()))
    return asyncio.run(_open_loop(load) if load.rate else _closed_loop(load))


async def _closed_loop(load: Load) -> list[Trace]:
    """Each client sends its next request when the last one has ended."""
    rng = random.Random(load.seed)
    bodies = iter([_body(load, rng) for _ in range(load.requests)])
    traces: list[Trace] = []

    async def client() -> None:
        for body in bodies:
            traces.append(await _send(load, body, time.monotonic()))

    await asyncio.gather(*(client() for _ in range(load.clients)))
    return traces


async def _open_loop(load: Load) -> list[Trace]:
    """Requests at random times, `rate` a second on average."""
    rng = random.Random(load.seed)
    bodies = [_body(load, rng) for _ in range(load.requests)]
    due = time.monotonic()
    tasks = []
    for body in bodies:
        due += rng.expovariate(load.rate)
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        tasks.append(asyncio.create_task(_send(load, body, due)))
    return await asyncio.gather(*tasks)


def _body(load: Load, rng: random.Random) -> bytes:
    """A greedy completion of random token ids, to the full count and without any cache of the prompt."""
    low = min(300, load.vocab_size // 2)  # past byte and control tokens, in most vocabularies
    return json.dumps(
        {
            "model": load.model,
            "prompt": [rng.randrange(low, load.vocab_size) for _ in range(load.prompt_tokens)],
            "max_tokens": load.new_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()


async def _send(load: Load, body: bytes, due: float) -> Trace:
    trace = Trace(due)
    try:
        await asyncio.wait_for(_exchange(load, body, trace), load.timeout)
        if trace.completion_tokens == 0:
            trace.error = "the stream ended without usage"
    except asyncio.TimeoutError:
        trace.error = f"no end within {load.timeout:g} s"
    except (OSError, EOFError, ValueError, KeyError) as error:
        trace.error = f"{type(error).__name__}: {error}"
    trace.end = time.monotonic()
    return trace


async def _exchange(load: Load, body: bytes, trace: Trace) -> None:
    parts = urlsplit(load.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    try:
        writer.write(
            f"POST {parts.path.rstrip('/')}/v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n".encode()
            + body
        )
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            rest = await reader.read(400)
            raise ValueError(f"{head.splitlines()[0].decode()}: {rest.decode(errors='replace')}")
        if b"transfer-encoding: chunked" not in head:
            raise ValueError("the answer is not chunked, so it is no stream")
        pending = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            pending += (await reader.readexactly(size + 2))[:-2]
            now = time.monotonic()
            *events, pending = pending.replace(b"\r\n", b"\n").split(b"\n\n")
            for event in events:
                _note(event, now, trace)
    finally:
        writer.close()


def _note(event: bytes, now: float, trace: Trace) -> None:
    """One server-sent event: text, usage, an error, or nothing of interest."""
    if not event.startswith(b"data: {"):
        return
    data: dict[str, Any] = json.loads(event[6:])
    if "error" in data:
        raise ValueError(str(data["error"]))
    if any(choice.get("text") for choice in data.get("choices", ())):
        trace.arrivals.append(now)
    if usage := data.get("usage"):
        trace.prompt_tokens = usage["prompt_tokens"]
        trace.completion_tokens = usage["completion_tokens"]
