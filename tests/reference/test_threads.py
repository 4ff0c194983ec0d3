"""The BLAS thread counts: which are tried, and that the faster one is taken and kept up to date."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from emberd.reference import threads
from emberd.reference.threads import BlasThreads


@pytest.mark.parametrize(
    ("cores", "tried"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_powers_of_two_and_all_cores_are_tried(cores: int, tried: list[int]) -> None:
    assert threads.candidates(cores) == tried


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, float]], None]:
    """Lets products take the given seconds for each thread count."""
    if not any(pool["user_api"] == "blas" for pool in threadpool_info()):
        pytest.skip("NumPy's BLAS has no thread count here (Accelerate)")
    monkeypatch.setattr(threads, "num_cores", lambda: 2)

    def set_times(seconds: dict[int, float]) -> None:
        monkeypatch.setattr(threads, "_time_products", lambda *_: seconds[blas_threads()])

    return set_times


def blas_threads() -> int:
    counts = {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
    return max(counts)


MATRICES = [np.ones((8, 4), dtype=np.float32)]


def test_the_faster_count_is_used_inside(take: Callable[[dict[int, float]], None]) -> None:
    outside = blas_threads()
    take({1: 1.0, 2: 0.6})
    blas = BlasThreads(MATRICES)
    with blas.limit(prefill=True):
        assert blas_threads() == 2
    take({1: 1.0, 2: 3.0})
    with BlasThreads(MATRICES).limit(prefill=False):
        assert blas_threads() == 1
    assert blas_threads() == outside


def test_it_is_measured_again_after_much_work(
    take: Callable[[dict[int, float]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    take({1: 1.0, 2: 0.6})
    blas = BlasThreads(MATRICES)
    take({1: 1.0, 2: 3.0})
    with blas.limit(prefill=False):
        assert blas_threads() == 2
    monkeypatch.setattr(threads, "MEASURE_EVERY", 0.0)
    with blas.limit(prefill=False):
        assert blas_threads() == 1
