"""The forward pass, read line by line like the papers: token ids to hidden states to logits.

Architectures differ in fields of `ModelSpec` and in weights that are None. It does not know how keys
and values are kept: the caller's `attend` stores a layer's and answers its queries.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from emberd.gguf.rope import rope_tables
from emberd.gguf.spec import ModelSpec

from .ops import (
    F32,
    I32,
    add,
    attention,
    embedding,
    gelu_mul,
    matmul,
    rms_norm,
    rope,
    silu_mul,
)
from .weights import Layer, Weights

Attend = Callable[[int, F32, F32, F32], F32]
"""(layer index, q (T, H, hd), k (T, KVH, hd), v (T, KVH, hd)) -> attention's output (T, H, hd)."""

RopeTable = tuple[F32, F32]
"""cos and sin, each (num_positions, rope_dim / 2)."""


def layer_rope_tables(weights: Weights, num_positions: int) -> list[RopeTable]:
    """One table a layer, made once for each pair of base and scale."""
    spec = weights.spec
    tables: dict[tuple[float, float], RopeTable] = {}
    for base, scale in {(layer.rope_base, layer.rope_scale) for layer in spec.layers}:
        tables[base, scale] = rope_tables(
            spec.rope_dim, base, scale, weights.rope_factors, num_positions
        )
    return [tables[layer.rope_base, layer.rope_scale] for layer in spec.layers]


def hidden_states(
    weights: Weights,
    tables: list[RopeTable],
    token_ids: I32,
    positions: I32,
    attend: Attend,
) -> F32:
    """Hidden states (T, hidden) of `token_ids` (T,) at `positions` (T,), before the output norm."""
    spec = weights.spec
    x = embedding(weights.token_embedding, token_ids, spec.embedding_scale)
    for index, layer in enumerate(weights.layers):
        y = rms_norm(x, layer.attention_norm, spec.norm_eps)
        y = attention_part(spec, layer, tables[index], index, y, positions, attend)
        if layer.post_attention_norm is not None:
            y = rms_norm(y, layer.post_attention_norm, spec.norm_eps)
        x = add(x, y)

        y = rms_norm(x, layer.ffn_norm, spec.norm_eps)
        y = feed_forward(spec, layer, y)
        if layer.post_ffn_norm is not None:
            y = rms_norm(y, layer.post_ffn_norm, spec.norm_eps)
        x = add(x, y)
    return x


def attention_part(
    spec: ModelSpec,
    layer: Layer,
    table: RopeTable,
    index: int,
    x: F32,
    positions: I32,
    attend: Attend,
) -> F32:
    """Self-attention of one layer: x (T, hidden) -> (T, hidden)."""
    qkv = matmul(x, layer.qkv)
    if layer.qkv_bias is not None:
        qkv = add(qkv, layer.qkv_bias)
    heads = qkv.reshape(len(x), -1, spec.head_dim)  # (T, H + 2 KVH, hd)
    q = heads[:, : spec.num_heads]
    k = heads[:, spec.num_heads : spec.num_heads + spec.num_kv_heads]
    v = heads[:, spec.num_heads + spec.num_kv_heads :]

    if layer.q_norm is not None:
        q = rms_norm(q, layer.q_norm, spec.norm_eps)
    if layer.k_norm is not None:
        k = rms_norm(k, layer.k_norm, spec.norm_eps)
    cos, sin = table
    q = rope(q, positions, cos, sin, spec.rope_pairing)
    k = rope(k, positions, cos, sin, spec.rope_pairing)

    out = attend(index, q, k, v)
    return matmul(out.reshape(len(x), -1), layer.o)


def feed_forward(spec: ModelSpec, layer: Layer, x: F32) -> F32:
    """The gated feed-forward of one layer: x (T, hidden) -> (T, hidden)."""
    gate_up = matmul(x, layer.gate_up)
    gate, up = gate_up[:, : spec.ffn_size], gate_up[:, spec.ffn_size :]
    activated = silu_mul(gate, up) if spec.activation == "silu" else gelu_mul(gate, up)
    return matmul(activated, layer.down)


def logits(weights: Weights, x: F32) -> F32:
    """Hidden states (N, hidden) -> logits (N, vocab)."""
    return matmul(rms_norm(x, weights.output_norm, weights.spec.norm_eps), weights.output)


def forward(weights: Weights, token_ids: NDArray[np.integer]) -> F32:
    """Logits (T, vocab) of one whole sequence without a cache: the plain truth for tests."""
    spec = weights.spec
    positions = np.arange(len(token_ids), dtype=np.int32)

    def attend(index: int, q: F32, k: F32, v: F32) -> F32:
        window = spec.layers[index].window
        return attention(q, k, v, positions, window, spec.attention_scale)

    tables = layer_rope_tables(weights, len(token_ids))
    x = hidden_states(weights, tables, token_ids.astype(np.int32), positions, attend)
    return logits(weights, x)
