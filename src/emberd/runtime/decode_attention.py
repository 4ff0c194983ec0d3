"""Attention of one new token a row, as a function: tensors and sizes in, dispatches out.

Picks the kernel for the device and the heads, and into how many workgroups a context is split. A device whose
subgroups have one size reads keys by groups of lanes; any other by a lane a key.
"""

from __future__ import annotations

import math

from .activations import QuantizedActivations, quantize_include
from .compose import Constant
from .device import Device, Tensor
from .kernel import Dispatch, Kernel, Kernels
from .kv_cache import KVType, kv_type_of
from .ops import Heads, Rotation, kv_dims, kv_include, kv_includes

MAX_SPLITS = 64
"""Most workgroups that share one row's context in `attention_decode`."""

_WORKGROUP_DIMS = 256  # largest heads of which workgroup memory holds four more than once

_HEADS_TOGETHER = 4  # query heads of one attention_decode workgroup
_MANY_WORKGROUPS = 256  # that fill a large device
_SPLIT_TOKENS = 128  # least share of a context that is worth a workgroup of its own
_NEAR_TOKENS = 512  # longest context of many rows for which a head a workgroup pays


def decode_splits(device: Device, *, rows: int, num_kv_heads: int, context: int) -> int:
    """How many workgroups may share a row's context, so that a few rows still fill the device.

    One where no context is longer than `context` and that is so short that joining shares costs more.
    """
    workgroups = rows * num_kv_heads
    if device.info.is_software or context <= (512 if workgroups >= 128 else 256):
        return 1
    most = MAX_SPLITS if context > 2048 else 8
    return max(1, min(most, _MANY_WORKGROUPS // workgroups))


def decode_near(device: Device, *, rows: int, num_kv_heads: int, context: int) -> bool:
    """Whether many rows, with contexts of at most `context` tokens, are to be attended by a workgroup for each head.

    It reads keys and values once for each head, but more of them wait at a time.
    """
    many = _MANY_WORKGROUPS // 2 < rows * num_kv_heads <= _MANY_WORKGROUPS
    return device.subgroup_size is not None and context <= _NEAR_TOKENS and many


def gives_int8(head_dim: int) -> bool:
    """Whether `attention_decode` can write int8."""
    return head_dim % 32 == 0 and head_dim <= _WORKGROUP_DIMS


def decode_partial_shape(
    *, rows: int, num_heads: int, head_dim: int, splits: int
) -> tuple[int, int, int, int]:
    """Shape of attention_decode's `partial`; one tensor serves every layer and any smaller use."""
    return (rows, num_heads, splits, head_dim + kv_dims(head_dim))


def attention_decode(
    kernels: Kernels,
    heads: Heads,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    rotation: Rotation,
    partial: Tensor,
    y: Tensor | QuantizedActivations,
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
    near: bool = False,
    cap: float = 0.0,
    sinks: Tensor | None = None,
) -> list[Dispatch]:
    """Rotation, KV write and attention of one new token a row; y (T, H, hd), or int8 (T, H · hd) if `gives_int8`.

    Row r's new token is token r and the last of its context. Caches of `kv_cache.kv_type_of`; block_tables
    i32 (R, B), context_lens i32 (R,), the new token included; window, cap 0: none; sinks f32 (H,); `partial`
    holds `decode_partial_shape` elements; `near` as of `decode_near`. Rows from count (the number of decode rows)
    on are not touched.
    """
    heads.check(rows, num_heads, num_kv_heads, head_dim)
    rotation.check(head_dim)
    kind = kv_type_of(k_cache, v_cache, num_kv_heads, head_dim)
    assert block_tables.shape[0] >= rows and context_lens.shape[0] >= rows
    assert num_heads % num_kv_heads == 0 and 1 <= splits <= MAX_SPLITS
    kv = kv_include(kernels.device, head_dim)
    row_elements = num_heads * splits * (head_dim + kv_dims(head_dim))
    assert partial.nbytes >= 4 * rows * row_elements, partial
    out: tuple[Tensor, ...]
    groups = {} if isinstance(y, Tensor) else y.constants
    if isinstance(y, Tensor):
        assert y.shape[1:] == (num_heads, head_dim), y
        target, out = "attended_float", (y,)
    else:
        assert gives_int8(head_dim) and y.width == num_heads * head_dim, y
        target, out = "attended_int8", (y.q, y.scales)
    given = () if sinks is None else (sinks,)
    out_includes = {"sinks": "sinks_none" if sinks is None else "sinks"}
    if target == "attended_int8":
        out_includes["quantize"] = quantize_include(kernels.device)
    kernel, together = _decode_kernel(
        kernels,
        {**out_includes, "target": target} if splits == 1 else {"target": "attended_split"},
        rotation,
        head_dim,
        kind,
        1 if near else heads_together(num_heads // num_kv_heads, rows * num_kv_heads * splits),
        splits,
        near,
        rows == 1,
        window,
        cap * math.log2(math.e),
        BLOCK_SIZE=block_size,
        **(groups if splits == 1 else {}),
    )
    head_groups = -(-(num_heads // num_kv_heads) // together)
    caches, places = (k_cache, v_cache), (block_tables, context_lens)
    angles = (rotation.cos, rotation.sin, *rotation.norms)
    split = kernels.dispatch(
        kernel,
        (
            heads.qk,
            heads.v,
            *caches,
            *places,
            *angles,
            count,
            *((*out, *given) if splits == 1 else [partial]),
        ),
        (splits, num_kv_heads * head_groups, rows),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        table_width=block_tables.shape[1],
        window=window,
        splits=splits,
        rope_dim=rotation.dims,
        scale=scale * math.log2(math.e),
        eps=rotation.eps,
        **heads.sizes,
    )
    if splits == 1:
        return [split]
    merge = kernels.dispatch(
        kernels.get(
            "attention_decode_merge",
            {**out_includes, "target": target, "kv": kv},
            HEAD_DIM=head_dim,
            WG=max(256 if kernels.device.subgroup_size else 64, _word_lanes(head_dim)),
            SPLIT_TOKENS=_SPLIT_TOKENS,
            **groups,
        ),
        (partial, context_lens, count, *out, *given),
        (num_heads, rows, 1),
        num_heads=num_heads,
        window=window,
        splits=splits,
    )
    return [split, merge]


def _decode_kernel(
    kernels: Kernels,
    includes: dict[str, str],
    rotation: Rotation,
    head_dim: int,
    kind: KVType,
    together: int,
    splits: int,
    near: bool,
    alone: bool,
    window: int,
    cap: float,
    **constants: Constant,
) -> tuple[Kernel, int]:
    """`attention_decode`, or `attention_decode_subgroups` where device and heads allow it; heads of a workgroup.

    `alone`: there is one row. Its few workgroups take more lanes each.
    """
    device, normed = kernels.device, bool(rotation.norms)
    subgroup = device.subgroup_size
    constants |= {
        "HEAD_DIM": head_dim,
        "HALVES": rotation.pairing == "halves",
        "SPLIT_TOKENS": _SPLIT_TOKENS,
    } | rotation.constants
    includes["queries"] = rotation.queries
    includes["score"] = "score_capped" if cap else "score_plain"
    if cap:
        constants["CAP"] = cap
    parts = 1 << (-(-head_dim // 8) - 1).bit_length()
    if subgroup is None or head_dim % 8 or rotation.dims % 16 or parts > subgroup:
        kept = "heads_normed" if head_dim <= _WORKGROUP_DIMS else "heads_scaled"
        includes["heads"] = kept if normed else "heads_plain"
        includes |= kv_includes(device, head_dim, kind)
        includes["fresh"] = "fresh_q8" if kind == "q8_0" else "fresh_words"
        lanes = max(128, _word_lanes(head_dim))
        return kernels.get("attention_decode", includes, WG=lanes, **constants), _HEADS_TOGETHER
    includes["octet"] = "octet_q8" if kind == "q8_0" else "octet_words"
    includes["heads"] = "octets_normed" if normed else "octets_plain"
    includes["together"] = "heads_one" if together == 1 else "heads_four"
    few = together * splits == 1 and not near
    kernel = kernels.get(
        "attention_decode_subgroups",
        includes,
        WG=_decode_lanes(device, head_dim, together, (64 if alone else 32) * parts if few else 128),
        WHOLE=alone and few and window == 0,
        SUBGROUP=subgroup,
        PARTS=parts,
        **constants,
    )
    return kernel, together


def _word_lanes(head_dim: int) -> int:
    """Lanes that suffice for one a word of a head."""
    return 1 << (head_dim // kv_dims(head_dim) - 1).bit_length()


def heads_together(group: int, workgroups: int) -> int:
    """Query heads of an `attention_decode_subgroups` workgroup: a few short contexts gain by more workgroups.

    `group` heads have one kv head; `workgroups`: of all rows, were as many heads together as can be.
    """
    return 1 if group <= 2 or workgroups <= _MANY_WORKGROUPS // 2 else _HEADS_TOGETHER


def _decode_lanes(device: Device, head_dim: int, together: int, wanted: int) -> int:
    """As many lanes as wanted, if workgroup memory holds what their subgroups sum up."""
    subgroup = device.subgroup_size or 1
    lanes = max(subgroup, min(wanted, 512, device.max_workgroup_size))
    while (
        lanes > subgroup
        and 8 * head_dim * together * lanes // subgroup > device.max_workgroup_bytes
    ):
        lanes //= 2
    return lanes
