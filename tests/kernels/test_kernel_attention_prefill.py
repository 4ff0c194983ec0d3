"""attention_prefill against paged_attention over the same f16 keys and values."""

from __future__ import annotations

import numpy as np
import pytest

from emberd.reference import ops as reference
from emberd.runtime import ops
from emberd.runtime.device import Device
from emberd.runtime.kernel import Kernels, run_once
from test_kernel_attention import SHAPES, Cache
from tolerance import check

pytestmark = pytest.mark.device


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "window", "tile_size", "with_sinks", "ahead"),
    [
        *((*shape, window, 16, False, 0) for shape in SHAPES for window in (0, 40)),
        (9, 3, 64, 20, 32, True, 0),
        (4, 1, 256, 0, 64, False, 0),
        *((3, 1, 64, 11, tile_size, False, 10) for tile_size in (16, 32, 64)),
        (4, 2, 32, 0, 32, False, 1 << 30),
        (4, 2, 32, 0, 16, True, 33),
        (3, 1, 150, 40, 16, True, 0),
        (2, 1, 192, 0, 64, False, 0),
        (2, 2, 254, 0, 32, False, 0),
        (3, 1, 320, 40, 64, True, 0),
        (2, 1, 510, 0, 16, False, 33),
        (2, 2, 512, 40, 32, False, 0),
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
    with_sinks: bool,
    ahead: int,
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
    sinks = rng.normal(0, 3, heads).astype(np.float32) if with_sinks else None
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
        sinks=None if sinks is None else device.upload(sinks),
        ahead=ahead,
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
        sinks=sinks,
        ahead=ahead,
    )
    out = device.read(y)
    check(out[:tokens], expected, "float")
    assert np.isnan(out[tokens:]).all()
