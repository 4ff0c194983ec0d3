"""The kernels that only encoders use, as plain float32 NumPy functions. See ops.py for the rest and the rules.

T tokens of all texts put one after the other, D hidden size, H heads, hd head size.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from .ops import F32, I32, MAX_SCORES, matmul, softmax

# erf(x) = 1 - (a1 t + ... + a5 t^5) exp(-x²) with t = 1 / (1 + p x), x >= 0; off by 1.5e-7 at most
# (Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26).
_ERF_P = 0.3275911
_ERF_A = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def layer_norm_add(x: F32, residual: F32, weight: F32, bias: F32, eps: float) -> F32:
    """(s - mean(s)) / sqrt(var(s) + eps) · weight + bias of s = x + residual (Ba et al. 2016)."""
    total = x + residual
    centred: F32 = total - np.mean(total, axis=-1, keepdims=True)
    variance: F32 = np.mean(np.square(centred), axis=-1, keepdims=True)
    inverse: F32 = 1.0 / np.sqrt(variance + np.float32(eps))
    return centred * inverse * weight + bias


def gelu(x: F32) -> F32:
    """x · (1 + erf(x / √2)) / 2 (Hendrycks & Gimpel 2016), the exact form and not the tanh one."""
    z: F32 = np.abs(x) * np.float32(np.sqrt(0.5))
    t: F32 = np.reciprocal(1 + _ERF_P * z)
    polynomial: F32 = t * _ERF_A[-1]
    for a in reversed(_ERF_A[:-1]):
        polynomial = (polynomial + a) * t
    erf: F32 = np.copysign(1 - polynomial * np.exp(-z * z), x)
    y: F32 = x * (1 + erf)
    return y * np.float32(0.5)


def attention_encoder(qkv: F32, query_start: I32, num_heads: int, scale: float) -> F32:
    """Attention inside each text, every token seeing all of it: qkv (T, 3 · H · hd) -> (T, H · hd).

    Text r has the tokens query_start[r] .. query_start[r + 1]. Scores are q·k · scale.
    """
    q, k, v = qkv.reshape(len(qkv), 3, num_heads, -1).transpose(1, 2, 0, 3)  # (H, T, hd) each
    out = np.empty_like(q)
    for start, end in pairwise(query_start.tolist()):
        chunk = max(1, MAX_SCORES // (num_heads * (end - start)))
        for first in range(start, end, chunk):
            last = min(first + chunk, end)
            scores = matmul(q[:, first:last] * np.float32(scale), k[:, start:end])  # (H, n, S)
            out[:, first:last] = softmax(scores) @ v[:, start:end]
    return np.ascontiguousarray(out.transpose(1, 0, 2)).reshape(len(qkv), -1)
