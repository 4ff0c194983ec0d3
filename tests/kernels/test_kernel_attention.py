"""attention_decode and attention_prefill against paged_attention over the same f16 keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from emberd.errors import DeviceError
from emberd.reference import ops as reference
from emberd.runtime import ops
from emberd.runtime.device import Device, Tensor
from emberd.runtime.kernel import Kernels, run_once
from tolerance import check

pytestmark = pytest.mark.device

SHAPES = [(9, 3, 64), (14, 2, 64), (4, 1, 256), (3, 3, 80), (2, 1, 6)]
"""Heads, kv heads, head size: groups of 3, 7, 4, 1 and 2; wide and narrow words."""


@dataclass(frozen=True)
class Cache:
    """Random keys and values of several rows in scattered blocks; every slot of no row holds NaN."""

    k: NDArray[np.float32]
    v: NDArray[np.float32]
    block_tables: NDArray[np.int32]
    block_size: int

    @classmethod
    def filled(
        cls,
        rng: np.random.Generator,
        context_lens: NDArray[np.int32],
        kv_heads: int,
        head_dim: int,
        block_size: int = 16,
    ) -> Cache:
        blocks = -(-context_lens // block_size)
        num_blocks = int(blocks.sum()) + 3
        shuffled = rng.permutation(num_blocks).astype(np.int32)
        tables = np.full((len(context_lens), int(blocks.max()) + 2), -1, np.int32)
        shape = (num_blocks * block_size, kv_heads, head_dim)
        k, v = np.full((2, *shape), np.nan, np.float16)
        for row, (length, count) in enumerate(zip(context_lens, blocks, strict=True)):
            tables[row, :count], shuffled = shuffled[:count], shuffled[count:]
            positions = np.arange(length)
            slots = tables[row, positions // block_size] * block_size + positions % block_size
            k[slots], v[slots] = rng.standard_normal((2, length, kv_heads, head_dim)) * 2
        return cls(k.astype(np.float32), v.astype(np.float32), tables, block_size)

    def upload(self, device: Device) -> tuple[Tensor, Tensor]:
        k, v = (
            device.upload(np.ascontiguousarray(part.astype(np.float16)).view(np.uint32))
            for part in (self.k, self.v)
        )
        return k, v


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
@pytest.mark.parametrize(("window", "splits"), [(0, 1), (0, 5), (40, 3), (200, 4)])
def test_attention_decode_matches_reference(
    device: Device,
    kernels: Kernels,
    rng: np.random.Generator,
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int,
    splits: int,
) -> None:
    """Contexts of one key, around the tile and around the window; rows past the count keep their poison."""
    lengths = np.array([1, 65, 127, 129, 300, 33], np.int32)
    rows, live = len(lengths), len(lengths) - 1
    cache = Cache.filled(rng, lengths, kv_heads, head_dim)
    k, v = cache.upload(device)
    q = rng.standard_normal((rows + 2, heads, head_dim), np.float32)
    y = device.upload(np.full_like(q, np.nan))
    shape = ops.decode_partial_shape(rows=rows, num_heads=heads, head_dim=head_dim, splits=splits)
    partial = device.upload(np.full(shape, np.nan, np.float32))
    scale = head_dim**-0.5
    dispatches = ops.attention_decode(
        kernels,
        device.upload(q),
        k,
        v,
        device.upload(cache.block_tables),
        device.upload(lengths),
        partial,
        y,
        device.upload(np.array([live], np.uint32)),
        rows=rows,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=cache.block_size,
        window=window,
        scale=scale,
        splits=splits,
    )
    run_once(device, dispatches)
    expected = reference.paged_attention(
        q[:live],
        cache.k,
        cache.v,
        cache.block_tables,
        np.arange(live + 1, dtype=np.int32),
        lengths[:live] - 1,
        cache.block_size,
        window,
        scale,
    )
    out = device.read(y)
    check(out[:live], expected, "float")
    assert np.isnan(out[live:]).all()


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "window", "tile_size"),
    [
        *((*shape, window, 16) for shape in SHAPES for window in (0, 40)),
        (9, 3, 64, 20, 32),
        (4, 1, 256, 0, 64),
    ],
)
def test_attention_prefill_matches_reference(
    device: Device,
    kernels: Kernels,
    rng: np.random.Generator,
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int,
    tile_size: int,
) -> None:
    """Chunks at the start and in the middle of sequences, ragged tiles; tokens of no tile keep their poison."""
    starts, counts = np.array([0, 70, 5], np.int32), np.array([37, 81, 1], np.int32)
    lengths = (starts + counts).astype(np.int32)
    query_start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    cache = Cache.filled(rng, lengths, kv_heads, head_dim)
    k, v = cache.upload(device)
    tokens = int(query_start[-1])
    q = rng.standard_normal((tokens + 3, heads, head_dim), np.float32)
    y = device.upload(np.full_like(q, np.nan))
    tiles = [
        (row, query_start[row] + offset, min(tile_size, counts[row] - offset), starts[row] + offset)
        for row in range(len(counts))
        for offset in range(0, counts[row], tile_size)
    ]
    stale = [(0, tokens, 3, 0), (0, tokens, 3, 0)]
    scale = head_dim**-0.5
    op = ops.attention_prefill(
        kernels,
        device.upload(q),
        k,
        v,
        device.upload(cache.block_tables),
        device.upload(lengths),
        device.upload(np.array(tiles + stale, np.int32)),
        device.upload(np.array([len(tiles)], np.uint32)),
        y,
        max_tiles=len(tiles) + len(stale),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=cache.block_size,
        window=window,
        scale=scale,
        tile_size=tile_size,
    )
    run_once(device, [op])
    positions = np.concatenate([np.arange(s, s + c) for s, c in zip(starts, counts, strict=True)])
    expected = reference.paged_attention(
        q[:tokens],
        cache.k,
        cache.v,
        cache.block_tables,
        query_start,
        positions.astype(np.int32),
        cache.block_size,
        window,
        scale,
    )
    out = device.read(y)
    check(out[:tokens], expected, "float")
    assert np.isnan(out[tokens:]).all()


def test_head_sizes_beyond_the_kernels_are_refused_with_the_limit(
    device: Device, kernels: Kernels
) -> None:
    with pytest.raises(DeviceError, match="264 dims"):
        ops._kv_include(device, 264)
