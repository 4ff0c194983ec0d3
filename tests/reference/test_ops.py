"""The reference ops against the naive formulas, written out in float64 or in scalar Python."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest

from emberd.gguf.rope import rope_tables
from emberd.reference import ops
from tolerance import check

WIDTHS = [1, 2, 3, 31, 32, 33, 64, 65, 257]


def normal(rng: np.random.Generator, *shape: int) -> ops.F32:
    return rng.standard_normal(shape, dtype=np.float32)


def naive_attention(
    q: ops.F32, k: ops.F32, v: ops.F32, positions: ops.I32, window: int, scale: float
) -> ops.F32:
    """One query, one head, one key at a time."""
    out = np.zeros(q.shape)
    group = q.shape[1] // k.shape[1]
    for token, position in enumerate(positions):
        for head in range(q.shape[1]):
            first = max(0, position - window + 1) if window else 0
            seen = range(first, position + 1)
            kv = head // group
            scores = [scale * float(np.dot(q[token, head].astype(float), k[s, kv])) for s in seen]
            weights = [math.exp(score - max(scores)) for score in scores]
            for weight, s in zip(weights, seen, strict=True):
                out[token, head] += weight / sum(weights) * v[s, kv].astype(float)
    return out.astype(np.float32)


@pytest.mark.parametrize("scale", [1.0, 25.25])
def test_embedding_takes_rows_and_scales_them(rng: np.random.Generator, scale: float) -> None:
    table = normal(rng, 11, 5)
    ids = np.array([3, 0, 10, 3], dtype=np.int32)
    check(ops.embedding(table, ids, scale), np.stack([table[i] * scale for i in ids]), "float")


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(rng: np.random.Generator, width: int) -> None:
    x, weight = normal(rng, 3, width), normal(rng, width)
    wide = x.astype(np.float64)
    root = np.sqrt((wide * wide).sum(axis=1, keepdims=True) / width + 1e-5)
    check(ops.rms_norm(x, weight, 1e-5), wide / root * weight, "float")


def test_layer_norm(rng: np.random.Generator) -> None:
    x, weight, bias = normal(rng, 4, 33) * 3 + 2, normal(rng, 33), normal(rng, 33)
    rows = [
        (row - row.mean()) / math.sqrt(row.var() + 1e-5) * weight + bias
        for row in x.astype(np.float64)
    ]
    check(ops.layer_norm(x, weight, bias, 1e-5), np.stack(rows), "float")


def test_rms_norm_of_zeros_is_zero() -> None:
    assert not ops.rms_norm(np.zeros((1, 8), np.float32), np.ones(8, np.float32), 1e-6).any()


def test_quantize_q8_follows_its_definition(rng: np.random.Generator) -> None:
    x = normal(rng, 3, 96) * np.float32(10.0) ** rng.integers(-3, 3, (3, 1)).astype(np.float32)
    x[1, 32:64] = 0
    q, scale = ops.quantize_q8(x)
    assert q.dtype == np.int8 and q.shape == x.shape and scale.shape == (3, 3)
    for row in range(3):
        for run in range(3):
            values = x[row, 32 * run : 32 * run + 32]
            amax = np.abs(values).max()
            assert scale[row, run] == amax / np.float32(127)
            inverse = np.float32(127) / amax if amax else np.float32(0)
            assert q[row, 32 * run : 32 * run + 32].tolist() == [
                round(float(v * inverse)) for v in values
            ]
    error = np.abs(q.reshape(3, 3, 32) * scale[..., None] - x.reshape(3, 3, 32))
    assert (error <= 0.5001 * scale[..., None]).all()


def test_quantize_q8_rounds_halves_to_even() -> None:
    x = np.zeros((1, 32), dtype=np.float32)
    x[0, :5] = [127, 0.5, 1.5, 2.5, -0.5]
    q, scale = ops.quantize_q8(x)
    assert scale.tolist() == [[1.0]]
    assert q[0, :5].tolist() == [127, 0, 2, 2, 0]


@pytest.mark.parametrize("num_tokens", [1, 2, 3, ops.FEW_TOKENS, ops.FEW_TOKENS + 1])
@pytest.mark.parametrize("width", [1, 33, 256])
def test_matmul(rng: np.random.Generator, num_tokens: int, width: int) -> None:
    x, w = normal(rng, num_tokens, width), normal(rng, 17, width)
    y = ops.matmul(x, w)
    assert y.flags.c_contiguous and y.dtype == np.float32
    check(y, x.astype(np.float64) @ w.T.astype(np.float64), "float")


def test_matmul_of_few_tokens_takes_large_weights_in_parts(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "PACKED_BYTES", 5000)
    x, w = rng.normal(size=(3, 96)), rng.normal(size=(101, 96))
    y = ops.matmul(x.astype(np.float32), w.astype(np.float32))
    assert y.shape == (3, 101)
    np.testing.assert_allclose(y, x @ w.T, rtol=1e-4, atol=1e-4)


def test_matmul_q8_multiplies_what_quantize_q8_left(rng: np.random.Generator) -> None:
    x, w = normal(rng, 5, 256), normal(rng, 31, 256)
    q, scale = ops.quantize_q8(x)
    rounded = q.astype(np.float64) * np.repeat(scale, 32, axis=1)
    check(ops.matmul_q8(q, scale, w), rounded @ w.T, "float")
    check(ops.matmul_q8(q, scale, w), ops.matmul(x, w), "int8_float")


@pytest.mark.parametrize("position", [0, 1, 100, 9000])
def test_rope_tables_hold_the_angles(position: int) -> None:
    """K26: angle i is pos · base^(-2i/d) / factor_i, at far positions too."""
    factors = np.array([1, 1, 1.65133, 3.29226, 9.66673, 32, 32, 32], dtype=np.float32)
    cos, sin = rope_tables(16, 500000.0, 1.0, factors, 9001)
    assert cos.shape == (9001, 8)
    for i, factor in enumerate(factors):
        angle = position * 500000.0 ** (-2 * i / 16) / float(factor)
        assert cos[position, i] == pytest.approx(math.cos(angle), abs=1e-7)
        assert sin[position, i] == pytest.approx(math.sin(angle), abs=1e-7)


def test_rope_tables_divide_positions_by_the_scale() -> None:
    cos, sin = rope_tables(8, 10000.0, 8.0, None, 81)
    plain_cos, plain_sin = rope_tables(8, 10000.0, 1.0, None, 11)
    np.testing.assert_array_equal(cos[::8], plain_cos)
    np.testing.assert_array_equal(sin[::8], plain_sin)


@pytest.mark.parametrize("pairing", ["adjacent", "halves"])
@pytest.mark.parametrize("rope_dim", [8, 12])
def test_rope_turns_pairs(
    rng: np.random.Generator, pairing: Literal["adjacent", "halves"], rope_dim: int
) -> None:
    x = normal(rng, 3, 2, 12)
    positions = np.array([5, 0, 70], dtype=np.int32)
    cos, sin = rope_tables(rope_dim, 10000.0, 1.0, None, 71)
    y = ops.rope(x, positions, cos, sin, pairing)
    half = rope_dim // 2
    wanted = x.astype(np.float64)
    for token, position in enumerate(positions):
        for i in range(half):
            a, b = (2 * i, 2 * i + 1) if pairing == "adjacent" else (i, i + half)
            turn = np.exp(1j * position * 10000.0 ** (-2 * i / rope_dim))
            turned = (x[token, :, a] + 1j * x[token, :, b]) * turn
            wanted[token, :, a], wanted[token, :, b] = turned.real, turned.imag
    check(y, wanted, "float")
    np.testing.assert_array_equal(y[..., rope_dim:], x[..., rope_dim:])


def test_softmax_sums_to_one_and_holds_large_values() -> None:
    x = np.array([[1e4, 1e4, -1e4], [0, -np.inf, 0]], dtype=np.float32)
    np.testing.assert_array_equal(ops.softmax(x), [[0.5, 0.5, 0], [0.5, 0, 0.5]])


@pytest.mark.parametrize("window", [0, 1, 4, 100])
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (6, 2), (8, 1)])
@pytest.mark.parametrize("num_tokens", [1, 5])
def test_attention(
    rng: np.random.Generator, num_tokens: int, heads: int, kv_heads: int, window: int
) -> None:
    context = 11
    q = normal(rng, num_tokens, heads, 8)
    k, v = normal(rng, context, kv_heads, 8), normal(rng, context, kv_heads, 8)
    positions = np.arange(context - num_tokens, context, dtype=np.int32)
    wanted = naive_attention(q, k, v, positions, window, 0.3)
    check(ops.attention(q, k, v, positions, window, 0.3), wanted, "float")


def test_attention_with_sinks_is_attention_with_one_more_key_of_no_value(
    rng: np.random.Generator,
) -> None:
    q, k, v = normal(rng, 5, 4, 8), normal(rng, 6, 2, 8), normal(rng, 6, 2, 8)
    sinks, positions = normal(rng, 4) * 3, np.arange(1, 6, dtype=np.int32)
    found = ops.attention(q, k, v, positions, 3, 0.4, sinks=sinks)
    for token, head in np.ndindex(5, 4):
        seen = slice(max(0, positions[token] - 2), positions[token] + 1)
        scores = k[seen, head // 2].astype(np.float64) @ q[token, head] * np.float64(0.4)
        weights = np.exp(scores) / (np.exp(scores).sum() + np.exp(np.float64(sinks[head])))
        check(found[token, head], weights @ v[seen, head // 2], "float")


def test_attention_of_keys_that_start_later(rng: np.random.Generator) -> None:
    q, k, v = normal(rng, 2, 2, 8), normal(rng, 12, 2, 8), normal(rng, 12, 2, 8)
    positions = np.array([10, 11], dtype=np.int32)
    out = ops.attention(q, k[6:], v[6:], positions, 4, 1.0, 6)
    check(out, naive_attention(q, k, v, positions, 4, 1.0), "float")


@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("max_scores", [1, 64, 1 << 20])
@pytest.mark.parametrize("order", ["shuffled", "in order"])
def test_paged_attention_equals_contiguous(
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    window: int,
    max_scores: int,
    order: str,
) -> None:
    monkeypatch.setattr(ops, "MAX_SCORES", max_scores)
    block_size, context_lens, queries = 4, [9, 1, 16, 7], [1, 1, 5, 7]
    num_blocks = [-(-length // block_size) for length in context_lens]
    free = rng.permutation(20) if order == "shuffled" else np.arange(20)
    tables = np.full((4, 5), -1, dtype=np.int32)
    k_cache = np.full((80, 2, 8), np.nan, dtype=np.float32)  # reading what nobody wrote shows
    v_cache = k_cache.copy()
    q_rows, positions, wanted = [], [], []
    for row, (length, count) in enumerate(zip(context_lens, queries, strict=True)):
        tables[row, : num_blocks[row]], free = free[: num_blocks[row]], free[num_blocks[row] :]
        places = np.arange(length)
        slots = tables[row, places // block_size] * block_size + places % block_size
        q, k, v = normal(rng, count, 6, 8), normal(rng, length, 2, 8), normal(rng, length, 2, 8)
        ops.kv_write(k, v, slots.astype(np.int32), k_cache, v_cache)
        q_rows.append(q)
        positions.append(places[-count:].astype(np.int32))
        wanted.append(naive_attention(q, k, v, positions[-1], window, 0.35))
    query_start = np.cumsum([0, *queries]).astype(np.int32)
    out = ops.paged_attention(
        np.concatenate(q_rows),
        k_cache,
        v_cache,
        tables,
        query_start,
        np.concatenate(positions),
        block_size,
        window,
        0.35,
    )
    check(out, np.concatenate(wanted), "float")


def test_products_of_gates(rng: np.random.Generator) -> None:
    gate, up = normal(rng, 4, 33) * 4, normal(rng, 4, 33)
    silu = [g / (1 + math.exp(-g)) * u for g, u in zip(gate.flat, up.flat, strict=True)]
    root = math.sqrt(2 / math.pi)
    gelu = [
        0.5 * g * (1 + math.tanh(root * (g + 0.044715 * g**3))) * u
        for g, u in zip(map(float, gate.flat), up.flat, strict=True)
    ]
    check(ops.silu_mul(gate, up), np.reshape(silu, gate.shape), "float")
    check(ops.gelu_mul(gate, up), np.reshape(gelu, gate.shape), "float")
    up *= 5
    clamped = [
        min(g, 7) / (1 + math.exp(-1.702 * min(g, 7))) * (min(max(u, -7), 7) + 1)
        for g, u in zip(map(float, gate.flat), map(float, up.flat), strict=True)
    ]
    check(ops.clamped_silu_mul(gate, up), np.reshape(clamped, gate.shape), "float")


def test_activations_hold_far_from_zero() -> None:
    gate, up = np.array([-1e4, 0, 1e4], dtype=np.float32), np.ones(3, dtype=np.float32)
    np.testing.assert_array_equal(ops.silu_mul(gate, up), [0, 0, 1e4])
    np.testing.assert_array_equal(ops.gelu_mul(gate, up), [0, 0, 1e4])


def test_add(rng: np.random.Generator) -> None:
    x, y = normal(rng, 2, 3), normal(rng, 2, 3)
    np.testing.assert_array_equal(ops.add(x, y), x + y)
