"""The worker process: loads one model, then serves it until the gateway closes the channel.

Started by client.py, with how to log (LEVEL:STYLE) and the channel's file descriptor as its last arguments.
The only module that brings engine and runners together; it knows no text and no HTTP.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Protocol, runtime_checkable

from emberd import logs
from emberd.engine import EncoderEngine, Engine
from emberd.engine.pace import GPU_PROMPT_SHARE
from emberd.engine.tier_options import tiers_for
from emberd.errors import BadRequestError, DeviceError, EmberdError, HeadsError
from emberd.estimate import MemoryEstimate, MemoryQuestion
from emberd.gguf.digest import model_digest
from emberd.gguf.encoder import is_encoder
from emberd.gguf.reader import GGUFFile
from emberd.hardware import MAIN_MEMORY, Tier, gpu_tier
from emberd.inspection import Inspect, Inspected, Preempt, Preempted
from emberd.protocol import (
    Cancel,
    EmbedRequest,
    EncoderRunner,
    FinishReason,
    GenerateRequest,
    Runner,
    SequenceUpdate,
    StepMessage,
    TokenTable,
    WorkerOptions,
)

from .channel import Channel, DeviceLost, LoadFailure, LoadProgress
from .draft import LoadedDraft, estimate_with_draft, load_draft, parted

Progress = Callable[[float], None]
AnyRunner = Runner | EncoderRunner
AnyEngine = Engine | EncoderEngine
MakeRunner = Callable[[WorkerOptions, Progress], AnyRunner]

LEAVE_SECONDS = 1.0
"""How long the process may take to end by itself once the gateway is gone."""

HEARTBEAT_SECONDS = 1.0
"""How often an idle worker looks whether its device is still there."""

QUIET_SECONDS = 0.1
"""After a pause this long what later steps will need is prepared, one thing after the other until a message comes."""

log = logging.getLogger("emberd.worker")


@runtime_checkable
class HasHeartbeat(Protocol):
    """A runner whose device can be lost."""

    def heartbeat(self) -> None: ...


def load_runner(
    options: WorkerOptions, progress: Progress, on_loss: Callable[[str], None] | None = None
) -> AnyRunner:
    """The runner for the file's kind of model and `options.device`; "auto" is a real GPU where there
    is one, else the CPU.

    A software adapter serves only when it is named, or when "gpu" finds nothing else. A GPU whose kernels are
    wrong, or lack the model's heads, does not serve: then "auto" is the CPU, and anything else raises DeviceError.
    """
    with GGUFFile(options.model_path) as file:
        encodes = is_encoder(file)
    if options.device != "cpu":
        from emberd.runtime.device import choose_adapter, on_device_loss

        adapter, reason = choose_adapter(options.device)
        log.info("device %s: %s", adapter.name if adapter else "cpu", reason)
        if adapter is not None:
            name = adapter.name
            if on_loss is not None:
                on_device_loss(lambda why: on_loss(f"the device {name} was lost {why}"))
            from .checked import checked_kernels, cpu_instead

            kernels, options, check_tiles = checked_kernels(options, adapter)
            try:
                if kernels is not None and encodes:
                    from emberd.runtime.bidirectional import load_encoder as load_on_gpu

                    return load_on_gpu(options, progress, kernels)
                if kernels is not None:
                    from emberd.runtime.runner import GpuRunner

                    beside = _beside_ram(options, gpu_tier(adapter.kind, None))
                    return GpuRunner.load(beside, progress, kernels, check_tiles)
            except HeadsError as error:  # of a model whose kernels were not to be checked
                assert kernels is not None
                options = cpu_instead(kernels.device, options, error.message)
    if encodes:
        from emberd.reference.bidirectional import load_encoder

        return load_encoder(options, progress)
    from emberd.reference.runner import CpuRunner

    return CpuRunner.load(_beside_ram(options, "cpu"), progress)


def load_runners(
    options: WorkerOptions, progress: Progress, make_runner: MakeRunner = load_runner
) -> tuple[AnyRunner, LoadedDraft | None]:
    """The model's runner and, where the options name one, its draft's. Raises as these do, and ModelLoadError where
    the two do not go together."""
    if options.draft_path is None:
        return make_runner(options, progress), None
    parts = parted(options, estimate_memory)
    parts.check()
    runner = make_runner(parts.model, progress)
    assert not isinstance(runner, EncoderRunner), "its parts are not those of an encoder"
    try:
        return runner, load_draft(parts, runner)
    except BaseException:
        runner.close()
        raise


def estimate_memory(question: MemoryQuestion) -> MemoryEstimate:
    """For the device that `load_runner` would choose; of the model with its draft where it has one."""
    if question.options.draft_path is not None:
        return estimate_with_draft(question, estimate_memory)
    options = question.options
    adapter = None
    if options.device != "cpu":
        from emberd.runtime.device import choose_adapter

        adapter, _ = choose_adapter(options.device)
    if adapter is not None:
        from emberd.runtime.estimate import estimate as estimate_on

        tier = gpu_tier(adapter.kind, None)
        try:
            made = estimate_on(adapter, replace(question, options=_beside_ram(options, tier)))
        except HeadsError:  # as `load_runner` does
            adapter = None
    if adapter is None:
        from emberd.reference.estimate import estimate

        made = estimate(replace(question, options=_beside_ram(options, "cpu")))
    return replace(made, kv_ram=options.kv_ram if made.block_size else 0)


def _beside_ram(options: WorkerOptions, tier: Tier) -> WorkerOptions:
    """With the memory for blocks that left the pool told as taken, where it is the device's own."""
    taken = options.kv_ram if tier in MAIN_MEMORY else 0
    return replace(options, beside=options.beside + taken)


