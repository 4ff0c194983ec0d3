"""Kernels that are not matrix products, as functions: tensors and sizes in, dispatches out.

Each checks shapes, picks constants for the device and the grid, and launches nothing. Names and argument
order are the kernels' own. T: rows of the bucket; what changes from step to step is in tensors, not in params.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import HeadsError
from ..gguf.model import Activation
from ..gguf.rope import Temperature
from .activations import activation_include
from .compose import Constant
from .device import Device, Tensor
from .kernel import Dispatch, Kernel, Kernels
from .kv_cache import KVType, kv_type_of

Pairing = Literal["adjacent", "halves"]

MAX_HEAD_DIM = 512  # that the attention kernels' workgroup memory holds

_LANES = 128  # of kernels whose lanes are independent
_SLICE_WORDS = 64  # of a head, that attention_prefill's lanes hold sums of


def rms_norm(
    kernels: Kernels,
    x: Tensor,
    weight: Tensor,
    y: Tensor,
    indices: Tensor | None = None,
    *,
    rows: int,
    width: int,
    eps: float,
    count: int | None = None,
) -> Dispatch:
    """y = rms_norm(x) · weight: x (any rows, width), y (rows, width), weight (width,).

    y[r] is of x[r], or of x[indices[r]] with indices i32 (rows,). `count`: values of a row that its mean is of, the
    others being zeros; None: all.
    """
    assert x.shape[1] == width and y.shape == (rows, width) and weight.shape == (width,), (x, y)
    source = "row_same" if indices is None else "row_given"
    given = () if indices is None else (indices,)
    kernel = _reducing(kernels, "rms_norm", _row_lanes(kernels), {"source": source})
    sizes = {"width": width, "count": count or width}
    return kernels.dispatch(kernel, (x, weight, *given, y), (rows, 1, 1), eps=eps, **sizes)


def layer_norm(
    kernels: Kernels,
    x: Tensor,
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
    """y = layer_norm(x) · weight + bias, both (width,); the rest as in `rms_norm`."""
    assert x.shape[1] == width and y.shape == (rows, width), (x, y)
    assert weight.shape == bias.shape == (width,), (weight, bias)
    source = "row_same" if indices is None else "row_given"
    given = () if indices is None else (indices,)
    kernel = _reducing(kernels, "layer_norm", _row_lanes(kernels), {"source": source})
    tensors, sizes = (x, weight, *given, bias, y), {"width": width, "count": count or width}
    return kernels.dispatch(kernel, tensors, (rows, 1, 1), eps=eps, **sizes)


def add_positions(
    kernels: Kernels, table: Tensor, positions: Tensor, count: Tensor, y: Tensor, *, rows: int
) -> Dispatch:
    """y (rows, D) += rows of table f32 (P, D) at positions i32 (rows,); rows from count on are not touched."""
    width = table.shape[1]
    assert y.shape == (rows, width) and positions.shape[0] >= rows, (table, positions, y)
    kernel = kernels.get("add_positions", WG=_LANES)
    grid = (-(-width // _LANES), rows, 1)
    return kernels.dispatch(kernel, (table, positions, count, y), grid, width=width)


def rms_norm_add(
    kernels: Kernels,
    x: Tensor,
    weight: Tensor,
    residual: Tensor,
    *,
    rows: int,
    width: int,
    eps: float,
    count: int | None = None,
) -> Dispatch:
    """residual += rms_norm(x) · weight: x and residual (rows, width), weight (width,); `count` as in `rms_norm`."""
    assert x.shape == residual.shape == (rows, width) and weight.shape == (width,)
    kernel = _reducing(kernels, "rms_norm_add", _row_lanes(kernels))
    sizes = {"width": width, "count": count or width}
    return kernels.dispatch(kernel, (x, weight, residual), (rows, 1, 1), eps=eps, **sizes)


def rms_norm_columns(
    kernels: Kernels, x: Tensor, weight: Tensor, *, rows: int, column: int, eps: float
) -> Dispatch:
    """rms_norm · weight (width,), in place, of x[:rows, column : column + width] (T, any width)."""
    (width,) = weight.shape
    assert x.shape[0] >= rows and x.shape[1] >= column + width, (x, column, weight)
    kernel = _reducing(kernels, "rms_norm_columns", _row_lanes(kernels))
    sizes = {"width": width, "column": column, "row_width": x.shape[1]}
    return kernels.dispatch(kernel, (x, weight), (rows, 1, 1), eps=eps, **sizes)


def finish_logits(
    kernels: Kernels, logits: Tensor, *, rows: int, scale: float, cap: float
) -> Dispatch:
    """logits (rows, V), in place: times `scale`, then cap · tanh(logit / cap) unless cap is 0."""
    width = logits.shape[1]
    assert logits.shape[0] >= rows, logits
    kernel = kernels.get("finish_logits", WG=_LANES)
    grid = (-(-width // _LANES), rows, 1)
    return kernels.dispatch(kernel, (logits,), grid, width=width, scale=scale, cap=cap)


def silu_mul(
    kernels: Kernels,
    gate_up: Tensor,
    y: Tensor,
    *,
    rows: int,
    width: int,
    activation: Activation,
    gated: bool = True,
) -> Dispatch:
    """y = activation(gate) · up: gate_up (rows, 2 · width) holds gate, then up; y (rows, width).

    Not `gated`: y = activation(gate_up) of (rows, width), of GELU or of the squared ReLU.
    """
    assert gate_up.shape == (rows, (1 + gated) * width) and y.shape == (rows, width), (gate_up, y)
    kernel = kernels.get(
        "silu_mul", {"activation": activation_include(activation, gated)}, WG=_LANES
    )
    return kernels.dispatch(kernel, (gate_up, y), (-(-width // _LANES), rows, 1), width=width)


def widen(kernels: Kernels, x: Tensor, count: Tensor, y: Tensor) -> Dispatch:
    """y[:, :width] (rows, any more) = x (rows, width), ahead of a product; rows from count on are not touched."""
    (rows, width), (y_rows, y_width) = x.shape, y.shape
    assert rows == y_rows and width <= y_width, (x, y)
    kernel = kernels.get("widen", WG=_LANES)
    grid = (-(-width // _LANES), rows, 1)
    return kernels.dispatch(kernel, (x, count, y), grid, width=width, y_width=y_width)


@dataclass(frozen=True, slots=True)
class Heads:
    """q, k and v heads as projected: `qk` (T, any width) holds q, then k; `v` (T, any width) from `v_column` on.

    Both may be one tensor.
    """

    qk: Tensor
    v: Tensor
    v_column: int

    def check(self, rows: int, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        assert self.qk.shape[0] >= rows and self.v.shape[0] >= rows, self
        assert self.qk.shape[1] >= (num_heads + num_kv_heads) * head_dim, self
        assert self.v.shape[1] >= self.v_column + num_kv_heads * head_dim, self

    @property
    def sizes(self) -> dict[str, int]:
        """Params of the kernels that read heads."""
        return {
            "qk_width": self.qk.shape[1],
            "v_width": self.v.shape[1],
            "v_column": self.v_column,
        }


@dataclass(frozen=True, slots=True)
class Rotation:
    """How q and k heads are normed (where the model does) and rotated."""

    cos: Tensor  # f32 (P, dims / 2)
    sin: Tensor
    dims: int  # leading dims of a head that are rotated
    pairing: Pairing
    q_norm: Tensor | None  # f32 (hd,)
    k_norm: Tensor | None
    eps: float
    temperature: Temperature | None = None  # queries grow with their position

    def check(self, head_dim: int) -> None:
        assert self.cos.shape == self.sin.shape and self.cos.shape[1] == self.dims // 2, self
        assert self.dims <= head_dim and head_dim % 2 == 0, self
        assert (self.q_norm is None) == (self.k_norm is None), self

    @property
    def queries(self) -> str:
        """Which include scales queries by their position."""
        return "queries_plain" if self.temperature is None else "queries_tempered"

    @property
    def constants(self) -> dict[str, Constant]:
        """Of that include."""
        if self.temperature is None:
            return {}
        return {
            "TEMPERATURE": self.temperature.scale,
            "TEMPERATURE_LENGTH": self.temperature.length,
        }

    @property
    def norms(self) -> tuple[Tensor, ...]:
        return () if self.q_norm is None or self.k_norm is None else (self.q_norm, self.k_norm)


def rope_kv_write(
    kernels: Kernels,
    heads: Heads,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    positions: Tensor,
    slots: Tensor,
    rotation: Rotation,
    skipped: Tensor,
    count: Tensor,
    *,
    rows: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
) -> Dispatch:
    """Norm and rotate q and k heads; q goes out, k and v to their slots.

    q (rows, H, hd), caches of `kv_cache.kv_type_of`, positions and slots i32 (rows,). Tokens below skipped
    and from count on (both u32 (1,)), and k and v of tokens with a negative slot, are not written.
    """
    heads.check(rows, num_heads, num_kv_heads, head_dim)
    rotation.check(head_dim)
    assert q.shape == (rows, num_heads, head_dim), q
    kind = kv_type_of(k_cache, v_cache, num_kv_heads, head_dim)
    assert positions.shape == slots.shape == (rows,)
    lanes = max(32, kernels.device.subgroup_size or 0)
    while lanes < min(head_dim // 2, 128):
        lanes *= 2
    kernel = _reducing(
        kernels,
        "rope_kv_write",
        lanes,
        includes={
            "head_norm": "head_norm" if rotation.norms else "head_norm_none",
            "write": "write_q8" if kind == "q8_0" else "write_words",
            "queries": rotation.queries,
        },
        HEAD_DIM=head_dim,
        HALVES=rotation.pairing == "halves",
        **rotation.constants,
    )
    caches, places = (k_cache, v_cache), (positions, slots)
    angles = (rotation.cos, rotation.sin, *rotation.norms)
    return kernels.dispatch(
        kernel,
        (heads.qk, heads.v, q, *caches, *places, *angles, skipped, count),
        (num_heads + 2 * num_kv_heads, rows, 1),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        rope_dim=rotation.dims,
        eps=rotation.eps,
        **heads.sizes,
    )


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
    cap: float = 0.0,
    sinks: Tensor | None = None,
    ahead: int = 0,
) -> Dispatch:
    """Attention of prefill tokens: q and y (T, H, hd), in tiles of consecutive tokens of one row; a token sees `ahead`
    tokens of its row behind its own (0: causal).

    tiles i32 (max_tiles, 4): row, first token in the batch, number of tokens (at most tile_size: 16, 32 or
    64), position of the first token. context_lens i32 (R,) ends at the row's last token of this batch. sinks f32 (H,).
    Tiles from tile_count on are not touched.
    """
    assert q.shape == y.shape and q.shape[1:] == (num_heads, head_dim), q
    kind = kv_type_of(k_cache, v_cache, num_kv_heads, head_dim)
    assert tiles.shape == (max_tiles, 4) and num_heads % num_kv_heads == 0, tiles
    assert tile_size in (16, 32, 64), tile_size
    words = head_dim // kv_dims(head_dim)
    slices = -(-words // _SLICE_WORDS)
    value_keys = 64
    # What the stage holds anyway, and no lane brings more than four words.
    while value_keys * -(-words // slices) > min(4 * (tile_size + 2 + 64 + 2), 16 * tile_size):
        value_keys //= 2
    kernel = kernels.get(
        "attention_prefill",
        {
            **kv_includes(kernels.device, head_dim, kind),
            "score": "score_capped" if cap else "score_plain",
            "sinks": "sinks_none" if sinks is None else "sinks",
        },
        HEAD_DIM=head_dim,
        BQ=tile_size,
        WG=4 * tile_size,
        VALUE_KEYS=max(4, value_keys),
        SLICES=slices,
        **({"CAP": cap} if cap else {}),
    )
    given = () if sinks is None else (sinks,)
    tensors = (q, k_cache, v_cache, block_tables, context_lens, tiles, tile_count, y, *given)
    return kernels.dispatch(
        kernel,
        tensors,
        (num_heads, max_tiles, slices),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        block_size=block_size,
        table_width=block_tables.shape[1],
        window=window,
        ahead=ahead,
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


def kv_dims(head_dim: int) -> int:
    return 4 if head_dim % 8 == 0 else 2


def kv_include(device: Device, head_dim: int) -> str:
    """Which kv include reads heads of this size. HeadsError for sizes that the attention kernels lack."""
    if head_dim % 2 or head_dim > MAX_HEAD_DIM:
        raise HeadsError(
            f"attention heads of {head_dim} dims are not supported on {device.name}: an even number up to "
            f"{MAX_HEAD_DIM}; the cpu device takes any even number"
        )
    return "kv_wide" if head_dim % 8 == 0 else "kv_narrow"


def kv_includes(device: Device, head_dim: int, kind: KVType) -> dict[str, str]:
    """Which includes read a KV cache of that type. HeadsError for sizes that the attention kernels lack."""
    wide = kv_include(device, head_dim)
    if kind == "q8_0":
        return {"kv": "kv_q8", "cached": "cached_q8"}
    return {"kv": wide, "cached": "cached_words"}
