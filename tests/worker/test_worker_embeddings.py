"""Embedding through a worker process of its own: the scripted runner, and the real one on a tiny encoder."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import numpy as np
import pytest

from emberd.errors import WorkerDiedError
from emberd.protocol import EmbedRequest, GenerateRequest, SamplingParams, WorkerOptions
from emberd.worker.client import WorkerClient
from tiny_encoder import encoder_model
from tolerance import check

FAKE = (sys.executable, str(Path(__file__).parent / "fake_worker.py"))


async def start(*arguments: str) -> WorkerClient:
    return await WorkerClient.start(WorkerOptions("fake.gguf"), command=(*FAKE, *arguments))


@pytest.mark.slow
def test_texts_are_embedded_beside_a_reply() -> None:
    async def work() -> None:
        worker = await start()
        try:
            request = GenerateRequest("g", (1, 2, 3), SamplingParams(max_tokens=200))

            async def generate() -> int:
                count = 0
                async for update in worker.generate(request):
                    count += len(update.token_ids)
                return count

            texts = [tuple(range(n)) for n in range(1, 60)]
            embeds = (worker.embed(EmbedRequest(f"e{len(t)}", t, "last")) for t in texts)
            count, *vectors = await asyncio.gather(generate(), *embeds)
            assert count == 200
            for ids, raw in zip(texts, vectors, strict=True):
                found = np.frombuffer(raw, "<f4").tolist()  # type: ignore[call-overload]
                assert found == [len(ids) - 1, ids[-1], sum(ids)]
        finally:
            await worker.close()

    asyncio.run(work())


@pytest.mark.slow
def test_refusals_cancelling_and_death_reach_the_caller() -> None:
    async def work() -> None:
        worker = await start("mode=slow")
        try:
            with pytest.raises(WorkerDiedError, match="context length"):
                await worker.embed(EmbedRequest("long", tuple(range(300)), "mean"))
            task = asyncio.ensure_future(worker.embed(EmbedRequest("a", (1,) * 200, "mean")))
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await worker.embed(EmbedRequest("b", (1,), "mean"))
            while worker.stats.num_running or worker.stats.num_free_blocks < 64:
                await worker.embed(EmbedRequest("c", (1,), "mean"))
        finally:
            await worker.close()
        with pytest.raises(WorkerDiedError, match="unloaded"):
            await worker.embed(EmbedRequest("d", (1,), "mean"))

    asyncio.run(work())


@pytest.mark.slow
def test_the_worker_chooses_the_encoder_for_an_encoders_file(tmp_path: Path) -> None:
    tiny = encoder_model(tmp_path / "tiny.gguf")

    async def work() -> None:
        worker = await WorkerClient.start(WorkerOptions(str(tiny.path), device="cpu"))
        try:
            assert worker.info.num_blocks == 0 and worker.info.context_length == 64
            texts = [(2, 7, 9, 3), (2, 5, 3), tuple(range(40))]
            vectors = await asyncio.gather(
                *(worker.embed(EmbedRequest(str(t), t, "mean")) for t in texts)
            )
            for ids, raw in zip(texts, vectors, strict=True):
                check(np.frombuffer(raw, "<f4"), tiny.states(ids).mean(0), "float")
            with pytest.raises(WorkerDiedError):
                async for update in worker.generate(GenerateRequest("g", (1,), SamplingParams())):
                    assert update.finish_reason == "error"
                    raise WorkerDiedError(update.error or "")
        finally:
            await worker.close()

    asyncio.run(work())
