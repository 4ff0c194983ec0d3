"""Kernels that only encoders use, as functions: tensors and sizes in, dispatches out. As ops.py, which has the rest.

T tokens of all texts put one after the other, H heads, hd head size.
"""

from __future__ import annotations

from ..errors import HeadsError
from .compose import Constant
from .device import Device, Tensor
from .kernel import Dispatch, Kernel, Kernels

_LANES = 128  # of kernels whose lanes are independent


def check_heads(device: Device, head_dim: int) -> None:
    """Raises HeadsError for heads that the attention kernel lacks."""
    if head_dim > (most := _max_head_dim(device)):
        raise HeadsError(
            f"encoder heads of {head_dim} dims are not supported on {device.name}: at most {most}; "
            "the cpu device takes any"
        )


def _max_head_dim(device: Device) -> int:
    """A lane a dim, in workgroups of powers of two."""
    return 1 << (device.max_workgroup_size.bit_length() - 1)


def layer_norm_add(
    kernels: Kernels,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor,
    y: Tensor,
    indices: Tensor | None = None,
    *,
    rows: int,
    width: int,
    eps: float,
    count: int | None = None,
) -> Dispatch:
    """y = layer_norm(x + residual) · weight + bias: x and y (rows, width), weight and bias (width,).

    residual (any rows, width): of row r, or of row indices[r] with indices i32 (rows,). `count` as in `ops.rms_norm`.
    """
    assert x.shape == y.shape == (rows, width) and residual.shape[1] == width, (x, residual, y)
    assert weight.shape == bias.shape == (width,), (weight, bias)
    source = "row_same" if indices is None else "row_given"
    given = () if indices is None else (indices,)
    lanes = 256 if kernels.device.subgroup_size else 64
    kernel = _reducing(kernels, "layer_norm_add", lanes, {"source": source})
    tensors = (x, residual, *given, weight, bias, y)
    sizes = {"width": width, "count": count or width}
    return kernels.dispatch(kernel, tensors, (rows, 1, 1), eps=eps, **sizes)


def gelu(kernels: Kernels, x: Tensor, y: Tensor, *, rows: int, width: int) -> Dispatch:
    """y = gelu(x), the exact form: x and y (rows, width)."""
    assert x.shape == y.shape == (rows, width), (x, y)
    kernel = kernels.get("gelu", WG=_LANES)
    return kernels.dispatch(kernel, (x, y), (-(-width // _LANES), rows, 1), width=width)


def attention_encoder(
    kernels: Kernels,
    qkv: Tensor,
    bounds: Tensor,
    count: Tensor,
    y: Tensor,
    *,
    rows: int,
    num_heads: int,
    head_dim: int,
    scale: float,
) -> Dispatch:
    """Attention inside each text, every token seeing all of it: qkv (rows, 3 · H · hd), y (rows, H · hd).

    bounds i32 (rows, 2): the first token of each token's text and the one behind its last. Tokens from
    count on are not touched. Heads are of a size that `check_heads` takes.
    """
    assert qkv.shape == (rows, 3 * num_heads * head_dim), qkv
    assert y.shape == (rows, num_heads * head_dim) and bounds.shape == (rows, 2), (y, bounds)
    assert head_dim <= _max_head_dim(kernels.device), head_dim
    lanes = max(64, 1 << (head_dim - 1).bit_length(), kernels.device.subgroup_size or 0)
    kernel = _reducing(kernels, "attention_encoder", lanes, {}, HEAD_DIM=head_dim)
    tensors = (qkv, bounds, count, y)
    return kernels.dispatch(kernel, tensors, (rows, num_heads, 1), num_heads=num_heads, scale=scale)


def _reducing(
    kernels: Kernels, name: str, lanes: int, includes: dict[str, str], **constants: Constant
) -> Kernel:
    """A kernel that includes the device's reduction."""
    if kernels.device.subgroup_size:
        constants["SUBGROUP"] = kernels.device.subgroup_size
    return kernels.get(name, {"reduce": kernels.reduce, **includes}, WG=lanes, **constants)
