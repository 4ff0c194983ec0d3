"""The GPU sampler against the NumPy sampler: the same token from the same logits, seed and position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..protocol import Admission, SamplingParams
from ..reference.sampling import SamplerState, sample
from ..runtime.sampler import Mode, Sampler
from .bench import Workbench
from .check import Check, compare

HISTORY = (3, 5, 5, 8)
PLAIN = (
    SamplingParams(temperature=0),
    SamplingParams(seed=11),
    SamplingParams(temperature=0.7, top_k=40, seed=12),
    SamplingParams(temperature=0.9, top_p=0.9, seed=13),
    SamplingParams(temperature=1.3, min_p=0.05, seed=-14),
    SamplingParams(temperature=0.8, top_k=50, top_p=0.95, min_p=0.01, seed=15),
)
PENALTIES = (
    SamplingParams(
        repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.3, seed=1 << 40
    ),
    SamplingParams(temperature=0, repetition_penalty=1.3, penalty_window=2),
    SamplingParams(seed=16),
)


def check_sampler(bench: Workbench, vocab_size: int) -> Iterator[Check]:
    """Both modes; the error is the share of rows whose token differs."""
    yield _check(bench, vocab_size, "plain", PLAIN)
    yield _check(bench, vocab_size, "penalties", PENALTIES)


def _check(
    bench: Workbench, vocab_size: int, mode: Mode, params: tuple[SamplingParams, ...]
) -> Check:
    rows = len(params)

    def run() -> tuple[NDArray[Any], NDArray[Any]]:
        logits = bench.normal(rows, vocab_size) * np.float32(3)
        positions = bench.rng.integers(1, 1000, rows).astype(np.int32)
        sampler = Sampler(bench.device, bench.kernels, rows, vocab_size)
        for index, chosen in enumerate(params):
            sampler.admit(Admission(index, chosen, HISTORY, len(HISTORY)))
        out = bench.ints(np.full(rows, -2))
        steps = sampler.dispatches(
            bench.put(logits),
            bench.ints(np.arange(rows)),
            bench.ints(positions),
            out,
            bench.count(rows),
            rows=rows,
            mode=mode,
        )
        tokens = bench.run(steps, out)[0]
        states = [SamplerState.start(chosen, HISTORY, vocab_size) for chosen in params]
        expected = sample(logits, states, positions)
        differing = np.mean(tokens != expected)
        return np.array([1 + differing]), np.ones(1)

    return compare(f"sampler {mode}", "F32", f"{rows}×{vocab_size}", "exact", run)
