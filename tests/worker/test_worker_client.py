"""WorkerClient against a real process with the scripted runner: streams, cancels, deaths, leaving."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any

import psutil
import pytest

from emberd.errors import DeviceError, ModelFileError, ModelLoadError, WorkerDiedError
from emberd.protocol import GenerateRequest, SamplingParams, SequenceUpdate, WorkerOptions
from emberd.worker.client import WorkerClient
from fakes import lone_run

OPTIONS = WorkerOptions("/models/tiny.gguf", device="scripted")


def start(mode: str = "serve", **settings: int) -> Coroutine[Any, Any, WorkerClient]:
    return WorkerClient.start(OPTIONS, command=command(mode, **settings))


def command(mode: str, **settings: int) -> list[str]:
    script = str(Path(__file__).parent / "fake_worker.py")
    return [sys.executable, script, f"mode={mode}", *(f"{k}={v}" for k, v in settings.items())]


def make_request(name: str, max_tokens: int = 10, num_prompt_tokens: int = 5) -> GenerateRequest:
    return GenerateRequest(
        name, tuple(range(num_prompt_tokens)), SamplingParams(max_tokens=max_tokens, seed=len(name))
    )


def endless(name: str) -> GenerateRequest:
    return make_request(name, max_tokens=200)


async def gather(worker: WorkerClient, request: GenerateRequest) -> tuple[tuple[int, ...], str]:
    token_ids: list[int] = []
    async for update in worker.generate(request):
        token_ids += update.token_ids
        if update.finish_reason:
            assert update.error is None, update.error
            return tuple(token_ids), update.finish_reason
    raise AssertionError("the iterator ended without a finish reason")


async def until_free(worker: WorkerClient) -> None:
    """Waits for the message that tells that every block is free again."""
    while worker.stats.num_free_blocks != worker.info.num_blocks:
        await asyncio.sleep(0.002)


def test_streams_side_by_side_equal_lone_runs() -> None:
    async def scenario() -> None:
        worker = await start(steps_in_flight=2)
        assert worker.alive and worker.info.device == "scripted"
        requests = [make_request("r" * n, max_tokens=20 + n) for n in range(1, 13)]
        results = await asyncio.gather(*(gather(worker, request) for request in requests))
        assert list(results) == [lone_run(request) for request in requests]
        assert worker.stats.num_free_blocks == worker.info.num_blocks
        await worker.close()
        assert not worker.alive and not psutil.pid_exists(worker.pid)

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_worker_prepares_in_pauses_and_serves_before_it_is_done() -> None:
    async def scenario() -> None:
        worker = await start("prepare")
        counts = []
        while not counts or counts[-1] < 3:
            token_ids, _ = await gather(worker, make_request("r", max_tokens=20))
            assert len({*token_ids}) == 1  # nothing was prepared in the middle of a reply
            counts.append(token_ids[0])
            await asyncio.sleep(0.02 * len(counts))
        assert counts == sorted(counts)
        await worker.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_worker_does_not_get_the_api_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBERD_API_KEYS", "secret")
    monkeypatch.setenv("EMBERD_API_KEY_FILE", "secrets")
    monkeypatch.setenv("EMBERD_REPLAY", "wrapper")

    async def scenario() -> dict[str, str]:
        worker = await start()
        environment = psutil.Process(worker.pid).environ()
        await worker.close()
        return environment

    environment = asyncio.run(scenario())
    assert environment["EMBERD_REPLAY"] == "wrapper"
    assert not {"EMBERD_API_KEYS", "EMBERD_API_KEY_FILE"} & {*environment}


@pytest.mark.slow
def test_a_long_prompt_to_a_stopped_worker_does_not_hold_the_event_loop() -> None:
    """100,000 ids are more than the socket holds. The worker reads them, and has no room for them."""

    async def scenario() -> list[SequenceUpdate]:
        worker = await start()
        request = make_request("long", num_prompt_tokens=100_000)
        os.kill(worker.pid, signal.SIGSTOP)

        async def updates() -> list[SequenceUpdate]:
            return [update async for update in worker.generate(request)]

        task = asyncio.create_task(updates())
        await asyncio.sleep(0.05)  # were the socket written to in place, this would not return
        os.kill(worker.pid, signal.SIGCONT)
        found = await task
        await worker.close()
        return found

    (update,) = asyncio.run(scenario())
    assert update.error is not None and "100000 tokens" in update.error


@pytest.mark.slow
def test_a_refused_prompt_is_an_error_update_with_both_numbers() -> None:
    """K14, K10."""

    async def scenario() -> list[SequenceUpdate]:
        worker = await start(num_blocks=8, block_size=4)
        request = make_request("big", num_prompt_tokens=40)
        updates = [update async for update in worker.generate(request)]
        assert (await gather(worker, make_request("small")))[1] == "length"
        await worker.close()
        return updates

    (update,) = asyncio.run(scenario())
    assert update.finish_reason == "error" and update.error is not None
    assert "40 tokens" in update.error and "32 tokens" in update.error


@pytest.mark.slow
def test_counts_are_told_while_a_long_prompt_is_read() -> None:
    """Metrics need them before there is any token to tell."""

    async def scenario() -> None:
        worker = await start("slow", max_batch_tokens=8, num_blocks=64, block_size=4)
        updates = worker.generate(make_request("long", max_tokens=2, num_prompt_tokens=160))
        first = asyncio.ensure_future(anext(updates))
        while not worker.stats.num_running:
            await asyncio.sleep(0.001)
        assert not first.done() and worker.stats.num_free_blocks < 64
        await first
        await updates.aclose()
        await until_free(worker)
        assert worker.stats.num_running == 0
        await worker.close()

    asyncio.run(scenario())


def test_closing_the_iterator_cancels_the_sequence() -> None:
    """K13: by aclose, and by cancelling the task that waits in it."""

    async def scenario() -> None:
        worker = await start("slow")
        async with aclosing(worker.generate(endless("closed"))) as updates:
            await updates.__anext__()
            assert worker.stats.num_free_blocks < worker.info.num_blocks
        await until_free(worker)
        task = asyncio.create_task(gather(worker, endless("cancelled")))
        while not worker.stats.num_running:
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until_free(worker)
        assert await gather(worker, make_request("after")) == lone_run(make_request("after"))
        await worker.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_hundred_cut_streams_leave_the_counts_where_they_were() -> None:
    """K13."""

    async def scenario() -> None:
        worker = await start("slow", max_sequences=32)
        daemon, child = psutil.Process(), psutil.Process(worker.pid)

        def counts() -> tuple[int, ...]:
            return (
                daemon.num_fds(),
                child.num_fds(),
                child.num_threads(),
                threading.active_count(),
                len(asyncio.all_tasks()),
            )

        async def cut(name: str) -> None:
            async with aclosing(worker.generate(endless(name))) as updates:
                async for _ in updates:
                    break

        await cut("first")
        await until_free(worker)
        before = counts()
        await asyncio.gather(*(cut(f"r{number}") for number in range(100)))
        await until_free(worker)
        assert counts() == before
        assert (worker.stats.num_running, worker.stats.num_waiting) == (0, 0)
        await worker.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_starts_and_closes_leave_no_child_and_no_descriptor() -> None:
    async def scenario() -> None:
        daemon = psutil.Process()
        before = daemon.num_fds()
        for _ in range(2):
            worker = await start()
            await worker.close()
            await worker.close()
        with pytest.raises(ModelFileError):
            await start("bad-file")
        assert daemon.num_fds() == before and daemon.children() == []

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "error", "words"),
    [
        ("bad-file", ModelFileError, "/models/tiny.gguf is damaged at byte 17"),
        ("no-device", DeviceError, "no adapter's name contains 'scripted'"),
        ("bug", ModelLoadError, "loading tiny.gguf failed in a way that was not foreseen"),
        ("exit", ModelLoadError, "tiny.gguf failed: its worker ended .exit code 3"),
    ],
)
def test_a_failed_load_raises_what_the_worker_said(
    mode: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        asyncio.run(start(mode))
    assert psutil.Process().children() == []


@pytest.mark.slow
def test_progress_is_told_and_a_load_can_be_cancelled() -> None:
    async def scenario() -> None:
        seen: list[float] = []
        started = asyncio.Event()

        def on_progress(fraction: float) -> None:
            seen.append(fraction)
            started.set()

        task = asyncio.create_task(
            WorkerClient.start(OPTIONS, command=command("hang"), on_progress=on_progress)
        )
        await started.wait()
        (child,) = psutil.Process().children()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == [0.25] and not child.is_running()

    asyncio.run(scenario())


def test_a_killed_worker_ends_its_streams_with_a_clear_error() -> None:
    async def scenario() -> None:
        worker = await start("slow")
        deaths: list[WorkerClient] = []
        worker.on_death = deaths.append
        tasks = [asyncio.create_task(gather(worker, endless(name))) for name in ("a", "bb")]
        while worker.stats.num_running < 2:
            await asyncio.sleep(0.002)
        os.kill(worker.pid, signal.SIGKILL)
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, WorkerDiedError)
            assert "tiny.gguf" in str(result) and "-9, SIGKILL" in str(result)
        assert not worker.alive and deaths == [worker]
        with pytest.raises(WorkerDiedError, match="SIGKILL"):
            await gather(worker, make_request("late"))
        await worker.close()
        assert deaths == [worker]

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_step_that_raises_tells_every_request_and_ends_the_worker() -> None:
    async def scenario() -> None:
        worker = await start("fail-late", max_sequences=1)
        requests = [endless("running"), endless("waiting")]
        last = [SequenceUpdate("", ())] * 2

        async def follow(place: int) -> None:
            async for update in worker.generate(requests[place]):
                last[place] = update

        await asyncio.gather(follow(0), follow(1))
        assert [update.finish_reason for update in last] == ["error", "error"]
        assert all("the device was lost" in str(update.error) for update in last)
        with pytest.raises(WorkerDiedError, match="stopped: the device was lost"):
            await gather(worker, make_request("late"))
        assert not worker.alive
        await worker.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_close_under_a_running_stream_ends_it() -> None:
    async def scenario() -> None:
        worker = await start("slow")
        deaths: list[WorkerClient] = []
        worker.on_death = deaths.append
        task = asyncio.create_task(gather(worker, endless("a")))
        while not worker.stats.num_running:
            await asyncio.sleep(0.002)
        await worker.close()
        with pytest.raises(WorkerDiedError, match="unloaded"):
            await task
        assert deaths == [] and not psutil.pid_exists(worker.pid)

    asyncio.run(scenario())


@pytest.mark.slow
def test_signals_to_the_group_do_not_end_the_worker() -> None:
    """K38: a terminal's interrupt reaches every process; the daemon drains first."""

    async def scenario() -> None:
        worker = await start()
        os.kill(worker.pid, signal.SIGINT)
        os.kill(worker.pid, signal.SIGTERM)
        assert await gather(worker, make_request("a")) == lone_run(make_request("a"))
        await worker.close()

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["serve", "hang"])
def test_the_worker_ends_when_its_gateway_is_gone(mode: str) -> None:
    """Idle, and in the middle of a load that hangs."""
    script = (
        "import asyncio, os, sys\n"
        "from emberd.protocol import WorkerOptions\n"
        "from emberd.worker.client import WorkerClient\n"
        "async def run():\n"
        "    load = WorkerClient.start(WorkerOptions('tiny.gguf'), command=sys.argv[1:],\n"
        "                              on_progress=lambda f: progress.set())\n"
        "    progress = asyncio.Event()\n"
        "    task = asyncio.create_task(load)\n"
        "    await progress.wait()\n"
        "    if 'mode=serve' in sys.argv: await task\n"
        "    import psutil\n"
        "    print(psutil.Process().children()[0].pid, flush=True)\n"
        "    os._exit(0)\n"
        "asyncio.run(run())\n"
    )

    async def scenario() -> int:
        gateway = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, *command(mode), stdout=asyncio.subprocess.PIPE
        )
        output, _ = await gateway.communicate()
        return int(output)

    pid = asyncio.run(scenario())
    deadline = time.monotonic() + 20
    while is_running(pid):
        assert time.monotonic() < deadline, "the worker outlived its gateway"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """False for a zombie too: where nobody adopts orphans, they stay as one."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
