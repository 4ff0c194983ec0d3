"""A KV cache in q8_0: what kernels write is near to what was to be cached, and they attend to what is there."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from emberd.reference import ops as reference
from emberd.reference.kv_q8 import RUN, Q8Array
from emberd.runtime import decode_attention, ops
from emberd.runtime.device import Device, Tensor
from emberd.runtime.kernel import Kernels, run_once
from emberd.runtime.kv_cache import head_words
from linear_cases import with_subgroups
from test_kernel_attention import Cache, NewTokens
from tolerance import check

pytestmark = pytest.mark.device

Array = NDArray[np.float32]


def words_of(made: Q8Array) -> NDArray[np.uint32]:
    """(slots, KVH, words of a head) as kernels keep it: int8, then scales in pairs."""
    pairs = -(-made.scales.shape[2] // 2)
    scales = np.zeros((*made.scales.shape[:2], 2 * pairs), np.float16)
    scales[..., : made.scales.shape[2]] = made.scales
    both = [made.q.view(np.uint32), scales.view(np.uint32)]
    return np.ascontiguousarray(np.concatenate(both, axis=2))


def read(device: Device, tensor: Tensor, head_dim: int) -> Q8Array:
    words = device.read(tensor)
    q = np.ascontiguousarray(words[..., : head_dim // 4]).view(np.int8)
    scales = np.ascontiguousarray(words[..., head_dim // 4 :]).view(np.float16)
    return Q8Array(q, scales[..., : head_dim // RUN])


def quantized(values: Array) -> Q8Array:
    """NaN where a slot belongs to no row."""
    made = Q8Array.of(np.nan_to_num(values))
    made.scales[np.isnan(values).any(axis=(1, 2))] = np.nan
    return made


def decode(
    kernels: Kernels,
    rng: np.random.Generator,
    shape: tuple[int, int, int],
    *,
    window: int = 0,
    splits: int = 1,
    norms: bool = False,
) -> None:
    device, (heads, kv_heads, head_dim) = kernels.device, shape
    lengths = np.array([1, 65, 129, 200, 33], np.int32)
    rows, live = len(lengths), len(lengths) - 1
    cache = Cache.filled(rng, lengths, kv_heads, head_dim)
    newest = lengths - 1
    slots = cache.block_tables[np.arange(rows), newest // cache.block_size] * cache.block_size
    slots += newest % cache.block_size
    cache.k[slots] = cache.v[slots] = np.nan  # the new keys are not there yet
    before = [quantized(part) for part in (cache.k, cache.v)]
    k, v = (device.upload(words_of(made)) for made in before)
    tokens = NewTokens.drawn(rng, rows, heads, kv_heads, head_dim, norms)
    projected, rotation = tokens.upload(device, apart=norms)
    y = device.upload(np.full((rows, heads, head_dim), np.nan, np.float32))
    sizes = {"rows": rows, "num_heads": heads, "head_dim": head_dim}
    partial = decode_attention.decode_partial_shape(**sizes, splits=splits)
    scale = head_dim**-0.5
    steps = decode_attention.attention_decode(
        kernels,
        projected,
        k,
        v,
        device.upload(cache.block_tables),
        device.upload(lengths),
        rotation,
        device.empty(partial),
        y,
        device.upload(np.array([live], np.uint32)),
        **sizes,
        num_kv_heads=kv_heads,
        block_size=cache.block_size,
        window=window,
        scale=scale,
        splits=splits,
    )
    run_once(device, steps)
    q, new_k, _ = tokens.rotate(newest)
    cached = [read(device, tensor, head_dim) for tensor in (k, v)]
    others = np.setdiff1d(np.arange(len(cache.k)), slots[:live])
    for after, old, new in zip(cached, before, (new_k, tokens.qkv[:, -kv_heads:]), strict=True):
        check(after[slots[:live]], new[:live].astype(np.float32), "kv_q8")
        np.testing.assert_array_equal(after.q[others], old.q[others])
        np.testing.assert_array_equal(after.scales[others], old.scales[others])
    expected = reference.paged_attention(
        q[:live],
        cached[0],
        cached[1],
        cache.block_tables,
        np.arange(live + 1, dtype=np.int32),
        newest[:live],
        cache.block_size,
        window,
        scale,
    )
    out = device.read(y)
    check(out[:live], expected, "float")
    assert np.isnan(out[live:]).all()


@pytest.mark.parametrize(
    ("shape", "splits", "norms"),
    [
        ((9, 3, 64), 1, False),
        ((5, 1, 96), 3, True),
        ((5, 1, 320), 1, True),
        ((2, 1, 512), 3, False),
    ],
)
@pytest.mark.slow
def test_decode_attends_to_q8_0_and_writes_it(
    kernels: Kernels,
    rng: np.random.Generator,
    shape: tuple[int, int, int],
    splits: int,
    norms: bool,
) -> None:
    decode(kernels, rng, shape, window=int(rng.choice([0, 40])), splits=splits, norms=norms)


@pytest.mark.slow
def test_decode_by_subgroups_attends_to_q8_0(
    device: Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = Kernels(with_subgroups(device))
    if 64 > 8 * (kernels.device.subgroup_size or 0):
        pytest.skip("heads of 64 dims need more lanes")
    for together, splits in ((4, 3), (1, 1)):
        how = lambda *_, together=together: together  # noqa: E731
        monkeypatch.setattr(decode_attention, "heads_together", how)
        decode(kernels, rng, (9, 3, 64), splits=splits, norms=True)
    names = {kernel.key.name for kernel in kernels.all()}
    assert names == {"attention_decode_subgroups", "attention_decode_merge"}


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [160, 416])
def test_prefill_attends_to_q8_0(
    device: Device, kernels: Kernels, rng: np.random.Generator, head_dim: int
) -> None:
    heads, kv_heads = 2, 1
    starts, counts = np.array([0, 70], np.int32), np.array([21, 40], np.int32)
    lengths = (starts + counts).astype(np.int32)
    query_start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    cache = Cache.filled(rng, lengths, kv_heads, head_dim)
    made = [quantized(part) for part in (cache.k, cache.v)]
    tokens = int(query_start[-1])
    q = rng.standard_normal((tokens, heads, head_dim), np.float32)
    y = device.upload(np.full_like(q, np.nan))
    tiles = [
        (row, query_start[row] + offset, min(16, counts[row] - offset), starts[row] + offset)
        for row in range(len(counts))
        for offset in range(0, counts[row], 16)
    ]
    scale = head_dim**-0.5
    op = ops.attention_prefill(
        kernels,
        device.upload(q),
        *(device.upload(words_of(part)) for part in made),
        device.upload(cache.block_tables),
        device.upload(lengths),
        device.upload(np.array(tiles, np.int32)),
        device.upload(np.array([len(tiles)], np.uint32)),
        y,
        max_tiles=len(tiles),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=cache.block_size,
        window=0,
        scale=scale,
        tile_size=16,
    )
    run_once(device, [op])
    positions = np.concatenate(
        [start + np.arange(n) for start, n in zip(starts, counts, strict=True)]
    )
    expected = reference.paged_attention(
        q, *made, cache.block_tables, query_start, positions, cache.block_size, 0, scale
    )
    check(device.read(y), expected, "float")


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "norms"),
    [(6, 2, 64, False), (2, 1, 96, True), (2, 1, 320, True)],
)
def test_rope_kv_write_rounds_to_q8_0(
    device: Device,
    kernels: Kernels,
    rng: np.random.Generator,
    heads: int,
    kv_heads: int,
    head_dim: int,
    norms: bool,
) -> None:
    rows, num_slots = 5, 32
    tokens = NewTokens.drawn(rng, rows, heads, kv_heads, head_dim, norms)
    tokens.qkv[0, -kv_heads:, :RUN] = 0  # a run of zeros
    projected, rotation = tokens.upload(device, apart=norms)
    positions = rng.integers(0, 300, rows).astype(np.int32)
    slots = rng.permutation(num_slots)[:rows].astype(np.int32)
    slots[2] = -1
    noise = rng.standard_normal((2, num_slots, kv_heads, head_dim)).astype(np.float32)
    before = [Q8Array.of(part) for part in noise]
    caches = [device.upload(words_of(part)) for part in before]
    assert caches[0].shape[2] == head_words(head_dim, "q8_0")
    op = ops.rope_kv_write(
        kernels,
        projected,
        device.empty((rows, heads, head_dim)),
        *caches,
        device.upload(positions),
        device.upload(slots),
        rotation,
        device.upload(np.array([0], np.uint32)),
        device.upload(np.array([rows], np.uint32)),
        rows=rows,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
    )
    run_once(device, [op])
    _, k, _ = tokens.rotate(positions)
    written = slots >= 0
    others = np.setdiff1d(np.arange(num_slots), slots)
    new = (k.astype(np.float32), tokens.qkv[:, -kv_heads:])
    for tensor, old, expected in zip(caches, before, new, strict=True):
        after = read(device, tensor, head_dim)
        check(after[slots[written]], expected[written], "kv_q8")
        twin = Q8Array.of(expected[written])
        assert np.abs(after.q[slots[written]].astype(int) - twin.q).max() <= 1
        np.testing.assert_array_equal(after.q[others], old.q[others])
        np.testing.assert_array_equal(after.scales[others], old.scales[others])
