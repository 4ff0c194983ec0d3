"""A worker process that is asked what a load would take: it tells, loads nothing, and ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from emberd.errors import ModelFileError
from emberd.estimate import MemoryQuestion
from emberd.protocol import WorkerOptions
from emberd.worker.client import WorkerClient
from tiny_gguf import random_model


@pytest.mark.slow
def test_a_process_tells_what_a_load_would_take(tmp_path: Path) -> None:
    path = random_model(tmp_path / "m.gguf", layers=1)

    async def work() -> None:
        options = WorkerOptions(str(path), "cpu", context_length=64)
        told = await WorkerClient.estimate(MemoryQuestion(options))
        assert (told.device_kind, told.context_length) == ("cpu", 64)
        assert told.weight_bytes > 0 and not told.refusal
        with pytest.raises(ModelFileError, match=r"no\.gguf"):
            await WorkerClient.estimate(MemoryQuestion(WorkerOptions(str(tmp_path / "no.gguf"))))

    asyncio.run(work())
