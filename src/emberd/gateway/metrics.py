"""Metrics for Prometheus: counters and histograms of what happened, gauges read when they are asked for.

Every name is documented in docs/operations.md. Knows models and workers, no API.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, Callable, Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from .. import __version__
from ..inspection import BatchStatus
from ..models.loaded import LoadedModel, Worker
from ..protocol import EmbedRequest, GenerateRequest, SequenceUpdate, StepMessage, WorkerInfo
from .generate import Usage

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series beside each counter, which nobody reads

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5, 5)


class Metrics:
    """All metrics of one daemon, in a registry of their own."""

    def __init__(
        self,
        loaded: Callable[[], Iterable[LoadedModel]],
        num_taken: Callable[[], int],
        queue_limit: int,
    ) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(_State(loaded, num_taken, queue_limit))
        self._requests = Counter(
            "emberd_http_requests", "Answers.", ("route", "method", "status"), registry=registry
        )
        self._request_seconds = Histogram(
            "emberd_http_request_seconds",
            "From a request's headers to the end of its answer.",
            ("route",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._errors = Counter(
            "emberd_errors", "Errors told to callers, by kind.", ("error",), registry=registry
        )
        self._prompt_tokens = Counter(
            "emberd_prompt_tokens", "Prompt tokens, cached ones too.", ("model",), registry=registry
        )
        self._cached_tokens = Counter(
            "emberd_cached_prompt_tokens",
            "Prompt tokens that were not computed again.",
            ("model",),
            registry=registry,
        )
        self._completion_tokens = Counter(
            "emberd_completion_tokens", "Tokens generated.", ("model",), registry=registry
        )
        self._drafted_tokens = Counter(
            "emberd_drafted_tokens", "Tokens guessed.", ("model",), registry=registry
        )
        self._accepted_tokens = Counter(
            "emberd_accepted_tokens", "Guesses that were right.", ("model",), registry=registry
        )
        self._sequences = Counter(
            "emberd_sequences",
            "Sequences that ended, by finish reason, or error or cancelled.",
            ("model", "end"),
            registry=registry,
        )
        self._first_token = Histogram(
            "emberd_time_to_first_token_seconds",
            "From a sequence's way to the worker to its first token, waiting included.",
            ("model",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._gaps = _Gaps()
        registry.register(self._gaps)

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        self._requests.labels(route, method, str(status)).inc()
        self._request_seconds.labels(route).observe(seconds)

    def failed(self, error: BaseException) -> None:
        self._errors.labels(type(error).__name__).inc()

    def replied(self, model: str, usage: Usage, endings: Iterable[str]) -> None:
        self._prompt_tokens.labels(model).inc(usage.num_prompt_tokens)
        self._cached_tokens.labels(model).inc(usage.num_cached_tokens)
        self._completion_tokens.labels(model).inc(usage.num_completion_tokens)
        self._drafted_tokens.labels(model).inc(usage.num_drafted_tokens)
        self._accepted_tokens.labels(model).inc(usage.num_accepted_tokens)
        for end in endings:
            self._sequences.labels(model, end).inc()

    def metered(self, worker: Worker, model: str) -> Worker:
        """`worker`, with the times of its tokens and the ends of its embeddings counted."""
        return _MeteredWorker(
            worker,
            self._first_token.labels(model).observe,
            self._gaps.of(model),
            lambda end: self._sequences.labels(model, end).inc(),
        )

    def page(self, accept: str) -> tuple[bytes, str]:
        """What a scraper gets that accepts `accept`, and its content type."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self.registry), content_type


class _MeteredWorker:
    def __init__(
        self,
        worker: Worker,
        first_token: Callable[[float], None],
        gaps: _GapCounts,
        embedded: Callable[[str], None],
    ) -> None:
        self._worker = worker
        self._first_token = first_token
        self._gaps = gaps
        self._embedded = embedded

    @property
    def info(self) -> WorkerInfo:
        return self._worker.info

    @property
    def stats(self) -> StepMessage:
        return self._worker.stats

    @property
    def alive(self) -> bool:
        return self._worker.alive

    async def inspect(self, whole: bool = True) -> BatchStatus:
        return await self._worker.inspect(whole)

    async def preempt(self, request_id: str | None) -> str | None:
        return await self._worker.preempt(request_id)

    async def close(self) -> None:
        await self._worker.close()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[SequenceUpdate, None]:
        started, last = time.perf_counter(), 0.0
        async with contextlib.aclosing(self._worker.generate(request)) as updates:
            async for update in updates:
                if num_tokens := len(update.token_ids):
                    now = time.perf_counter()
                    if last:
                        # Tokens that came in one message: their gaps are not known apart.
                        self._gaps.add((now - last) / num_tokens, num_tokens)
                    else:
                        self._first_token(now - started)
                    last = now
                yield update

    async def embed(self, request: EmbedRequest) -> bytes:
        end = "cancelled"
        try:
            embedding = await self._worker.embed(request)
            end = "stop"
            return embedding
        except Exception:
            end = "error"
            raise
        finally:
            self._embedded(end)


