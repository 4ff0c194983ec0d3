"""rope_kv_write: rotation, head norms, f16 writes to slots, and what it must leave alone."""

from __future__ import annotations

import numpy as np
import pytest

from emberd.gguf.rope import rope_tables
from emberd.reference import ops as reference
from emberd.runtime import ops
from emberd.runtime.device import Device
from emberd.runtime.kernel import Kernels, run_once
from tolerance import check

pytestmark = pytest.mark.device

NUM_SLOTS, NUM_POSITIONS = 40, 64


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rope_dim", "pairing", "norms"),
    [
        (9, 3, 64, 64, "adjacent", False),
        (14, 2, 64, 64, "halves", False),
        (4, 1, 256, 256, "halves", True),
        (2, 2, 80, 32, "halves", True),
        (3, 1, 6, 4, "adjacent", False),
    ],
)
def test_rope_kv_write_matches_reference(
    device: Device,
    kernels: Kernels,
    rng: np.random.Generator,
    heads: int,
    kv_heads: int,
    head_dim: int,
    rope_dim: int,
    pairing: ops.Pairing,
    norms: bool,
) -> None:
    """Skipped tokens, tokens past the count and negative slots leave the caches alone; q of others is written."""
    rows, first, live = 7, 1, 5
    qkv = rng.standard_normal((rows, heads + 2 * kv_heads, head_dim), np.float32)
    positions = rng.integers(0, NUM_POSITIONS, rows).astype(np.int32)
    slots = rng.permutation(NUM_SLOTS)[:rows].astype(np.int32)
    slots[2] = -1
    cos, sin = rope_tables(rope_dim, 10000.0, 1.0, None, NUM_POSITIONS)
    q_norm, k_norm = rng.standard_normal((2, head_dim), np.float32)
    caches = rng.standard_normal((2, NUM_SLOTS, kv_heads, head_dim)).astype(np.float16)
    k_cache, v_cache = (device.upload(_words(cache)) for cache in caches)
    q_before = rng.standard_normal((rows, heads, head_dim), np.float32)
    q = device.upload(q_before)
    rotation = ops.Rotation(
        device.upload(cos),
        device.upload(sin),
        rope_dim,
        pairing,
        device.upload(q_norm) if norms else None,
        device.upload(k_norm) if norms else None,
        1e-6,
    )
    op = ops.rope_kv_write(
        kernels,
        _heads(device, qkv, kv_heads, apart=norms),
        q,
        k_cache,
        v_cache,
        device.upload(positions),
        device.upload(slots),
        rotation,
        device.upload(np.array([first], np.uint32)),
        device.upload(np.array([live], np.uint32)),
        rows=rows,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
    )
    run_once(device, [op])

    new_q, new_k = qkv[:, :heads], qkv[:, heads : heads + kv_heads]
    if norms:
        new_q, new_k = (
            reference.rms_norm(new_q, q_norm, 1e-6),
            reference.rms_norm(new_k, k_norm, 1e-6),
        )
    new_q = reference.rope(new_q, positions, cos, sin, pairing)
    new_k = reference.rope(new_k, positions, cos, sin, pairing)
    after = device.read(q)
    check(after[first:live], new_q[first:live], "float")
    assert np.array_equal(after[live:], q_before[live:])
    assert np.array_equal(after[:first], q_before[:first])

    written = [token for token in range(first, live) if slots[token] >= 0]
    untouched = np.setdiff1d(np.arange(NUM_SLOTS), slots[written])
    for cache, before, new in (
        (k_cache, caches[0], new_k),
        (v_cache, caches[1], qkv[:, heads + kv_heads :]),
    ):
        after = device.read(cache).view(np.float16).reshape(before.shape)
        check(after[slots[written]], new[written], "f16")
        assert np.array_equal(after[untouched], before[untouched])


def _heads(device: Device, qkv: np.ndarray, kv_heads: int, apart: bool) -> ops.Heads:
    """q, k and v in one tensor, or v in a tensor of its own."""
    rows, heads, head_dim = qkv.shape
    column = (heads - kv_heads) * head_dim
    flat = qkv.reshape(rows, -1)
    if not apart:
        qk = device.upload(flat)
        return ops.Heads(qk, qk, column)
    return ops.Heads(device.upload(flat[:, :column]), device.upload(flat[:, column:]), 0)


def _words(cache: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(cache).view(np.uint32)
