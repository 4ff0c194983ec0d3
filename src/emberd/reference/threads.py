"""How many BLAS threads are fastest here, measured on the model's own matrices.

Counting cores is not enough: with anything else busy, a second OpenBLAS thread can make products
several times slower, and decode and prefill need not want the same number.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import numpy as np
from threadpoolctl import ThreadpoolController

from .ops import F32, matmul

MIN_GAIN = 0.95
"""More threads are taken only where they need at most this share of the time."""

_ROUNDS = 5
_PREFILL_TOKENS = 64
_DECODE_BYTES = 1 << 26
"""Matrices read in a decode round: more than a cache holds, since decode reads all weights."""


@dataclass(frozen=True, slots=True)
class Threads:
    decode: int
    prefill: int


def num_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def measure_threads(controller: ThreadpoolController, matrices: list[F32]) -> Threads:
    """The fastest count for a one-token and for a many-token product with `matrices` (N, D)."""
    read = 0
    decode_matrices = []
    for w in matrices:
        if read >= _DECODE_BYTES:
            break
        decode_matrices.append(w)
        read += w.nbytes
    widest = max(decode_matrices, key=lambda w: w.nbytes if len(w) < 1 << 14 else 0)
    return Threads(
        decode=_fastest(controller, decode_matrices, 1),
        prefill=_fastest(controller, [widest], _PREFILL_TOKENS),
    )


def _fastest(controller: ThreadpoolController, matrices: list[F32], num_tokens: int) -> int:
    best, best_time = 1, float("inf")
    for count in _candidates(num_cores()):
        with controller.limit(limits=count, user_api="blas"):
            seconds = _time_products(matrices, num_tokens)
        if seconds < best_time * MIN_GAIN:
            best, best_time = count, seconds
    return best


def _candidates(cores: int) -> list[int]:
    """1, 2, 4, … and the number of cores."""
    return [*(1 << power for power in range(cores.bit_length()) if 1 << power < cores), cores]


def _time_products(matrices: list[F32], num_tokens: int) -> float:
    inputs = [np.ones((num_tokens, w.shape[1]), dtype=np.float32) for w in matrices]
    times = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        for x, w in zip(inputs, matrices, strict=True):
            matmul(x, w)
        times.append(time.perf_counter() - start)
    return float(np.median(times))
