"""Kernels that are not matrix products, as functions: tensors and sizes in, dispatches out.

Each checks shapes, picks constants for the device and the grid, and launches nothing. Names and argument
order are the kernels' own. T: rows of the bucket; what changes from step to step is in tensors, not in params.
"""

from __future__ import annotations

from typing import Literal

from ..errors import DeviceError
from .compose import Constant
from .device import Device, Tensor
from .kernel import Dispatch, Kernel, Kernels

Activation = Literal["silu", "gelu"]
Pairing = Literal["adjacent", "halves"]

MAX_SPLITS = 64
"""Most workgroups that share one row's context in `attention_decode`."""

_LANES = 128  # of kernels whose lanes are independent
_HEADS_TOGETHER = 4  # query heads of one attention_decode workgroup
_DECODE_LANES = 128


def rms_norm(
    kernels: Kernels, x: Tensor, weight: Tensor, y: Tensor, *, rows: int, width: int, eps: float
) -> Dispatch:
    """y = rms_norm(x) · weight: x and y (rows, width), weight (width,)."""
    assert x.shape == y.shape == (rows, width) and weight.shape == (width,), (x, weight, y)
    kernel = _reducing(kernels, "rms_norm", _row_lanes(kernels))
    return kernels.dispatch(kernel, (x, weight, y), (rows, 1, 1), width=width, eps=eps)


def rms_norm_add(
    kernels: Kernels,
    x: Tensor,
    weight: Tensor,
    residual: Tensor,
    *,
    rows: int,
    width: int,
    eps: float,
) -> Dispatch:
    """residual += rms_norm(x) · weight: x and residual (rows, width), weight (width,)."""
    assert x.shape == residual.shape == (rows, width) and weight.shape == (width,)
    kernel = _reducing(kernels, "rms_norm_add", _row_lanes(kernels))
    return kernels.dispatch(kernel, (x, weight, residual), (rows, 1, 1), width=width, eps=eps)


