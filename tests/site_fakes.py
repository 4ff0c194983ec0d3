"""A daemon for gateway tests: real application, store, tokenizer and template; only the worker is a fake.

The fake plays a chain model's script (see tiny_gguf) token by token, at the pace that a test sets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
import uvicorn
from fastapi import FastAPI
from fastapi.routing import APIRoute
from numpy.typing import NDArray
from starlette.routing import Route

from emberd.config import Config
from emberd.errors import ModelLoadError, WorkerDiedError
from emberd.gateway.app import create_app
from emberd.gateway.listen import open_sockets
from emberd.gateway.server import Server
from emberd.gguf.reader import GGUFFile
from emberd.inspection import BatchStatus, SequenceStatus
from emberd.models.manager import ModelManager
from emberd.models.store import ModelStore
from emberd.protocol import (
    EmbedRequest,
    GenerateRequest,
    SamplingParams,
    SequenceUpdate,
    StepMessage,
    TokenLogprobs,
    WorkerInfo,
    WorkerOptions,
)
from tiny_gguf import script_model

T = TypeVar("T")
CONTEXT = 256
SCRIPTS: dict[str, Sequence[str | bytes | int]] = {
    "a": ["Hello", " world"],
    "b": ["A B", " C D", " E F", " G"],
    "c": [b"\xf0", b"\x9f", b"\x99", b"\x82", "!"],
    "e": [" on", " and"],
}
"""What the model answers to a conversation that ends in the letter; "e" goes on for ever."""


class Brief:
    """asyncio for uvicorn, whose pauses of 0.1 s at each end of a server are most of what a test of one takes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 20)


