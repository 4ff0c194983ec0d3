"""How many BLAS threads are fastest here, measured on the model's own matrices.

Counting cores is not enough: with anything else busy, a second OpenBLAS thread can make products
several times slower, and one token and many tokens need not want the same number. What else runs
changes, so the measurement is repeated now and then. It knows matrices and times only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from threadpoolctl import ThreadpoolController

from emberd.hardware import num_cores

from .ops import F32, matmul

MEASURE_EVERY = 10.0
"""Seconds of computing after which the counts are measured again; a measurement takes some 50 ms."""

MIN_GAIN = 0.95
"""More threads are taken only where they need at most this share of the time."""

DECODE_BYTES = 1 << 25
"""Bytes of weights a decode round reads: more than near caches hold, as decode reads all of them."""

PREFILL_BYTES = 1 << 23
PREFILL_TOKENS = 64
ROUNDS = 5

log = logging.getLogger(__name__)


class BlasThreads:
    """The thread counts for decode (one token a row) and for prefill."""

    def __init__(self, matrices: list[F32]) -> None:
        """Measures with the first of `matrices` (N, D)."""
        self._controller = ThreadpoolController()
        self._decode_matrices = _leading(matrices, DECODE_BYTES)
        self._prefill_matrices = _leading(matrices, PREFILL_BYTES)
        self.decode = self.prefill = 0
        self._measure()

    @contextmanager
    def limit(self, *, prefill: bool) -> Iterator[None]:
        """BLAS runs with the right number of threads inside."""
        if self._busy_seconds > MEASURE_EVERY:
            self._measure()
        start = time.perf_counter()
        count = self.prefill if prefill else self.decode
        with self._controller.limit(limits=count, user_api="blas"):
            yield
        self._busy_seconds += time.perf_counter() - start

    def _measure(self) -> None:
        before = self.decode, self.prefill
        self.decode = self._fastest(self._decode_matrices, 1)
        self.prefill = self._fastest(self._prefill_matrices, PREFILL_TOKENS)
        self._busy_seconds = 0.0
        if (self.decode, self.prefill) != before:
            log.info("BLAS threads: %d for decode, %d for prefill", self.decode, self.prefill)

    def _fastest(self, matrices: list[F32], num_tokens: int) -> int:
        best, best_time = 1, float("inf")
        for count in candidates(num_cores()):
            with self._controller.limit(limits=count, user_api="blas"):
                seconds = _time_products(matrices, num_tokens)
            if seconds < best_time * MIN_GAIN:
                best, best_time = count, seconds
        return best


def candidates(cores: int) -> list[int]:
    """1, 2, 4, … and the number of cores itself."""
    return [*(1 << power for power in range(cores.bit_length()) if 1 << power < cores), cores]


def _leading(matrices: list[F32], nbytes: int) -> list[F32]:
    """The first matrices, the last of them cut by rows, that make up about `nbytes`."""
    taken: list[F32] = []
    for w in matrices:
        if nbytes <= 0:
            break
        taken.append(w[: -(-nbytes // w[0].nbytes)])
        nbytes -= taken[-1].nbytes
    return taken


def _time_products(matrices: list[F32], num_tokens: int) -> float:
    inputs = [np.ones((num_tokens, w.shape[1]), dtype=np.float32) for w in matrices]
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for x, w in zip(inputs, matrices, strict=True):
            matmul(x, w)
        times.append(time.perf_counter() - start)
    return float(np.median(times))
