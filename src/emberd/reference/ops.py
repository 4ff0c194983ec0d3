"""Every kernel as a plain float32 NumPy function: the numerical truth, written to be read.

A function has the name and the argument order of its WGSL twin. It knows arrays only: no model,
no batch, no file. T tokens, D hidden size, H heads, KVH key/value heads, hd head size, S context.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from emberd.hardware import CPU_SCORES

from .kv_q8 import Q8Array

F32 = NDArray[np.float32]
KVArray = F32 | Q8Array
I8 = NDArray[np.int8]
I32 = NDArray[np.int32]

QUANT_BLOCK = 32
"""Activations share one scale in runs of this many values."""

MAX_SCORES = CPU_SCORES
"""`paged_attention` makes about this many scores at a time."""

GATE_LIMIT, GATE_SLOPE = 7.0, 1.702
"""Of `clamped_silu_mul`."""

FEW_TOKENS = 64
"""Up to this many tokens `matmul` puts the weights on the left, where OpenBLAS is up to 1.5 x faster."""

PACKED_BYTES = 8 << 20
"""Of weights at a time then, since each thread keeps as much memory as its part of them takes."""


def embedding(table: F32, ids: I32, scale: float) -> F32:
    """Rows of `table` (V, D) for `ids` (T,), times `scale` (1, or sqrt(D) for Gemma) -> (T, D)."""
    rows = table[ids]
    return rows if scale == 1.0 else rows * np.float32(scale)


def rms_norm(x: F32, weight: F32, eps: float) -> F32:
    """x / sqrt(mean(x²) + eps) · weight over the last axis (Zhang & Sennrich 2019)."""
    mean_square = np.einsum("...d,...d->...", x, x)[..., None] / np.float32(x.shape[-1])
    inverse: F32 = 1.0 / np.sqrt(mean_square + np.float32(eps))
    return x * inverse * weight


def layer_norm(x: F32, weight: F32, bias: F32, eps: float) -> F32:
    """(x - mean(x)) / sqrt(var(x) + eps) · weight + bias over the last axis (Ba et al. 2016)."""
    centred: F32 = x - np.mean(x, axis=-1, keepdims=True)
    variance: F32 = np.mean(np.square(centred), axis=-1, keepdims=True)
    result: F32 = centred / np.sqrt(variance + np.float32(eps)) * weight + bias
    return result


def quantize_q8(x: F32, group: int = QUANT_BLOCK) -> tuple[I8, F32]:
    """Round activations to int8 in runs of `group`: x (T, D) -> q (T, D) int8, scale (T, D/group) f32.

    amax = max |x| of the run; scale = amax / 127; q = round-half-even(x · (127 / amax)); all f32.
    A run of zeros has scale 0 and q 0. D is a multiple of 32.
    """
    runs = x.reshape(x.shape[0], -1, group)
    amax = np.max(np.abs(runs), axis=-1)  # (T, D/group)
    inverse = np.float32(127.0) / np.where(amax == 0, np.float32(1.0), amax)
    q = np.rint(runs * inverse[..., None]).astype(np.int8)
    return q.reshape(x.shape), amax / np.float32(127.0)


def round_steps(x: F32, group: int = QUANT_BLOCK, fine: bool = False) -> tuple[F32, F32]:
    """As `quantize_q8`, the int8 as float32; `fine`: in 128ths, as two int8 a value give them."""
    q, scale = quantize_q8(x, group)
    if not fine:
        return q.astype(np.float32), scale
    runs = x.reshape(*scale.shape, group)
    most = np.abs(runs).max(axis=-1, keepdims=True)
    # Not by 127 / most, which is infinite where all values are next to nothing.
    steps = np.divide(runs, most, out=np.zeros_like(runs), where=most > 0) * np.float32(127)
    whole = np.rint(steps)
    rest = np.rint((steps - whole) * np.float32(128)) / np.float32(128)
    return (whole + rest).reshape(x.shape).astype(np.float32), scale


def matmul(x: F32, w: F32) -> F32:
    """x (T, D) times the rows of w (N, D) -> (T, N): y = x wᵀ. Both may be stacked the same way."""
    if 1 < x.shape[-2] <= FEW_TOKENS:
        if w.ndim == 2 and w.nbytes > 2 * PACKED_BYTES:
            rows = max(1, PACKED_BYTES // w[0].nbytes)
            parts = (w[first : first + rows] for first in range(0, len(w), rows))
            return np.concatenate([matmul(x, part) for part in parts], axis=-1)
        return np.ascontiguousarray((w @ x.swapaxes(-1, -2)).swapaxes(-1, -2))
    return x @ w.swapaxes(-1, -2)


def matmul_q8(q: I8, scale: F32, w: F32) -> F32:
    """What an int8 kernel computes: (q · scale) (T, D) times the rows of w (N, D) -> (T, N).

    `q` and `scale` come from `quantize_q8`. Summed in float64, so that only the kernel's own
    rounding shows in a comparison.
    """
    runs = q.reshape(*scale.shape, -1) * scale[..., None].astype(np.float64)
    y = runs.reshape(q.shape) @ w.T.astype(np.float64)
    return y.astype(np.float32)


def rope(x: F32, positions: I32, cos: F32, sin: F32, pairing: Literal["adjacent", "halves"]) -> F32:
    """Rotate pairs of each head by the position's angle (Su et al. 2021): x (T, H, hd), same out.

    `cos`, `sin` (P, rope_dim/2) from `gguf.rope.rope_tables`. Pair i is (2i, 2i+1) ("adjacent") or
    (i, i + rope_dim/2) ("halves"); dims from rope_dim on pass through.
    """
    half = cos.shape[1]
    c, s = cos[positions][:, None, :], sin[positions][:, None, :]  # (T, 1, rope_dim/2)
    if pairing == "adjacent":
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        first, second = slice(0, half), slice(half, 2 * half)
    a, b = x[..., first], x[..., second]
    y = np.empty_like(x)
    y[..., first] = a * c - b * s
    y[..., second] = b * c + a * s
    y[..., 2 * half :] = x[..., 2 * half :]
    return y


def kv_write(k: F32, v: F32, slot_mapping: I32, k_cache: KVArray, v_cache: KVArray) -> None:
    """Store k, v (T, KVH, hd) at their slots of k_cache, v_cache (num_slots, KVH, hd)."""
    k_cache[slot_mapping] = k
    v_cache[slot_mapping] = v


def softmax(x: F32, sinks: F32 | None = None) -> F32:
    """exp(x - max) / sum over the last axis. `sinks` (..., 1): one more x each, whose share is lost."""
    most = np.max(x, axis=-1, keepdims=True)
    if sinks is not None:
        most = np.maximum(most, sinks)
    e: F32 = np.exp(x - most)
    total = np.sum(e, axis=-1, keepdims=True)
    e /= total if sinks is None else total + np.exp(sinks - most)
    return e


def soft_cap(x: F32, cap: float) -> F32:
    """cap · tanh(x / cap): values up to about cap / 2 hardly change (Gemma 2)."""
    result: F32 = np.tanh(x / np.float32(cap)) * np.float32(cap)
    return result


def attention(
    q: F32,
    k: F32,
    v: F32,
    positions: I32,
    window: int,
    scale: float,
    first_position: int = 0,
    cap: float = 0.0,
    sinks: F32 | None = None,
    ahead: int = 0,
) -> F32:
    """Attention of one sequence: q (T, H, hd), k and v (S, KVH, hd) -> (T, H, hd).

    Key s has position first_position + s. The query at position p sees keys at positions <= p + ahead (0: causal),
    and with `window` > 0 only those > p - window. Head h reads key/value head h // (H / KVH).
    Scores are q·k · scale, and with `cap` > 0 soft_cap of that. `sinks` (H,): a score more of each head that has no
    value (Xiao et al. 2023).
    """
    num_tokens, num_heads, head_dim = q.shape
    num_keys, num_kv_heads, _ = k.shape
    group = num_heads // num_kv_heads
    heads = q.reshape(num_tokens, num_kv_heads, group, head_dim).transpose(1, 0, 2, 3)
    queries: F32 = heads.reshape(num_kv_heads, num_tokens * group, head_dim) * np.float32(scale)
    scores = matmul(queries, k.transpose(1, 0, 2))  # (KVH, T * group, S)
    if cap > 0:
        scores = soft_cap(scores, cap)

    key_positions = first_position + np.arange(num_keys)
    hidden = key_positions > positions[:, None] + ahead  # (T, S)
    if window > 0:
        hidden |= key_positions <= positions[:, None] - window
    if hidden.any():
        by_token = scores.reshape(num_kv_heads, num_tokens, group, num_keys)
        np.copyto(by_token, np.float32(-np.inf), where=hidden[None, :, None, :])

    if sinks is not None:
        sinks = np.tile(sinks.reshape(num_kv_heads, group), num_tokens)[..., None]
    mixed: F32 = softmax(scores, sinks) @ v.transpose(1, 0, 2)  # (KVH, T * group, hd)
    heads = mixed.reshape(num_kv_heads, num_tokens, group, head_dim).transpose(1, 0, 2, 3)
    return heads.reshape(num_tokens, num_heads, head_dim)


def paged_attention(
    q: F32,
    k_cache: KVArray,
    v_cache: KVArray,
    block_tables: I32,
    query_start: I32,
    positions: I32,
    block_size: int,
    window: int,
    scale: float,
    cap: float = 0.0,
    sinks: F32 | None = None,
    ahead: int = 0,
) -> F32:
    """`attention` for rows whose keys and values lie in blocks: q (T, H, hd) -> (T, H, hd).

    Row r has the tokens query_start[r] .. query_start[r + 1]; the key of its position p is in slot
    block_tables[r, p // block_size] · block_size + p % block_size of k_cache, v_cache
    (num_slots, KVH, hd). `positions` (T,) rise by one within a row, whose own keys are already
    written.
    """
    out = np.empty_like(q)
    for row, (start, end) in enumerate(pairwise(query_start.tolist())):
        chunk = max(1, MAX_SCORES // (q.shape[1] * (int(positions[end - 1]) + 1)))
        for first in range(start, end, chunk):
            last = min(first + chunk, end)
            stop = min(int(positions[last - 1]) + ahead, int(positions[end - 1])) + 1
            begin = max(0, int(positions[first]) - window + 1) if window > 0 else 0
            begin -= begin % block_size
            blocks = block_tables[row, begin // block_size : -(-stop // block_size)]
            k = _gather(k_cache, blocks, block_size)[: stop - begin]
            v = _gather(v_cache, blocks, block_size)[: stop - begin]
            out[first:last] = attention(
                q[first:last], k, v, positions[first:last], window, scale, begin, cap, sinks, ahead
            )
    return out


def _gather(cache: KVArray, blocks: I32, block_size: int) -> F32:
    """The slots of `blocks` in order; a view where the blocks happen to be consecutive."""
    if isinstance(cache, Q8Array):
        return cache[(blocks[:, None] * block_size + np.arange(block_size)).reshape(-1)]
    if bool((blocks[1:] - blocks[:-1] == 1).all()):
        first = int(blocks[0]) * block_size
        return cache[first : first + len(blocks) * block_size]
    paged = cache.reshape(-1, block_size, *cache.shape[1:])
    return paged[blocks].reshape(-1, *cache.shape[1:])


def silu_mul(gate: F32, up: F32) -> F32:
    """SwiGLU's product: gate · sigmoid(gate) · up (Shazeer 2020)."""
    y = np.negative(gate)
    with np.errstate(over="ignore"):  # exp of a large number is inf, and gate / inf is right
        np.exp(y, out=y)
    y += 1
    np.divide(gate, y, out=y)
    y *= up
    return y


def gelu_tanh(x: F32) -> F32:
    """x · (1 + tanh(√(2/π) · (x + 0.044715 · x³))) / 2: the tanh approximation of GELU (Hendrycks & Gimpel 2016)."""
    y = np.square(x)
    y *= np.float32(0.044715)
    y += 1
    y *= x
    y *= np.float32(np.sqrt(2.0 / np.pi))
    np.tanh(y, out=y)
    y += 1
    y *= x
    y *= np.float32(0.5)
    return y


def relu_squared(x: F32) -> F32:
    """max(x, 0)² (So et al. 2021)."""
    y = np.maximum(x, 0)
    y *= y
    return y


def gelu_mul(gate: F32, up: F32) -> F32:
    """GeGLU's product: gelu_tanh(gate) · up."""
    y = gelu_tanh(gate)
    y *= up
    return y


def clamped_silu_mul(gate: F32, up: F32) -> F32:
    """gpt-oss's product: g · sigmoid(1.702 g) · (u + 1), g being gate up to 7 and u being up within ±7."""
    g = np.minimum(gate, np.float32(GATE_LIMIT))
    u = np.clip(up, np.float32(-GATE_LIMIT), np.float32(GATE_LIMIT))
    result: F32 = g * sigmoid(np.float32(GATE_SLOPE) * g) * (u + 1)
    return result


def top_experts(
    logits: F32, used: int, normalized: bool, scale: float, given: I32 | None = None
) -> tuple[I32, F32]:
    """The `used` likeliest of softmax(logits (T, E)), likeliest first -> ids (T, used), weights (T, used).

    Of equal ones the first counts. `normalized`: a token's weights sum up to 1 before the scale. `given`: ids that
    are taken instead.
    """
    ids = given
    if ids is None:
        ids = np.argsort(-logits, axis=-1, kind="stable")[:, :used].astype(np.int32)
    weights = np.take_along_axis(softmax(logits), ids, axis=-1)
    if normalized:
        weights = weights / np.sum(weights, axis=-1, keepdims=True)
    return ids, weights * np.float32(scale)


def sigmoid(x: F32) -> F32:
    """1 / (1 + exp(-x))."""
    result: F32 = np.float32(0.5) * (np.tanh(np.float32(0.5) * x) + 1)
    return result


def add(x: F32, y: F32) -> F32:
    """Residual sum."""
    return x + y
