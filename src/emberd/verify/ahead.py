"""Kernels of cases compiled side by side before the cases run: a first check's time goes to compiling.

The cases are made once on a device that holds nothing, to tell which kernels they take.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from ..runtime.counting import CountingDevice
from ..runtime.device import Device
from ..runtime.kernel import Dispatch, KernelKey
from .bench import F32
from .check import Case, Check
from .load_bench import Kept, LoadBench, WatchedKernels

logger = logging.getLogger(__name__)


class PlanningBench(LoadBench):
    """Makes the dispatches of those cases that would run on `device`, and runs nothing; every case passes."""

    def __init__(self, device: Device, kept: Kept) -> None:
        counting = CountingDevice(replace(device.info, limits=device.limits))
        counting.subgroup_size, counting.left_out = device.subgroup_size, device.left_out
        super().__init__(WatchedKernels(counting), kept)
        self.used: set[KernelKey] = set()

    def judge(self, case: Case) -> Check:
        if not self.is_kept(case):
            with suppress(Exception):  # whatever it is, the case itself will tell
                case.run()
        return case.row(0.0)

    def normal(self, *shape: int) -> F32:
        return np.ones(shape, np.float32)

    def floats(self, raw: NDArray[np.uint8], type: GGMLQuantizationType) -> F32:
        """As many as these rows hold."""
        weights, nbytes = GGML_QUANT_SIZES[type]
        shape = len(raw), raw.shape[1] // nbytes * weights
        return np.broadcast_to(np.float32(1), shape)

    def run(self, steps: Dispatch | Sequence[Dispatch], *_: object) -> list[NDArray[Any]]:
        """Ends the case: what it dispatches is known."""
        self.used.update(step.kernel.key for step in self.dispatched(steps))
        raise InterruptedError


def compile_ahead(
    kernels: WatchedKernels, kept: Kept, cases: Callable[[LoadBench], Iterable[object]]
) -> None:
    """Compile what these cases take, those that are kept aside."""
    planning = PlanningBench(kernels.device, kept)
    try:
        for _ in cases(planning):
            pass
    except Exception as fault:  # the cases themselves will tell
        logger.debug("kernels are not compiled ahead: %s", fault)
    kernels.compile(planning.used)