def silu_mul(
    kernels: Kernels,
    gate_up: Tensor,
    y: Tensor,
    *,
    rows: int,
    width: int,
    activation: Activation,
) -> Dispatch:
    """y = activation(gate) · up: gate_up (rows, 2 · width) holds gate, then up; y (rows, width)."""
    assert gate_up.shape == (rows, 2 * width) and y.shape == (rows, width), (gate_up, y)
    kernel = kernels.get("silu_mul", WG=_LANES, GELU=activation == "gelu")
    return kernels.dispatch(kernel, (gate_up, y), (-(-width // _LANES), rows, 1), width=width)


def gather_rows(
    kernels: Kernels, x: Tensor, indices: Tensor, y: Tensor, *, rows: int, width: int
) -> Dispatch:
    """y[r] = x[indices[r]]: x (T, width), indices i32 (rows,), y (rows, width). Negative: y[r] stays."""
    assert x.shape[1] == width and indices.shape == (rows,) and y.shape == (rows, width)
    kernel = kernels.get("gather_rows", WG=_LANES)
    return kernels.dispatch(kernel, (x, indices, y), (-(-width // _LANES), rows, 1), width=width)


def rope_kv_write(
    kernels: Kernels,
    qkv: Tensor,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    positions: Tensor,
    slots: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    count: Tensor,
    *,
    rows: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    rope_dim: int,
    pairing: Pairing,
    eps: float,
) -> Dispatch:
    """Split qkv, norm q and k heads (with q_norm and k_norm), rotate them; q goes out, k and v to their slots.

    qkv (rows, (H + 2 KVH) · hd), q (rows, H, hd), caches u32 (slots, KVH, hd / 2), positions and slots i32
    (rows,), cos and sin (P, rope_dim / 2), norms (hd,). Tokens from count on, and k and v of tokens with a
    negative slot, are not written.
    """
    assert qkv.shape == (rows, (num_heads + 2 * num_kv_heads) * head_dim), qkv
    assert q.shape == (rows, num_heads, head_dim), q
    assert k_cache.shape[1:] == v_cache.shape[1:] == (num_kv_heads, head_dim // 2), k_cache
    assert positions.shape == slots.shape == (rows,)
    assert cos.shape == sin.shape and cos.shape[1] == rope_dim // 2 <= head_dim // 2, cos
    assert head_dim % 2 == 0 and (q_norm is None) == (k_norm is None)
    lanes = max(32, kernels.device.subgroup_size or 0)
    while lanes < min(head_dim // 2, 128):
        lanes *= 2
    norms: tuple[Tensor, ...] = ()
    if q_norm is not None and k_norm is not None:
        assert q_norm.shape == k_norm.shape == (head_dim,)
        norms = (q_norm, k_norm)
    kernel = _reducing(
        kernels,
        "rope_kv_write",
        lanes,
        includes={"head_norm": "head_norm" if norms else "head_norm_none"},
        HEAD_DIM=head_dim,
        HALVES=pairing == "halves",
    )
    tensors = (qkv, q, k_cache, v_cache, positions, slots, cos, sin, *norms, count)
    return kernels.dispatch(
        kernel,
        tensors,
        (num_heads + 2 * num_kv_heads, rows, 1),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        rope_dim=rope_dim,
        eps=eps,
    )


def decode_splits(device: Device, *, rows: int, num_kv_heads: int) -> int:
    """How many workgroups may share a row's context, so that a few rows still fill the device."""
    if device.info.is_software:
        return 1
    return max(1, min(MAX_SPLITS, 1024 // (rows * num_kv_heads)))


def decode_partial_shape(
    *, rows: int, num_heads: int, head_dim: int, splits: int
) -> tuple[int, int, int, int]:
    """Shape of attention_decode's `partial`; one tensor serves every layer and any smaller use."""
    return (rows, num_heads, splits, head_dim + _kv_dims(head_dim))


def attention_decode(
    kernels: Kernels,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    partial: Tensor,
    y: Tensor,
    count: Tensor,
    *,
    rows: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    window: int,
    scale: float,
    splits: int,
) -> list[Dispatch]:
    """Attention of decode rows: row r's query is token r of q (T, H, hd), its result token r of y (T, H, hd).

    Caches u32 (slots, KVH, hd / 2), block_tables i32 (R, B), context_lens i32 (R,), partial f32 with at least
    `decode_partial_shape` elements. Rows from count (the number of decode rows) on are not touched.
    """
    assert q.shape == y.shape and q.shape[0] >= rows and q.shape[1:] == (num_heads, head_dim), q
    assert k_cache.shape[1:] == v_cache.shape[1:] == (num_kv_heads, head_dim // 2), k_cache
    assert block_tables.shape[0] >= rows and context_lens.shape[0] >= rows
    assert num_heads % num_kv_heads == 0 and 1 <= splits <= MAX_SPLITS
    kv = _kv_include(kernels.device, head_dim)
    row_elements = num_heads * splits * (head_dim + _kv_dims(head_dim))
    assert partial.nbytes >= 4 * rows * row_elements, partial
    kernel = kernels.get("attention_decode", {"kv": kv}, HEAD_DIM=head_dim, WG=_DECODE_LANES)
    head_groups = -(-(num_heads // num_kv_heads) // _HEADS_TOGETHER)
    tensors = (q, k_cache, v_cache, block_tables, context_lens, count, partial, y)
    split = kernels.dispatch(
        kernel,
        tensors,
        (splits, num_kv_heads * head_groups, rows),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        block_size=block_size,
        table_width=block_tables.shape[1],
        window=window,
        splits=splits,
        scale=scale,
    )
    if splits == 1:
        return [split]
    merge = kernels.dispatch(
        kernels.get("attention_decode_merge", {"kv": kv}, HEAD_DIM=head_dim, WG=64),
        (partial, context_lens, count, y),
        (num_heads, rows, 1),
        num_heads=num_heads,
        window=window,
        splits=splits,
    )
    return [split, merge]


def prefill_tile_size(device: Device, *, num_heads: int) -> int:
    """Query tokens of a tile: larger ones reuse keys more, smaller ones make more workgroups."""
    if device.info.is_software:
        return 32
    return 64 if num_heads >= 16 else 32


def attention_prefill(
    kernels: Kernels,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    tiles: Tensor,
    tile_count: Tensor,
    y: Tensor,
    *,
    max_tiles: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    window: int,
    scale: float,
    tile_size: int,
) -> Dispatch:
    """Causal attention of prefill tokens: q and y (T, H, hd), in tiles of consecutive tokens of one row.

    tiles i32 (max_tiles, 4): row, first token in the batch, number of tokens (at most tile_size: 16, 32 or
    64), position of the first token. context_lens i32 (R,) ends at the row's last token of this batch.
    Tiles from tile_count on are not touched.
    """
    assert q.shape == y.shape and q.shape[1:] == (num_heads, head_dim), q
    assert k_cache.shape[1:] == v_cache.shape[1:] == (num_kv_heads, head_dim // 2), k_cache
    assert tiles.shape == (max_tiles, 4) and num_heads % num_kv_heads == 0, tiles
    assert tile_size in (16, 32, 64), tile_size
    words = head_dim // _kv_dims(head_dim)
    value_keys = 64
    while value_keys * words > 4 * (tile_size + 2 + 64 + 2):  # what the stage holds anyway
        value_keys //= 2
    kernel = kernels.get(
        "attention_prefill",
        {"kv": _kv_include(kernels.device, head_dim)},
        HEAD_DIM=head_dim,
        BQ=tile_size,
        WG=4 * tile_size,
        VALUE_KEYS=max(4, value_keys),
    )
    tensors = (q, k_cache, v_cache, block_tables, context_lens, tiles, tile_count, y)
    return kernels.dispatch(
        kernel,
        tensors,
        (max_tiles, num_heads, 1),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        block_size=block_size,
        table_width=block_tables.shape[1],
        window=window,
        scale=scale,
    )


def _row_lanes(kernels: Kernels) -> int:
    """Lanes of a workgroup that reduces one row: few where a barrier is dear."""
    return 256 if kernels.device.subgroup_size else 64


def _reducing(
    kernels: Kernels,
    name: str,
    lanes: int,
    includes: dict[str, str] | None = None,
    **constants: Constant,
) -> Kernel:
    """A kernel that includes the device's reduction."""
    if kernels.device.subgroup_size:
        constants["SUBGROUP"] = kernels.device.subgroup_size
    return kernels.get(name, {"reduce": kernels.reduce, **(includes or {})}, WG=lanes, **constants)


def _kv_dims(head_dim: int) -> int:
    return 4 if head_dim % 8 == 0 else 2


def _kv_include(device: Device, head_dim: int) -> str:
    """Which kv include reads heads of this size. DeviceError for sizes that the attention kernels lack."""
    if head_dim % 2 or head_dim // _kv_dims(head_dim) > 64:
        raise DeviceError(
            f"attention heads of {head_dim} dims are not supported on {device.name}: a multiple of 8 up to "
            "256, or an even number up to 128; the cpu device takes any"
        )
    return "kv_wide" if head_dim % 8 == 0 else "kv_narrow"
