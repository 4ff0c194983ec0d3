"""Logits and states that are not finite: the request that meets them ends with an error, others go on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from emberd.engine import Engine
from emberd.engine.pooling import Pool
from emberd.engine.updates import NOT_FINITE, pooled_update
from emberd.protocol import (
    EmbedRequest,
    GenerateRequest,
    Runner,
    SamplingParams,
    SequenceUpdate,
    WorkerOptions,
)
from emberd.reference.runner import CpuRunner
from emberd.runtime.runner import GpuRunner
from fakes import ScriptedRunner, hashed
from tiny_gguf import random_model

DAMAGED = {
    "not a number": {"output_norm.weight": np.full(64, np.nan, np.float32)},
    "too large": {"output_norm.weight": np.full(64, 3e38, np.float32)},
}


def run(engine: Engine) -> dict[str, list[SequenceUpdate]]:
    found: dict[str, list[SequenceUpdate]] = {}
    while engine.has_work:
        for update in engine.step().updates:
            found.setdefault(update.request_id, []).append(update)
        engine.check_integrity()
    return found


@pytest.mark.parametrize("steps_in_flight", [1, 3])
@pytest.mark.parametrize("fails_at", [0, 3])
def test_a_row_without_a_token_ends_its_request_alone(steps_in_flight: int, fails_at: int) -> None:
    def next_token(history: Sequence[int], params: SamplingParams) -> int:
        if params.seed == 7 and len(history) >= 5 + fails_at:
            return -1
        return hashed(history, params)

    engine = Engine(ScriptedRunner(next_token=next_token, steps_in_flight=steps_in_flight))
    engine.add(GenerateRequest("bad", (1, 2, 3, 4, 5), SamplingParams(max_tokens=8, seed=7)))
    engine.add(GenerateRequest("good", (1, 2, 3, 4, 5), SamplingParams(max_tokens=8, seed=8)))
    found = run(engine)
    assert sum(len(update.token_ids) for update in found["bad"]) == fails_at
    assert (found["bad"][-1].finish_reason, found["bad"][-1].error) == ("error", NOT_FINITE)
    assert sum(len(update.token_ids) for update in found["good"]) == 8
    assert found["good"][-1].finish_reason == "length"


def check_damaged(runner: Runner) -> None:
    """Everything that can be asked of a damaged model, at once, twice."""
    for _ in range(2):
        engine = Engine(runner)
        for place, params in enumerate(
            (
                SamplingParams(temperature=0, max_tokens=4),
                SamplingParams(seed=3, max_tokens=4),
                SamplingParams(seed=4, top_k=5, top_p=0.9, max_tokens=4),
                SamplingParams(seed=5, presence_penalty=0.5, max_tokens=4),
            )
        ):
            engine.add(GenerateRequest(f"g{place}", (3, 4, 5), params))
        told = SamplingParams(temperature=0, max_tokens=4, num_logprobs=2)
        engine.add(GenerateRequest("told", (3, 4, 5), told))
        engine.add(GenerateRequest("scored", (3, 4, 5), SamplingParams(max_tokens=0), 2))
        engine.add(EmbedRequest("embedded", (3, 4, 5), "mean"))
        found = run(engine)
        assert len(found) == 7
        for name, updates in found.items():
            (update,) = updates
            assert (update.finish_reason, update.error) == ("error", NOT_FINITE), name
            assert not update.token_ids and update.embedding is None


def options(path: Path) -> WorkerOptions:
    return WorkerOptions(
        str(path),
        "gpu",
        context_length=128,
        kv_memory=8 << 20,
        max_sequences=8,
        max_batch_tokens=32,
    )


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflow is what is tested
def test_a_damaged_model_ends_requests_and_serves_on(tmp_path: Path, damage: str) -> None:
    path = random_model(
        tmp_path / "m.gguf", width=64, ffn=64, heads=1, kv_heads=1, tensors=DAMAGED[damage]
    )
    runner = CpuRunner.load(options(path))
    check_damaged(runner)
    runner.close()


@pytest.mark.device
@pytest.mark.slow
def test_a_damaged_model_ends_requests_and_serves_on_a_gpu(tmp_path: Path) -> None:
    path = random_model(
        tmp_path / "m.gguf",
        width=64,
        ffn=64,
        heads=1,
        kv_heads=1,
        layers=1,
        tensors=DAMAGED["not a number"],
    )
    runner = GpuRunner.load(options(path))
    check_damaged(runner)
    runner.close()


def test_a_vector_that_is_not_finite_is_an_error(rng: np.random.Generator) -> None:
    for bad in (np.nan, np.inf, 3.4e38):
        pool = Pool("mean")
        states = rng.standard_normal((4, 8))
        states[2, 3] = bad * 10
        pool.add(states)
        update = pooled_update("x", pool)
        assert (update.finish_reason, update.error) == ("error", NOT_FINITE)
        assert update.embedding is None
