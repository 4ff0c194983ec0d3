"""The gateway's side of a worker: start it, send requests, hand its updates out, tell of its death.

Lives on one event loop, without threads. It knows nothing of engines or devices.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import signal
import time
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

from emberd.errors import (
    ConfigError,
    DeviceError,
    EmberdError,
    HeadsError,
    ModelFileError,
    ModelLoadError,
    WorkerDiedError,
    WorkerGoneError,
)
from emberd.estimate import MemoryEstimate, MemoryQuestion
from emberd.inspection import BatchStatus, Inspect, Inspected, Preempt, Preempted
from emberd.protocol import (
    Cancel,
    EmbedRequest,
    GenerateRequest,
    SequenceUpdate,
    StepMessage,
    TokenTable,
    WorkerInfo,
    WorkerOptions,
)

from .channel import DeviceLost, LoadFailure, LoadProgress, encode, receive
from .spawn import WORKER_COMMAND, spawn

REAP_SECONDS = 5.0
GONE_SECONDS = 1.0  # a worker without work that ends so soon behind a request did not end by it
LOAD_ERRORS = {
    kind.__name__: kind
    for kind in (ModelFileError, ModelLoadError, DeviceError, HeadsError, ConfigError)
}

log = logging.getLogger("emberd.worker")


class WorkerClient:
    """One running worker. Made by `start`; ends by `close` or by the worker's death.

    `info` is what the worker serves, `stats` the last message's counts of sequences and blocks.
    `token_table` is to be set by who has the vocabulary: it is called, on a thread, before the first request
    with a grammar.
    """

    info: WorkerInfo
    stats: StepMessage

    def __init__(
        self,
        options: WorkerOptions,
        process: Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.options = options
        self.on_death: Callable[[WorkerClient], None] | None = None
        self.lost_device: str | None = None  # the reason, where the worker ended by that
        self.token_table: Callable[[], TokenTable] | None = None
        self._process = process
        self._reader = reader
        self._writer = writer
        self._queues: dict[str, asyncio.Queue[SequenceUpdate | None]] = {}
        self._asked: dict[int, asyncio.Future[object]] = {}
        self._numbers = itertools.count()
        self._table_sent: asyncio.Task[None] | None = None
        self._alive = True
        self._closing = False
        self._reap_seconds = REAP_SECONDS
        self._end: asyncio.Task[None]

    @classmethod
    async def start(
        cls,
        options: WorkerOptions,
        *,
        on_progress: Callable[[float], None] | None = None,
        on_death: Callable[[WorkerClient], None] | None = None,
        command: Sequence[str] = WORKER_COMMAND,
    ) -> WorkerClient:
        """Start a process and wait until its model is loaded. Cancelling ends the process.

        `on_progress` gets the loaded fraction; `on_death` is called once if the worker ends by
        itself later. Raises what the load raised (ModelFileError, DeviceError, ...), or
        ModelLoadError when the process ended without a word.
        """
        process, reader, writer = await spawn(command)
        worker = cls(options, process, reader, writer)
        try:
            await worker._load(on_progress)
        except BaseException:
            await worker._reap(0)
            raise
        worker.on_death = on_death
        worker._end = asyncio.create_task(worker._read())
        return worker

    @classmethod
    async def estimate(
        cls, question: MemoryQuestion, *, command: Sequence[str] = WORKER_COMMAND
    ) -> MemoryEstimate:
        """What a load would take, told by a process that looks at the file and the device, and ends.

        Raises ModelFileError, DeviceError, or ModelLoadError when the process ended without a word.
        """
        worker = cls(question.options, *await spawn(command))
        try:
            answer = await worker._ask(question)
        finally:
            await worker._reap(0)
        assert isinstance(answer, MemoryEstimate)
        return answer

    @property
    def alive(self) -> bool:
        return self._alive

    @property
    def pid(self) -> int:
        return self._process.pid

    async def embed(self, request: EmbedRequest) -> bytes:
        """The pooled state of a text, as little-endian float32. Cancelling the task cancels the request.

        Raises WorkerDiedError when the worker ends first, or refuses.
        """
        async with contextlib.aclosing(self._updates(request)) as updates:
            async for update in updates:
                if update.embedding is not None:
                    return update.embedding
                if update.finish_reason is not None:
                    reason = update.error or f"the worker ended this text: {update.finish_reason}"
                    raise WorkerDiedError(reason)
        raise WorkerDiedError("the worker ended this text without a reason")

    async def inspect(self, whole: bool = True) -> BatchStatus:
        """What waits and runs between two steps; `whole`: blocks and steps too. Raises WorkerDiedError."""
        answer = await self._answer(lambda number: Inspect(number, whole))
        assert isinstance(answer, Inspected)
        return answer.status

    async def preempt(self, request_id: str | None) -> str | None:
        """Put a running sequence back to those that wait; None: the one that would go first. Which it was; None: it
        does not run. Raises WorkerDiedError."""
        answer = await self._answer(lambda number: Preempt(number, request_id))
        assert isinstance(answer, Preempted)
        return answer.request_id

    async def _answer(self, question: Callable[[int], object]) -> object:
        if not self._alive:
            raise self._died()
        number = next(self._numbers)
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            self._send(question(number))
            return await answer
        finally:
            del self._asked[number]

    def generate(self, request: GenerateRequest) -> AsyncGenerator[SequenceUpdate, None]:
        """The updates of one request, the last with a finish reason; what has piled up comes as one.

        Closing the iterator early (`aclose`, or cancelling the task in it) cancels the sequence.
        Raises WorkerDiedError when the worker ends first.
        """
        return self._updates(request)

    async def _updates(
        self, request: GenerateRequest | EmbedRequest
    ) -> AsyncGenerator[SequenceUpdate, None]:
        if not self._alive:
            await asyncio.shield(self._end)
            raise self._died(gone=True)
        sent_at = time.monotonic() if not self._queues else 0.0
        updates: asyncio.Queue[SequenceUpdate | None] = asyncio.Queue()
        self._queues[request.request_id] = updates
        finished = sent = False
        try:
            if isinstance(request, GenerateRequest) and request.params.grammar is not None:
                await self._send_table()
            self._send(request)
            sent = True
            while not finished:
                pending = [await updates.get()]
                while not updates.empty():
                    pending.append(updates.get_nowait())
                received = [update for update in pending if update is not None]
                if received:
                    update = _merge(received)
                    finished, sent_at = update.finish_reason is not None, 0.0
                    yield update
                if not finished and pending[-1] is None:
                    raise self._died(gone=time.monotonic() - sent_at < GONE_SECONDS)
        finally:
            del self._queues[request.request_id]
            if sent and not finished and self._alive:
                self._send(Cancel(request.request_id))

    async def close(self, grace: float = REAP_SECONDS) -> None:
        """End the process: ask, and after `grace` seconds kill. Open iterators raise WorkerDiedError."""
        self._closing = True
        self._alive = False
        self._reap_seconds = grace
        self._writer.close()
        await asyncio.shield(self._end)

    async def _send_table(self) -> None:
        """Send the vocabulary once; all who come meanwhile wait for that."""
        if self._table_sent is None and self.token_table is not None:
            self._table_sent = asyncio.create_task(self._make_table(self.token_table))
        if self._table_sent is not None:
            await asyncio.shield(self._table_sent)
        if not self._alive:
            raise self._died()

    async def _make_table(self, make: Callable[[], TokenTable]) -> None:
        try:
            table = await asyncio.to_thread(lambda: encode(make()))
        except BaseException:
            self._table_sent = None
            raise
        self._writer.write(table)

    def _send(self, message: object) -> None:
        self._writer.write(encode(message))

    async def _load(self, on_progress: Callable[[float], None] | None) -> None:
        message = await self._ask(self.options, on_progress)
        assert isinstance(message, WorkerInfo)
        self.info = message
        self.stats = StepMessage((), num_free_blocks=message.num_blocks)

    async def _ask(
        self, question: object, on_progress: Callable[[float], None] | None = None
    ) -> object:
        """The worker's answer to its first message. Raises what it failed with."""
        self._send(question)
        while True:
            try:
                message = await receive(self._reader)
            except EOFError:
                await self._reap(REAP_SECONDS)
                raise ModelLoadError(
                    f"loading {self._model} failed: its worker ended ({self._ending()})"
                ) from None
            if isinstance(message, LoadFailure):
                raise _load_error(message)
            if isinstance(message, DeviceLost):
                raise DeviceError(f"loading {self._model} failed: {message.reason}")
            if not isinstance(message, LoadProgress):
                return message
            if on_progress is not None:
                on_progress(message.fraction)

    async def _read(self) -> None:
        """Hand out updates until the channel ends, then see the process end."""
        try:
            while True:
                self._hand_out(await receive(self._reader))
        except EOFError:
            await self._reap(self._reap_seconds)
            self._see_abort()
        except Exception:
            log.exception("the worker of %s sent what cannot be read", self._model)
            await self._reap(0)
        for updates in self._queues.values():
            updates.put_nowait(None)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(self._died())
        if not self._closing and self.on_death is not None:
            self.on_death(self)

    def _hand_out(self, message: object) -> None:
        if isinstance(message, Inspected | Preempted):
            if (answer := self._asked.get(message.number)) is not None and not answer.done():
                answer.set_result(message)
            return
        if isinstance(message, DeviceLost):
            self.lost_device = message.reason
            return
        assert isinstance(message, StepMessage)
        self.stats = message
        for update in message.updates:
            updates = self._queues.get(update.request_id)
            if updates is not None:  # else its iterator was closed
                updates.put_nowait(update)

    def _see_abort(self) -> None:
        """A GPU library that finds its device lost aborts the process, which then says nothing."""
        aborted = self._process.returncode == -signal.SIGABRT
        if aborted and self.info.device_kind == "gpu" and self.lost_device is None:
            self.lost_device = (
                f"the driver of {self.info.device} ended its worker ({self._ending()})"
            )

    async def _reap(self, grace: float) -> None:
        """Close the channel and wait for the process to end; kill it after `grace` seconds."""
        self._alive = False
        self._writer.close()
        try:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._process.wait(), grace)
        finally:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
        await self._process.wait()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    @property
    def _model(self) -> str:
        return Path(self.options.model_path).name

    def _died(self, gone: bool = False) -> WorkerDiedError:
        if self._closing:
            return WorkerDiedError(f"the model {self._model} was unloaded")
        if self.lost_device is not None:
            return WorkerDiedError(f"{self._model} stopped: {self.lost_device}; it is loaded again")
        kind = WorkerGoneError if gone and not self.stats.num_running else WorkerDiedError
        return kind(
            f"the worker of {self._model} ended ({self._ending()}); the next request loads it again"
        )

    def _ending(self) -> str:
        code = self._process.returncode
        name = f", {signal.Signals(-code).name}" if code is not None and code < 0 else ""
        return f"exit code {code}{name}"


def _merge(updates: list[SequenceUpdate]) -> SequenceUpdate:
    last = updates[-1]
    if len(updates) == 1:
        return last
    return SequenceUpdate(
        last.request_id,
        tuple(token_id for update in updates for token_id in update.token_ids),
        last.finish_reason,
        max(update.num_cached_tokens for update in updates),
        last.error,
        last.embedding,
        tuple(told for update in updates for told in update.logprobs),
        tuple(told for update in updates for told in update.prompt_logprobs),
        sum(update.num_drafted for update in updates),
        sum(update.num_accepted for update in updates),
        next((update.finding for update in updates if update.finding is not None), None),
    )


def _load_error(failure: LoadFailure) -> EmberdError:
    return LOAD_ERRORS.get(failure.kind, ModelLoadError)(failure.message)