uvicorn.server.asyncio = Brief()  # type: ignore[assignment]


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine; nothing here takes long."""
    return asyncio.run(asyncio.wait_for(work, 20))


def write_model(path: Path, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return script_model(path, SCRIPTS, endless="e", context_length=CONTEXT, ffn=64, **options)


@dataclass(eq=False)
class FakeWorker:
    """What a worker does, seen from the gateway."""

    options: WorkerOptions
    info: WorkerInfo
    logits: NDArray[np.float32] | None  # [next, last]
    delay: float = 0.0  # seconds a token
    alive: bool = True
    on_death: Any = None
    lost_device: str | None = None
    requests: list[GenerateRequest] = field(default_factory=list)
    embeds: list[EmbedRequest] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    num_tokens: int = 0  # generated, of all requests
    cancelled: list[str] = field(default_factory=list)
    prefilled: asyncio.Event = field(default_factory=asyncio.Event)  # cleared: prompts are read

    @property
    def stats(self) -> StepMessage:
        return StepMessage((), len(self.running), 0, self.info.num_blocks - len(self.running))

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[SequenceUpdate, None]:
        self.requests.append(request)
        self.running.add(request.request_id)
        last, count, finished = request.token_ids[-1], 0, False
        params = request.params
        try:
            await self.prefilled.wait()
            if (num_top := request.prompt_logprobs) is not None:
                told = [self.told(a, b, num_top) for a, b in pairwise(request.token_ids)]
                finished = params.max_tokens == 0
                yield SequenceUpdate(
                    request.request_id,
                    (),
                    "length" if finished else None,
                    prompt_logprobs=tuple(told),
                )
            if params.max_tokens == 0 and not finished:
                finished = True
                yield SequenceUpdate(request.request_id, (), "length")
            while not finished:
                await asyncio.sleep(self.delay)
                if not self.alive:
                    raise WorkerDiedError("the worker of 'fake' ended with code -9")
                before, last, count = last, self.chosen(last, params), count + 1
                self.num_tokens += 1
                stopped = last in params.stop_token_ids and not params.ignore_eos
                reason = "stop" if stopped else "length" if count >= params.max_tokens else None
                finished = reason is not None
                told = []
                if params.num_logprobs is not None:
                    told = [self.told(before, last, params.num_logprobs)]
                yield SequenceUpdate(
                    request.request_id, (last,), reason, num_cached_tokens=1, logprobs=tuple(told)
                )
        finally:
            self.running.discard(request.request_id)
            if not finished:
                self.cancelled.append(request.request_id)

    def chosen(self, last: int, params: SamplingParams) -> int:
        """The likeliest one, whatever the temperature."""
        assert self.logits is not None
        row = self.logits[:, last].copy()
        for token_id, bias in params.logit_bias:
            row[token_id] += bias
        return int(row.argmax())

    def told(self, last: int, following: int, num_top: int) -> TokenLogprobs:
        assert self.logits is not None
        row = self.logits[:, last].astype(np.float64)
        row -= np.log(np.exp(row - row.max()).sum()) + row.max()
        order = np.argsort(-row, kind="stable")[:num_top].tolist()
        top = tuple((token_id, float(row[token_id])) for token_id in order)
        return TokenLogprobs(following, float(row[following]), top)

    async def embed(self, request: EmbedRequest) -> bytes:
        self.embeds.append(request)
        self.running.add(request.request_id)
        finished = False
        try:
            await self.prefilled.wait()
            await asyncio.sleep(self.delay)
            if not self.alive:
                raise WorkerDiedError("the worker of 'fake' ended with code -9")
            finished = True
            return fake_embedding(request).astype("<f4").tobytes()
        finally:
            self.running.discard(request.request_id)
            if not finished:
                self.cancelled.append(request.request_id)

    async def preempt(self, request_id: str | None) -> str | None:
        found = [name for name in sorted(self.running) if request_id in (None, name)]
        return found[-1] if found else None

    async def inspect(self, whole: bool = True) -> BatchStatus:
        return BatchStatus(
            tuple(
                SequenceStatus(name, "decode", None, 4, 4, 0, 1, 1, 0)
                for name in sorted(self.running)
            )
        )

    async def close(self) -> None:
        self.alive = False


def fake_embedding(request: EmbedRequest) -> NDArray[np.float32]:
    """A vector that tells of the ids, their order and the pooling."""
    ids = request.token_ids
    return np.array(
        [len(ids), ids[0], ids[-1], -sum(ids) / 3, len(request.pooling)], dtype=np.float32
    )


@dataclass
class Site:
    """One daemon. `workers` are all that were ever started, in order."""

    config: Config
    workers: list[FakeWorker] = field(default_factory=list)
    load_error: Exception | None = None
    load_gate: asyncio.Event | None = None  # loads wait for it
    starts: list[str] = field(default_factory=list)  # file stems of all loads that began
    bad: set[str] = field(default_factory=set)  # file stems whose loads fail
    worker_bytes: tuple[int, int] = (1000, 2000)  # weights and KV that a worker takes
    delay: float = 0.0
    prefill: bool = True  # False: prompts are never done until a worker's `prefilled` is set

    def __post_init__(self) -> None:
        self.store = ModelStore(self.config.models_dir, self.config.cache_dir)
        self.manager = ModelManager(self.config, self.store, self._start)
        self.app = create_app(self.config, self.manager)
        self.service = self.app.state.service

    async def _start(self, options: WorkerOptions) -> FakeWorker:
        stem = Path(options.model_path).stem
        self.starts.append(stem)
        if self.load_gate is not None:
            await self.load_gate.wait()
        if stem in self.bad:
            raise refused()
        if self.load_error is not None:
            raise self.load_error
        with GGUFFile(options.model_path) as file:
            logits = None
            if info := file.tensors.get("output.weight"):
                logits = file.data(info).view(np.float32).reshape(info.shape)
                logits = logits * np.float32(np.sqrt(info.shape[1]))
        context = options.context_length or CONTEXT
        blocks = 0 if logits is None else context // 16
        facts = WorkerInfo(
            *("fake", "cpu", context, blocks, 16, 32, *self.worker_bytes, 0.1),
            tier="cpu",
            max_batch_tokens=64,
        )
        worker = FakeWorker(options, facts, logits, self.delay)
        if self.prefill:
            worker.prefilled.set()
        self.workers.append(worker)
        return worker

    @contextlib.asynccontextmanager
    async def client(self, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
        """A client without sockets; whole answers only."""
        transport = httpx.ASGITransport(app=self.app)
        try:
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost", headers=headers
            ) as client:
                yield client
        finally:
            await self.manager.close()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[tuple[str, Server]]:
        """A server on a free port, drained at the end."""
        sockets = open_sockets("127.0.0.1", 0)
        url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        started = asyncio.Event()
        settings = uvicorn.Config(
            self.app, log_config=None, lifespan="on", timeout_graceful_shutdown=1
        )
        server = Server(settings, self.service, started.set)
        task = asyncio.ensure_future(server.serve(sockets))
        await started.wait()
        try:
            yield url, server
        finally:
            server.leave()
            await task

    @contextlib.asynccontextmanager
    async def http(self, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
        """A client of a server on a free port; without TLS, whose certificates take longer to read than most tests."""
        async with (
            self.listening() as (url, _),
            httpx.AsyncClient(base_url=url, verify=False, trust_env=False, **options) as client,
        ):
            yield client

    async def until(self, condition: Any) -> None:
        """Wait until `condition()` holds; the test's own time limit ends it."""
        while not condition():
            await asyncio.sleep(0.005)


def routes(app: FastAPI) -> set[tuple[str, str]]:
    """Every method and path that the application answers, parameters filled in."""
    found = set()
    for route in app.routes:
        assert isinstance(route, Route | APIRoute), route
        path = route.path.replace("{name:path}", "a/b:c").replace("{digest}", "sha256:0")
        path = path.replace("{", "").replace("}", "")
        found |= {(method, path) for method in route.methods or ()}
    return found


def refused() -> Exception:
    return ModelLoadError("not enough memory: the model needs 8.0 GiB and 2.0 GiB are free")
