"""int8 activations on the GPU: what quantizing kernels write and products of quant types read.

Knows tensors; no weights and no kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..gguf.model import Activation
from .compose import Constant
from .device import Device, Tensor

QUANT_RUN = 32
"""Activations are rounded in runs of this many values, which share one scale or have one a half."""

NARROW = 768
"""States narrower than this are kept as two int8 a value. One cost a log-probability up to 0.54
in a model of 576 and 0.25 in one of 640; in one of 896 less than llama.cpp's own int8 (docs/performance.md)."""

FLOAT_UNIT = 8
"""Kernels read this many columns of float weights at a time, and as many float activations."""


@dataclass(frozen=True, slots=True)
class PendingNorm:
    """The part of an RMS norm that the reader of the activations has to add: 1 / rms of each row."""

    squares: Tensor  # f32 (rows, width / 16): sums of squares before the norm
    eps: float


@dataclass(frozen=True, slots=True)
class QuantizedActivations:
    """int8 activations (rows, width): scales, and sums for weights with a minimum.

    `group`: values that share a scale, 16 or 32. matvec reads either and is nearer to floats with 16;
    matmul reads 32. `fine`: each value has a second int8, what the first leaves in steps of a 128th of its own.
    """

    q: Tensor  # u32 (rows, width / 4): four int8 a word; fine: as many seconds behind every 16 values
    scales: Tensor  # f32 (rows, width / 16, 2): for each 16 values (scale, scale * their sum)
    norm: PendingNorm | None = None  # None: the values are final
    group: int = QUANT_RUN
    rows: Tensor | None = (
        None  # i32 (tokens,): the row that each token is; None: its own. For matvec
    )
    fine: bool = False

    @property
    def width(self) -> int:
        return self.q.shape[1] * (2 if self.fine else 4)

    @property
    def constants(self) -> dict[str, Constant]:
        """Of a kernel that writes these."""
        return {"GROUP": self.group, "FINE": self.fine}

    def first_rows(self, rows: int, group: int = QUANT_RUN) -> QuantizedActivations:
        """The first `rows` rows, without a copy, to be written with scales of `group` values."""
        norm = self.norm and replace(self.norm, squares=_first_rows(self.norm.squares, rows))
        return QuantizedActivations(
            _first_rows(self.q, rows),
            _first_rows(self.scales, rows),
            norm,
            group,
            fine=self.fine,
        )


def is_fine(hidden_size: int) -> bool:
    """Whether a model with states of this width keeps two int8 a value."""
    return hidden_size < NARROW


def steps_of(words: NDArray[np.uint32], fine: bool) -> NDArray[np.float32]:
    """The values that words (rows, any) of int8 activations stand for, in steps of their scales: (rows, width)."""
    q = words.view(np.int8).astype(np.float32)
    if not fine:
        return q
    both = q.reshape(len(q), -1, 2, 16)
    return (both[:, :, 0] + both[:, :, 1] / np.float32(128)).reshape(len(q), -1)


def words_of(steps: NDArray[np.float32], fine: bool) -> NDArray[np.uint32]:
    """The words (rows, any) of values (rows, width) given in steps of their scales, whole ones unless `fine`."""
    whole = np.rint(steps)
    if not fine:
        return np.ascontiguousarray(whole.astype(np.int8)).view(np.uint32)
    rest = np.rint((steps - whole) * 128)
    both = np.stack([part.reshape(len(steps), -1, 16) for part in (whole, rest)], axis=2)
    return np.ascontiguousarray(both.reshape(len(steps), -1).astype(np.int8)).view(np.uint32)


def padded(width: int, unit: int = FLOAT_UNIT) -> int:
    """The next multiple of `unit`: rows of tensors are so long, and zeros lie behind a model's own values."""
    return -(-width // unit) * unit


def activations(
    device: Device,
    rows: int,
    width: int,
    pending_eps: float | None = None,
    group: int = QUANT_RUN,
    fine: bool = False,
) -> QuantizedActivations:
    """Room for `rows` tokens, with `pending_eps` for sums of squares too.

    `width` is made a multiple of 32. Others belong to models whose matrices of that width are float and read none.
    """
    width = padded(width, QUANT_RUN)
    norm = None
    if pending_eps is not None:
        squares = device.empty((rows, width // 16), "f32", "activation squares")
        norm = PendingNorm(squares, pending_eps)
    return QuantizedActivations(
        device.empty((rows, width // (2 if fine else 4)), "u32", "activations"),
        device.empty((rows, width // 16, 2), "f32", "activation scales"),
        norm,
        group,
        fine=fine,
    )


def _first_rows(tensor: Tensor, rows: int) -> Tensor:
    return Tensor(tensor.buffer, (rows, *tensor.shape[1:]), tensor.dtype, tensor.offset)


def activation_include(activation: Activation, gated: bool) -> str:
    """Which include computes a feed-forward's activation."""
    assert activation != "relu_squared" if gated else activation in ("gelu", "relu_squared")
    return f"activation_{activation}" + ("" if gated else "_alone")


def quantize_include(device: Device) -> str:
    """Which include rounds values in workgroup memory to int8: by subgroups where they hold whole runs."""
    by_subgroup = device.subgroup_size is not None and device.subgroup_size % 8 == 0
    return "quantize_tile_subgroup" if by_subgroup else "quantize_tile"
