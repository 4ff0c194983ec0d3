"""Preempted sequences whose blocks go to main memory and come back, over real runners: the tokens stay the same."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from emberd.engine import Engine
from emberd.engine.rates import Rates
from emberd.engine.tiers import Tiers
from emberd.protocol import GenerateRequest, Runner, SamplingParams, WorkerOptions
from tiny_gguf import random_model

LENGTH, REPLY, SEQUENCES = 20, 150, 3


def load(kind: str, path: Path, num_blocks: int, block_bytes: int) -> Runner:
    options = WorkerOptions(
        str(path),
        kind,
        kv_memory=num_blocks * block_bytes,
        max_sequences=SEQUENCES,
        max_batch_tokens=64,
    )
    if kind == "cpu":
        from emberd.reference.runner import CpuRunner

        return CpuRunner.load(options)
    from emberd.runtime.runner import GpuRunner

    return GpuRunner.load(options)


def replies(
    runner: Runner, requests: list[GenerateRequest], ram: bool
) -> tuple[dict[str, list[int]], int]:
    """Tokens of each, and how many blocks were promoted."""
    rates = Rates(runner.block_size, runner.block_bytes)
    tiers = Tiers(runner, rates, 100 * runner.block_bytes if ram else 0)
    rates.upload.note(1e12, 1.0)  # whatever this machine measures, copies pay
    rates.prefill.note(1.0, 1.0)
    rates.note_step = lambda chunks, seconds: None  # type: ignore[method-assign]
    engine, got = Engine(runner, tiers), defaultdict[str, list[int]](list)
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for update in engine.step().updates:
            assert update.error is None
            got[update.request_id] += update.token_ids
        engine.check_integrity()
    return got, tiers.counts.promoted


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cpu", pytest.param("gpu", marks=pytest.mark.device)])
def test_parked_sequences_go_on_as_if_nothing_had_been(
    kind: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    path = tmp_path / "m.gguf"
    random_model(path, "llama", seed=int(rng.integers(1 << 30)))
    params = SamplingParams(temperature=0.0, max_tokens=REPLY, ignore_eos=True)
    requests = [
        GenerateRequest(f"r{n}", tuple(rng.integers(0, 256, LENGTH).tolist()), params)
        for n in range(SEQUENCES)
    ]
    wide = load(kind, path, 100, 1 << 16)
    size, each = wide.block_bytes, -(-(LENGTH + REPLY) // wide.block_size)
    expected, _ = replies(wide, requests, ram=False)
    wide.close()
    narrow = load(kind, path, 2 * each, size)  # two of the three
    assert narrow.num_blocks < SEQUENCES * each
    parked, promoted = replies(narrow, requests, ram=True)
    narrow.close()
    assert promoted > 0
    assert parked == expected