def make_engine(
    runner: AnyRunner, options: WorkerOptions, draft: LoadedDraft | None = None
) -> AnyEngine:
    if isinstance(runner, EncoderRunner):
        return EncoderEngine(runner)
    tiers = tiers_for(runner, options, model_digest)
    on_cpu = runner.info().device_kind == "cpu"
    speculate = options.speculate == "ngram" or (options.speculate == "auto" and on_cpu)
    share = options.prompt_share
    if share is None:
        # On the CPU a step with prompts is long however few of their tokens are in it.
        share = 1.0 if on_cpu else GPU_PROMPT_SHARE
    model = None if draft is None else draft.model()
    return Engine(runner, tiers, prompt_share=share, speculate=speculate, draft=model)


class Inbox:
    """Messages from the gateway, read by a thread of its own: a closed channel is seen at once,
    also in the middle of a load or of a step that hangs."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._messages: queue.SimpleQueue[object] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="emberd-inbox", daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                self._messages.put(self._channel.receive())
        except EOFError as error:
            self._messages.put(error)
        time.sleep(LEAVE_SECONDS)
        os._exit(1)

    def take(self) -> object:
        """The next message, waited for. Raises EOFError when the gateway is gone."""
        return self._checked(self._messages.get())

    def take_all(self, wait: float | None) -> Iterator[object]:
        """What has arrived; where nothing has, what comes within `wait` seconds. None: as long as it takes."""
        if wait != 0:
            with contextlib.suppress(queue.Empty):
                yield self._checked(self._messages.get(timeout=wait))
        while not self._messages.empty():
            yield self._checked(self._messages.get())

    def _checked(self, message: object) -> object:
        if isinstance(message, EOFError):
            raise message
        return message


def load(
    channel: Channel, options: WorkerOptions, make_runner: MakeRunner
) -> tuple[AnyRunner, LoadedDraft | None] | None:
    """Load and answer with WorkerInfo, or with a LoadFailure and None."""
    sent = 0.0

    def progress(fraction: float) -> None:
        nonlocal sent
        if fraction >= sent + 0.01:
            sent = fraction
            channel.send(LoadProgress(fraction))

    with _failures_told(channel, options):
        runner, draft = load_runners(options, progress, make_runner)
        channel.send(runner.info() if draft is None else draft.told(runner.info()))
        return runner, draft
    return None


@contextlib.contextmanager
def _failures_told(channel: Channel, options: WorkerOptions) -> Iterator[None]:
    try:
        yield
    except EmberdError as error:
        channel.send(LoadFailure(type(error).__name__, error.message))
    except Exception:
        log.exception("loading %s failed", options.model_path)
        name = os.path.basename(options.model_path)
        reason = f"loading {name} failed in a way that was not foreseen; the daemon's log has the details"
        channel.send(LoadFailure("ModelLoadError", reason))


def serve(
    channel: Channel,
    inbox: Inbox,
    engine: AnyEngine,
    prepare: Callable[[], bool] = lambda: False,
    heartbeat: Callable[[], None] | None = None,
) -> None:
    """Step while there is work, wait for a message while there is none, and prepare in the pauses, or see that the
    device is still there. Ends only by an exception: EOFError when the gateway is gone, anything else when a
    step failed."""
    told = StepMessage(())
    unprepared, preparing = True, False  # preparing: since nothing came, the pause goes on
    while True:
        refusals = []
        quiet = True
        wait = 0.0 if preparing else _wait(engine, unprepared, heartbeat is not None)
        preparing = False
        for message in inbox.take_all(wait):
            quiet = False
            if isinstance(message, GenerateRequest | EmbedRequest):
                try:
                    engine.add(message)
                except EmberdError as error:
                    refusals.append(_refusal(message, error))
            elif isinstance(message, Cancel):
                engine.cancel(message.request_id)
            elif isinstance(message, Inspect):
                channel.send(Inspected(message.number, engine.status(message.whole)))
            elif isinstance(message, Preempt):
                preempted = engine.preempt(message.request_id)
                channel.send(Preempted(message.number, preempted))
            elif isinstance(message, TokenTable) and isinstance(engine, Engine):
                engine.use_table(message)
        if quiet and not engine.has_work and unprepared:
            unprepared = preparing = prepare()
            if not unprepared:
                gc.freeze()  # plans stay: a collection that goes through them is a gap in every reply
            continue
        if quiet and not engine.has_work and heartbeat is not None:
            heartbeat()
            continue
        step = _step(channel, engine)
        counts = replace(step, updates=())
        if refusals or step.updates or counts != told:
            channel.send(replace(step, updates=(*refusals, *step.updates)))
            told = counts


def _prepare(runners: list[Runner]) -> bool:
    """One thing more that later steps are likely to need; False: nothing is left."""
    return any(runner.prepare() for runner in runners)


def _wait(engine: AnyEngine, unprepared: bool, beats: bool) -> float | None:
    if engine.has_work:
        return 0
    return QUIET_SECONDS if unprepared else HEARTBEAT_SECONDS if beats else None


def _step(channel: Channel, engine: AnyEngine) -> StepMessage:
    try:
        return engine.step()
    except Exception as error:
        channel.send(engine.fail(f"the model's worker failed: {type(error).__name__}: {error}"))
        raise


def _leave(channel: Channel, reason: str) -> None:
    """Tell of a lost device and end at once: the library aborts the process when it goes on."""
    log.error("%s", reason)
    with contextlib.suppress(OSError):
        channel.send(DeviceLost(reason))
    os._exit(1)


def _refusal(request: GenerateRequest | EmbedRequest, error: EmberdError) -> SequenceUpdate:
    of_grammar = isinstance(error, BadRequestError) and error.param == "grammar"
    how: FinishReason = "refused" if of_grammar else "error"
    return SequenceUpdate(request.request_id, (), how, error=error.message)


def main(make_runner: MakeRunner | None = None) -> int:
    """Run a worker as the last two arguments say; returns the exit code."""
    log_level, _, log_style = sys.argv[-2].partition(":")
    logs.setup(log_level, log_style)
    # A terminal or a service manager signals every process of the daemon; only the daemon decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=int(sys.argv[-1])))
    inbox = Inbox(channel)
    try:
        options = inbox.take()
        if isinstance(options, MemoryQuestion):
            with _failures_told(channel, options.options):
                channel.send(estimate_memory(options))
            return 0
        assert isinstance(options, WorkerOptions)
        make_runner = make_runner or partial(load_runner, on_loss=partial(_leave, channel))
        loaded = load(channel, options, make_runner)
        if loaded is None:
            return 1
        runner, draft = loaded
        try:
            runners = [] if isinstance(runner, EncoderRunner) else [runner]
            runners += [] if draft is None else [draft.runner]
            engine = make_engine(runner, options, draft)
            try:
                heartbeat = runner.heartbeat if isinstance(runner, HasHeartbeat) else None
                serve(channel, inbox, engine, partial(_prepare, runners), heartbeat)
            finally:
                if isinstance(engine, Engine):
                    engine.close()
        finally:
            if draft is not None:
                draft.runner.close()
            runner.close()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0
    except Exception as error:
        log.exception("the worker ends")
        if isinstance(error, DeviceError):
            with contextlib.suppress(OSError):
                channel.send(DeviceLost(error.message))
    return 1


if __name__ == "__main__":
    sys.exit(main())
