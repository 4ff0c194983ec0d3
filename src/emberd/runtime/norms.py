"""Norms of hidden states as dispatches, RMS or LayerNorm, in the forms that their readers take.

Knows tensors and matrices; not where in a layer a norm stands.
"""

from __future__ import annotations

from . import linear, ops
from .device import Tensor
from .kernel import Dispatch, Kernels
from .model import Norm, Projection
from .projection import Input

Following = tuple[Norm | None, Projection]
"""A norm of the hidden states, and what reads it."""


def rms_weight(following: Following) -> Tensor | None:
    """The weight of an RMS norm whose 1 / rms can be left to its reader; None where it cannot."""
    norm, reader = following
    if norm is None or norm.bias is not None:
        return None
    return norm.weight if all(matrix.is_quantized for matrix in reader.matrices) else None


def norm_rows(
    kernels: Kernels,
    x: Tensor,
    norm: Norm,
    out: Input,
    reader: Projection,
    indices: Tensor | None = None,
    *,
    rows: int,
    eps: float,
) -> list[Dispatch]:
    """Norm of all rows of x, or of those that `indices` names, in the forms that `reader` takes."""
    width = x.shape[1]
    quantizes = any(matrix.is_quantized for matrix in reader.matrices)
    if norm.bias is not None:
        steps = [norm_floats(kernels, x, norm, out.floats, indices, eps=eps)]
        if quantizes:
            steps.append(linear.quantize_q8(kernels, out.floats, out.q8, rows=rows, width=width))
        return steps
    steps = []
    if quantizes:
        steps.append(
            linear.rms_norm_quantize(
                kernels, x, norm.weight, out.q8, indices, rows=rows, width=width, eps=eps
            )
        )
    if not all(matrix.is_quantized for matrix in reader.matrices):
        steps.append(norm_floats(kernels, x, norm, out.floats, indices, eps=eps))
    return steps


def norm_floats(
    kernels: Kernels, x: Tensor, norm: Norm, y: Tensor, indices: Tensor | None, *, eps: float
) -> Dispatch:
    """y (rows, D) = norm of all rows of x, or of those that `indices` names."""
    sizes = {"rows": y.shape[0], "width": x.shape[1], "count": norm.count}
    if norm.bias is None:
        return ops.rms_norm(kernels, x, norm.weight, y, indices, eps=eps, **sizes)
    return ops.layer_norm(kernels, x, norm.weight, norm.bias, y, indices, eps=eps, **sizes)
