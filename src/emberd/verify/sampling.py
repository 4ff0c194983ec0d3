"""The GPU sampler against the NumPy sampler: the same token from the same logits, seed and position; and the
log-probabilities of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..protocol import Admission, MaskArray, SamplingParams
from ..reference.sampling import SamplerState, logprobs, sample
from ..runtime.logprobs import COLUMNS, LogprobKernels
from ..runtime.sampler import Mode, Sampler
from .bench import Workbench
from .check import Check

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
BIAS = (
    SamplingParams(temperature=0, logit_bias=((3, 8.0), (9, -100.0))),
    SamplingParams(seed=17, logit_bias=((5, 100.0),)),
    SamplingParams(temperature=0.7, top_k=40, seed=18),
)
BOTH = (
    SamplingParams(seed=19, logit_bias=((5, 100.0),), presence_penalty=0.5),
    *PENALTIES,
    *BIAS,
)
KINDS = (
    ("plain", Mode.PLAIN, PLAIN),
    ("penalties", Mode.PENALTIES, PENALTIES),
    ("bias", Mode.BIAS, BIAS),
    ("bias and penalties", Mode.BIAS | Mode.PENALTIES, BOTH),
)


def check_sampler(bench: Workbench, vocab_size: int) -> Iterator[Check]:
    """Every mode; the error of a sampler is the share of rows whose token differs."""
    for name, mode, params in KINDS:
        yield _check(bench, vocab_size, name, mode, params)
        yield _check(bench, vocab_size, f"{name}, masks", mode | Mode.MASKS, params)
    yield _check_logprobs(bench, vocab_size)


def _check(
    bench: Workbench, vocab_size: int, name: str, mode: Mode, params: tuple[SamplingParams, ...]
) -> Check:
    rows = len(params)

    def run() -> tuple[NDArray[Any], NDArray[Any]]:
        logits = bench.normal(rows, vocab_size) * np.float32(3)
        positions = bench.rng.integers(1, 1000, rows).astype(np.int32)
        sampler = Sampler(bench.device, bench.kernels, rows, vocab_size)
        for index, chosen in enumerate(params):
            sampler.admit(Admission(index, chosen, HISTORY, len(HISTORY)))
        row_masks: list[MaskArray | None] = [None] * rows
        if Mode.MASKS in mode:
            masked = np.arange(rows) % 3 != 1
            masks = _random_masks(bench, int(masked.sum()), vocab_size)
            bench.device.write(sampler.masks, sampler.mask_words(masks, masked))
            for row, mask in zip(np.flatnonzero(masked), masks, strict=True):
                row_masks[row] = mask
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
        expected = sample(logits, states, positions, row_masks)
        differing = np.mean(tokens != expected)
        return np.array([1 + differing]), np.ones(1)

    return bench.compare(f"sampler {name}", "F32", f"{rows}×{vocab_size}", "exact", run)


def _random_masks(bench: Workbench, count: int, vocab_size: int) -> MaskArray:
    """One in eight tokens is allowed."""
    words = (count, -(-vocab_size // 32))
    masks = np.full(words, 0xFFFFFFFF, np.uint32)
    for _ in range(3):
        masks &= bench.rng.integers(0, 1 << 32, words, np.uint32)
    masks[:, 0] |= 1
    return masks


def _check_logprobs(bench: Workbench, vocab_size: int) -> Check:
    rows = 3

    def run() -> tuple[NDArray[Any], NDArray[Any]]:
        logits = bench.normal(rows, vocab_size) * np.float32(3)
        token_ids = bench.rng.integers(0, vocab_size, rows).astype(np.int32)
        kernels = LogprobKernels(bench.device, bench.kernels, rows, vocab_size)
        out = bench.put(np.zeros((rows, COLUMNS), np.float32))
        steps = kernels.dispatches(
            bench.put(logits),
            bench.ints(np.arange(rows)),
            bench.count(rows),
            bench.device.upload(token_ids.astype(np.uint32)),
            out,
            rows=rows,
        )
        found = kernels.read(bench.run(steps, out)[0])
        expected = logprobs(logits, token_ids)
        wrong_ids = (found.top_ids != expected.top_ids).reshape(-1)
        ids = 1 + wrong_ids.astype(np.float32), np.ones(wrong_ids.shape, np.float32)
        return (
            np.concatenate([found.chosen, found.top.reshape(-1), ids[0]]),
            np.concatenate([expected.chosen, expected.top.reshape(-1), ids[1]]),
        )

    return bench.compare("logprobs", "F32", f"{rows}×{vocab_size}", "float", run)