class _GapCounts:
    """Of one model, by bucket. Counted once a token, where the library's histogram would take 3 µs each."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_GAPS) + 1)
        self.seconds = 0.0

    def add(self, gap: float, num_tokens: int) -> None:
        self.counts[bisect.bisect_left(_GAPS, gap)] += num_tokens
        self.seconds += gap * num_tokens


class _Gaps(Collector):
    def __init__(self) -> None:
        self._by_model: dict[str, _GapCounts] = {}

    def of(self, model: str) -> _GapCounts:
        return self._by_model.setdefault(model, _GapCounts())

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(
            "emberd_token_gap_seconds", "Between a sequence's tokens.", labels=("model",)
        )
        bounds = [*(f"{float(bound)}" for bound in _GAPS), "+Inf"]
        for model, gaps in self._by_model.items():
            totals = itertools.accumulate(gaps.counts)
            family.add_metric((model,), list(zip(bounds, totals, strict=True)), gaps.seconds)
        yield family


class _State(Collector):
    """What holds at the moment of asking."""

    def __init__(
        self,
        loaded: Callable[[], Iterable[LoadedModel]],
        num_taken: Callable[[], int],
        queue_limit: int,
    ) -> None:
        self._loaded = loaded
        self._num_taken = num_taken
        self._queue_limit = queue_limit

    def describe(self) -> Iterable[Metric]:
        return ()  # else the registry would collect to learn the names

    def collect(self) -> Iterable[Metric]:
        yield InfoMetricFamily("emberd_build", "This daemon.", {"version": __version__})
        yield _gauge(
            "queue_sequences", "Sequences that run or wait, on all models.", self._num_taken()
        )
        yield _gauge("queue_limit", "How many may.", self._queue_limit)
        models = list(self._loaded())
        yield _gauge("models_loaded", "Models in memory.", len(models))
        yield _by_model(models, "sequences_running", "In the batch.", lambda w: w.stats.num_running)
        yield _by_model(
            models, "sequences_waiting", "Waiting for room.", lambda w: w.stats.num_waiting
        )
        yield _by_model(models, "kv_blocks", "KV blocks of the pool.", lambda w: w.info.num_blocks)
        yield _by_model(
            models, "kv_blocks_free", "KV blocks not in use.", lambda w: w.stats.num_free_blocks
        )
        yield _by_model(
            models, "kv_block_tokens", "Tokens of a KV block.", lambda w: w.info.block_size
        )
        yield from _tiers(models)
        yield _by_model(
            models, "model_weight_bytes", "Memory of weights.", lambda w: w.info.weight_bytes
        )
        yield _by_model(
            models, "model_kv_bytes", "Memory of the KV pool.", lambda w: w.info.kv_bytes
        )
        yield _by_model(
            models, "model_load_seconds", "How long loading took.", lambda w: w.info.load_seconds
        )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"emberd_{name}", text, value)


def _tiers(models: Iterable[LoadedModel]) -> Iterable[Metric]:
    """Of models that have tiers: what is there now, and what was moved."""
    kept = GaugeMetricFamily(
        "emberd_kv_tier_bytes", "KV blocks kept below the pool.", labels=("model", "tier")
    )
    moved = CounterMetricFamily(
        "emberd_kv_tier_blocks", "KV blocks moved.", labels=("model", "move")
    )
    for model in models:
        counts = model.worker.stats.tiers
        if counts is not None:
            kept.add_metric((model.name, "ram"), counts.ram_bytes)
            kept.add_metric((model.name, "disk"), counts.disk_bytes)
            for move in ("promoted", "spilled", "lost"):
                moved.add_metric((model.name, move), getattr(counts, move))
    return kept, moved


def _by_model(
    models: Iterable[LoadedModel], name: str, text: str, value: Callable[[Worker], float]
) -> Metric:
    family = GaugeMetricFamily(f"emberd_{name}", text, labels=("model",))
    for model in models:
        family.add_metric((model.name,), value(model.worker))
    return family
