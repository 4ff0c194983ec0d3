"""A worker asked what it has in its batch."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

from emberd.errors import WorkerDiedError
from emberd.protocol import GenerateRequest, SamplingParams, WorkerOptions
from emberd.worker.client import WorkerClient

COMMAND = [sys.executable, str(Path(__file__).parent / "fake_worker.py"), "mode=slow"]


async def scenario() -> None:
    worker = await WorkerClient.start(WorkerOptions("/models/tiny.gguf"), command=COMMAND)
    request = GenerateRequest("a", (1, 2, 3), SamplingParams(max_tokens=200))

    async def gather() -> None:
        async with contextlib.aclosing(worker.generate(request)) as updates:
            async for _ in updates:
                pass

    task = asyncio.create_task(gather())
    while not worker.stats.num_running:
        await asyncio.sleep(0.002)
    for status in await asyncio.gather(*(worker.inspect() for _ in range(3))):
        assert [(one.request_id, one.position) for one in status.sequences] == [("a", None)]
        assert status.blocks.total == worker.info.num_blocks
    os.kill(worker.pid, signal.SIGSTOP)
    asked = asyncio.create_task(worker.inspect())
    await asyncio.sleep(0.01)
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        await asked
    with pytest.raises(WorkerDiedError):
        await task
    with pytest.raises(WorkerDiedError):
        await worker.inspect()


def test_a_worker_tells_of_its_batch_and_dies_with_those_who_ask() -> None:
    asyncio.run(scenario())
