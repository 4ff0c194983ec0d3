"""Check: one comparison of the device with the reference, and the tolerances that decide it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..runtime.device import AllocationError

TOLERANCE = {
    "float": 1e-5,  # float32 against float32
    "capped": 2e-4,  # float32 scores with a soft cap, which multiplies the error of tanh
    "f16": 1e-3,  # a value stored as f16 on the way
    "kv_q8": 2.5e-2,  # a run of 32 as int8: at worst one value is exact, 31 half a step off: √31 · 0.5 / 127
    "int8_twin": 1e-5,  # int8 activations against a reference that quantizes the same way
    "int8_round": 2e-3,  # rounding to int8: a value near a tie may fall to its other side
    "fine_round": 1e-4,  # the same, of activations with a second int8
    "exact": 0.0,  # token ids
}
"""‖out − ref‖ / ‖ref‖ by kind of computation."""

NO_VERDICT = (
    AllocationError,
    MemoryError,
    AssertionError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
)
"""Faults of a case rather than of its kernel: no room for it, or a mistake in it."""


@dataclass(frozen=True, slots=True)
class Check:
    """One row of verify's table. `error` is NaN where the kernel did not run or gave a NaN."""

    kernel: str
    type: str
    shape: str
    error: float
    tolerance: float
    note: str = ""
    unchecked: bool = False  # the case failed, not its kernel
    features: tuple[str, ...] = ()  # of its kernels, where these are watched: see `load_bench.py`

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance  # false for NaN

    def renamed(self, kernel: str) -> Check:
        return replace(self, kernel=kernel)


class Case(NamedTuple):
    """A comparison to be made. `kind` is one of TOLERANCE; `run` gives (out, ref)."""

    kernel: str
    type: str
    shape: str
    kind: str
    run: Callable[[], tuple[NDArray[Any], NDArray[Any]]]

    def row(self, error: float) -> Check:
        return Check(self.kernel, self.type, self.shape, error, TOLERANCE[self.kind])


def relative_error(out: NDArray[Any], ref: NDArray[Any]) -> float:
    """‖out − ref‖ / ‖ref‖ in float64; NaN when `out` holds one."""
    out64, ref64 = np.asarray(out, np.float64), np.asarray(ref, np.float64)
    assert out64.shape == ref64.shape, (out64.shape, ref64.shape)
    norm = float(np.linalg.norm(ref64))
    return float(np.linalg.norm(out64 - ref64)) / (norm or 1.0)


def compare(case: Case) -> Check:
    """Run one case. Whatever a broken kernel raises is its failed row, not the end."""
    try:
        return case.row(relative_error(*case.run()))
    except Exception as fault:
        note, unchecked = f"{type(fault).__name__}: {fault}", isinstance(fault, NO_VERDICT)
    return replace(case.row(math.nan), note=note, unchecked=unchecked)
