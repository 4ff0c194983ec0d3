"""int8 activations on the GPU: what quantizing kernels write and products of quant types read.

Knows tensors; no weights and no kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..gguf.model import Activation
from .device import Device, Tensor

QUANT_RUN = 32
"""Activations are rounded in runs of this many values, which share one scale or have one a half."""

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
    matmul reads 32.
    """

    q: Tensor  # u32 (rows, width / 4): four int8 a word
    scales: Tensor  # f32 (rows, width / 16, 2): for each 16 values (scale, scale * their sum)
    norm: PendingNorm | None = None  # None: the values are final
    group: int = QUANT_RUN
    rows: Tensor | None = (
        None  # i32 (tokens,): the row that each token is; None: its own. For matvec
    )

    @property
    def width(self) -> int:
        return self.q.shape[1] * 4

    def first_rows(self, rows: int, group: int = QUANT_RUN) -> QuantizedActivations:
        """The first `rows` rows, without a copy, to be written with scales of `group` values."""
        norm = self.norm and replace(self.norm, squares=_first_rows(self.norm.squares, rows))
        return QuantizedActivations(
            _first_rows(self.q, rows), _first_rows(self.scales, rows), norm, group
        )


def padded(width: int, unit: int = FLOAT_UNIT) -> int:
    """The next multiple of `unit`: rows of tensors are so long, and zeros lie behind a model's own values."""
    return -(-width // unit) * unit


def activations(
    device: Device,
    rows: int,
    width: int,
    pending_eps: float | None = None,
    group: int = QUANT_RUN,
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
        device.empty((rows, width // 4), "u32", "activations"),
        device.empty((rows, width // 16, 2), "f32", "activation scales"),
        norm,
        group,
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
