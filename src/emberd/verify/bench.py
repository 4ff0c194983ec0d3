"""Workbench: running dispatches on the device under test, with poisoned outputs and fresh random input."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from ..gguf.loaded import loaded_floats
from ..reference.ops import round_steps
from ..runtime.activations import QUANT_RUN, activations, padded, steps_of, words_of
from ..runtime.device import Device, Tensor
from ..runtime.kernel import Dispatch, Kernels, run_once
from ..runtime.kv_cache import KVType
from ..runtime.linear import QuantizedActivations
from ..runtime.matvec import gains_by_baking
from .check import Case, Check, compare

F32 = NDArray[np.float32]

GROUP = 16
"""int8 activations that share a scale where few tokens run, as here."""


class Workbench:
    """A device, its kernels, and random numbers."""

    def __init__(self, device: Device, kernels: Kernels | None = None) -> None:
        self.device = device
        self.kernels = kernels or Kernels(device)
        self.baking = False  # whether kernels get their params in their text
        self.kv_type: KVType = "f16"  # of caches
        self.fine = False  # whether activations are two int8 a value
        self.rng = np.random.default_rng(secrets.randbits(64))

    def compare(
        self,
        kernel: str,
        type_name: str,
        shape: str,
        kind: str,
        run: Callable[[], tuple[NDArray[Any], NDArray[Any]]],
    ) -> Check:
        """Run one case, which gives (out, ref)."""
        if self.fine and kind == "int8_round":
            kind = "fine_round"
        return self.judge(Case(kernel, type_name, shape, kind, run))

    def judge(self, case: Case) -> Check:
        return compare(case)

    @contextmanager
    def sizes_in_text(self) -> Iterator[None]:
        """Cases run meanwhile take kernels that have their params in their text, as a step of one token does."""
        self.baking = True
        try:
            yield
        finally:
            self.baking = False

    def normal(self, *shape: int) -> F32:
        return self.rng.standard_normal(shape, dtype=np.float32)

    def floats(self, raw: NDArray[np.uint8], type: GGMLQuantizationType) -> F32:
        """The weights of these rows as the device's kernels see them."""
        return loaded_floats(raw, type, self.device.left_out)

    def wide(self, x: F32) -> F32:
        """`x` with rows as long as tensors have them, zeros at their ends."""
        return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, padded(x.shape[-1]) - x.shape[-1])])

    def put(self, array: NDArray[Any]) -> Tensor:
        return self.device.upload(array)

    def ints(self, values: Sequence[int] | NDArray[Any]) -> Tensor:
        return self.device.upload(np.asarray(values, np.int32))

    def count(self, rows: int) -> Tensor:
        return self.device.upload(np.array([rows], np.uint32))

    def poisoned(self, *shape: int) -> Tensor:
        """An output of NaN, so that what a kernel leaves out shows."""
        return self.device.upload(np.full(shape, np.nan, np.float32))

    def run(self, steps: Dispatch | Sequence[Dispatch], *outputs: Tensor) -> list[NDArray[Any]]:
        run_once(self.device, self.dispatched(steps))
        return [self.device.read(output) for output in outputs]

    def dispatched(self, steps: Dispatch | Sequence[Dispatch]) -> list[Dispatch]:
        """As they run."""
        steps = [steps] if isinstance(steps, Dispatch) else list(steps)
        if not self.baking:
            return steps
        return [self.kernels.baked(step) if gains_by_baking(step) else step for step in steps]

    def quantized(self, x: F32) -> tuple[QuantizedActivations, F32]:
        """`x` as int8 activations on the device, made by the reference, and the values they stand for."""
        steps, scale = round_steps(x, fine=self.fine)
        halves = np.repeat(scale, 2, axis=1)  # a scale for every 16 values
        sums = steps.reshape(len(steps), -1, 16).sum(axis=2)
        scales = np.stack([halves, halves * sums], axis=2)
        activations = QuantizedActivations(
            self.put(words_of(steps, self.fine)), self.put(scales), fine=self.fine
        )
        return activations, _times(steps, scale)

    def rounded(self, x: F32, group: int = QUANT_RUN) -> F32:
        """The values that `x` as int8 activations stand for."""
        return _times(*round_steps(x, group, self.fine))

    def activations(
        self, rows: int, width: int, pending_eps: float | None = None, group: int = QUANT_RUN
    ) -> QuantizedActivations:
        """Room for what a kernel rounds."""
        return activations(self.device, rows, width, pending_eps, group, self.fine)


def _times(steps: F32, scale: F32) -> F32:
    return (steps.reshape(*scale.shape, -1) * scale[..., None]).reshape(steps.shape)


def read_quantized(
    bench: Workbench, steps: Dispatch | Sequence[Dispatch], activations: QuantizedActivations
) -> NDArray[np.float32]:
    """Run a quantizing kernel; the values that its output stands for."""
    words, scales = bench.run(steps, activations.q, activations.scales)
    return _times(steps_of(words, activations.fine), scales[:, :: activations.group // 16, 0])
