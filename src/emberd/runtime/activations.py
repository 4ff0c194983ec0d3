"""int8 activations on the GPU: what quantizing kernels write and products of quant types read.

Knows tensors; no weights and no kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import DeviceError
from ..gguf.model import Activation
from .device import Device, Tensor

QUANT_RUN = 32
"""Activations are rounded in runs of this many values, which share one scale or have one a half."""


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


def check_widths(device: Device, **sizes: int) -> None:
    """Raises DeviceError for a width, `hidden=100`, that kernels do not take."""
    for name, size in sizes.items():
        if size % QUANT_RUN:
            raise DeviceError(
                f"a {name.replace('_', '-')} state of {size} values is not supported on {device.name}: "
                f"a multiple of {QUANT_RUN} is needed; the cpu device takes any"
            )


def activations(
    device: Device,
    rows: int,
    width: int,
    pending_eps: float | None = None,
    group: int = QUANT_RUN,
) -> QuantizedActivations:
    """Room for `rows` tokens, `width` a multiple of 32; with `pending_eps` for sums of squares too."""
    assert width % QUANT_RUN == 0, width
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
    assert gated or activation == "gelu", activation
    return f"activation_{activation}" + ("" if gated else "_alone")


def quantize_include(device: Device) -> str:
    """Which include rounds values in workgroup memory to int8: by subgroups where they hold whole runs."""
    by_subgroup = device.subgroup_size is not None and device.subgroup_size % 8 == 0
    return "quantize_tile_subgroup" if by_subgroup else "quantize_tile"
