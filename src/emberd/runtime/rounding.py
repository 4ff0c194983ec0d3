"""Activations to int8: alone, after an RMS norm, after the gated activation of a feed-forward.

Each op checks shapes and returns its dispatch. Knows tensors; no weight matrices, no layers.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..gguf.model import Activation
from .activations import QUANT_RUN, QuantizedActivations, activation_include
from .compose import Constant
from .device import Device, Tensor
from .kernel import Dispatch, Kernels

_RUN_LANES = 64
"""Lanes a workgroup of the kernels whose lanes take one run each."""

_NORM_LANES = 256
"""Lanes of a workgroup that norms a row by subgroups, up to what these can hold. Measured on an H200."""


def quantize_q8(
    kernels: Kernels, x: Tensor, out: QuantizedActivations, *, rows: int, width: int
) -> Dispatch:
    """out = x (rows, width) in int8, as reference `quantize_q8`."""
    _check_activations(out, rows, width)
    runs = rows * width // QUANT_RUN
    gx, gz = _fold(-(-runs // _RUN_LANES), kernels.device.max_grid)
    return kernels.dispatch(
        kernels.get("quantize_q8", {}, WG=_RUN_LANES, **out.constants),
        [x, out.q, out.scales],
        (gx, 1, gz),
        runs=runs,
    )


def rms_norm_quantize(
    kernels: Kernels,
    x: Tensor,
    weight: Tensor,
    out: QuantizedActivations,
    indices: Tensor | None = None,
    *,
    rows: int,
    width: int,
    eps: float,
) -> Dispatch:
    """out = rms_norm(x (any rows, width), weight (width,), eps) in int8.

    out[r] is of x[r], or of x[indices[r]] with indices i32 (rows,).
    """
    _check_activations(out, rows, width)
    assert weight.shape == (width,), weight.shape
    includes = {"source": "row_same" if indices is None else "row_given"}
    given = () if indices is None else (indices,)
    name, constants = _norm_kernel(kernels.device, width)
    if name == "rms_norm_quantize":
        includes["reduce"] = kernels.reduce
    kernel = kernels.get(name, includes, **out.constants, **constants)
    return kernels.dispatch(
        kernel, [x, weight, *given, out.q, out.scales], (rows, 1, 1), width=width, eps=eps
    )


def _norm_kernel(device: Device, width: int) -> tuple[str, Mapping[str, Constant]]:
    """The kernel for rows of this width and its constants."""
    subgroup = device.subgroup_size
    if subgroup is not None and subgroup % 8 == 0:
        quads = width // 4
        whole = 1 << (quads - 1).bit_length()  # lanes of one quad each; a lane holds up to four
        lanes = max(subgroup, min(whole, max(_NORM_LANES, whole // 4)))
        if lanes <= device.max_workgroup_size:
            each = -(-quads // lanes)
            return "rms_norm_quantize_subgroups", {"WG": lanes, "EACH": each, "SUBGROUP": subgroup}
    lanes = 16 if device.info.is_software else min(256, max(64, width // QUANT_RUN))
    lanes = 1 << (max(lanes, subgroup or 0) - 1).bit_length()
    return "rms_norm_quantize", {"WG": lanes} | ({"SUBGROUP": subgroup} if subgroup else {})


def silu_mul_quantize(
    kernels: Kernels,
    gate_up: Tensor,
    out: QuantizedActivations,
    *,
    rows: int,
    width: int,
    activation: Activation,
    gated: bool = True,
) -> Dispatch:
    """out = activation(gate) * up in int8; gate and up are the halves of gate_up (rows, 2 * width).

    Not `gated`: of activation(gate_up) of (rows, width), of GELU or of the squared ReLU.
    """
    _check_activations(out, rows, width)
    runs = rows * width // QUANT_RUN
    gx, gz = _fold(-(-runs // _RUN_LANES), kernels.device.max_grid)
    return kernels.dispatch(
        kernels.get(
            "silu_mul_quantize",
            {"activation": activation_include(activation, gated)},
            WG=_RUN_LANES,
            **out.constants,
        ),
        [gate_up, out.q, out.scales],
        (gx, 1, gz),
        runs=runs,
        row_runs=width // QUANT_RUN,
    )


def _fold(n: int, limit: int) -> tuple[int, int]:
    """n workgroups as (x, z) with neither above the device's limit; kernels rebuild the index."""
    folds = -(-n // limit)
    return -(-n // folds), folds


def _check_activations(out: QuantizedActivations, rows: int, width: int) -> None:
    assert width % QUANT_RUN == 0 and out.width == width, (out.width, width)
    assert out.q.shape[0] >= rows, (out.q.shape, rows)
