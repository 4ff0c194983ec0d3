"""A device that is lost under a worker (K30): it says so, whether it computes or waits, and ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from emberd.protocol import GenerateRequest, SamplingParams, WorkerOptions
from emberd.worker.client import WorkerClient
from tiny_gguf import random_model

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("device")]

COMMAND = [sys.executable, str(Path(__file__).parent / "losing_worker.py")]


@pytest.mark.slow
@pytest.mark.parametrize("busy", [True, False])
def test_a_lost_device_is_told_and_ends_the_worker(tmp_path: Path, busy: bool) -> None:
    path = random_model(tmp_path / "tiny.gguf", quant="Q8_0", layers=1)
    options = WorkerOptions(str(path), "gpu", 512, max_sequences=1, max_batch_tokens=16)
    request = GenerateRequest("a", (1, 2, 3), SamplingParams(max_tokens=500, ignore_eos=True))

    async def scenario() -> None:
        worker = await WorkerClient.start(options, command=COMMAND)
        dead = asyncio.Event()
        worker.on_death = lambda _: dead.set()
        errors: list[str] = []

        async def stream() -> None:
            try:
                async for update in worker.generate(request):
                    if update.token_ids and busy:
                        os.kill(worker.pid, signal.SIGUSR1)
                    if update.error is not None:
                        errors.append(update.error)
            except Exception as error:
                errors.append(str(error))

        if busy:
            await stream()
            assert len(errors) == 1 and ("lost" in errors[0] or "driver" in errors[0]), errors
        else:
            os.kill(worker.pid, signal.SIGUSR1)
        await asyncio.wait_for(dead.wait(), 10)
        assert worker.lost_device is not None
        assert busy or "was lost" in worker.lost_device
        await worker.close()

    asyncio.run(scenario())
