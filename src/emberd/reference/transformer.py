"""The forward pass, read line by line like the papers: token ids to hidden states to logits.

Architectures differ in fields of `ModelSpec` and in weights that are None. It does not know how keys
and values are kept: the caller's `attend` stores a layer's and answers its queries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from emberd.gguf.model import Activation, ModelSpec
from emberd.gguf.rope import factors_for
from emberd.gguf.rope import layer_rope_tables as rope_tables_of

from .ops import (
    F32,
    I32,
    add,
    attention,
    clamped_silu_mul,
    embedding,
    gelu_mul,
    gelu_tanh,
    layer_norm,
    matmul,
    relu_squared,
    rms_norm,
    rope,
    sigmoid,
    silu_mul,
    soft_cap,
    softmax,
    top_experts,
)
from .weights import Layer, SharedExpert, Weights

Attend = Callable[[int, F32, F32, F32], F32]
"""(layer index, q (T, H, hd), k (T, KVH, hd), v (T, KVH, hd)) -> attention's output (T, H, hd)."""

ACTIVATIONS: dict[Activation, Callable[[F32, F32], F32]] = {
    "silu": silu_mul,
    "gelu": gelu_mul,
    "clamped_silu": clamped_silu_mul,
}
"""Of gate and up."""
ACTIVATIONS_ALONE: dict[Activation, Callable[[F32], F32]] = {
    "gelu": gelu_tanh,
    "relu_squared": relu_squared,
}
"""Where there are no gates."""

RopeTable = tuple[F32, F32]
"""cos and sin, each (num_positions, rope_dim / 2)."""


def layer_rope_tables(weights: Weights, num_positions: int) -> list[RopeTable]:
    """One table a layer, made once for each pair of base and scale."""
    spec = weights.spec
    factors = factors_for(spec, weights.rope_factors, weights.long_rope_factors, num_positions)
    tables: dict[tuple[float, float], RopeTable] = {}
    for index, layer in enumerate(spec.layers):
        key = layer.rope_base, layer.rope_scale
        if key not in tables:
            tables[key] = rope_tables_of(spec, index, factors, num_positions)
    return [tables[layer.rope_base, layer.rope_scale] for layer in spec.layers]


@dataclass(slots=True)
class Routing:
    """Experts that tokens are sent to instead of those that the router chooses, and what that loses."""

    given: Sequence[I32]  # of each layer with experts: (T, used)
    lost: list[F32] = field(
        default_factory=list
    )  # (T,) chance of the router's own choice above the given one's
    parted: int = 0  # tokens whose choice is another, over all layers

    def next(self, logits: F32, used: int) -> I32:
        given = self.given[len(self.lost)]
        chances, (own, _) = softmax(logits), top_experts(logits, used, False, 1.0)
        taken = [np.take_along_axis(chances, ids, axis=-1).sum(axis=-1) for ids in (own, given)]
        self.lost.append(taken[0] - taken[1])
        self.parted += int((np.sort(own) != np.sort(given)).any(axis=-1).sum())
        return given


def hidden_states(
    weights: Weights,
    tables: list[RopeTable],
    token_ids: I32,
    positions: I32,
    attend: Attend,
    routing: Routing | None = None,
) -> F32:
    """Hidden states (T, hidden) of `token_ids` (T,) at `positions` (T,), before the output norm."""
    spec = weights.spec
    x = embedding(weights.token_embedding, token_ids, spec.embedding_scale)
    if weights.positions is not None:
        x = add(x, weights.positions[positions])
    for index, layer in enumerate(weights.layers):
        normed = _norm(spec, x, layer.attention_norm, layer.attention_norm_bias)
        y = attention_part(spec, layer, tables[index], index, normed, positions, attend)
        if spec.parallel:
            if layer.ffn_norm is not None:
                normed = _norm(spec, x, layer.ffn_norm, layer.ffn_norm_bias)
            x = add(add(x, y), feed_forward(spec, layer, normed))
            continue
        y = _norm(spec, y, layer.post_attention_norm)
        x = add(x, y)

        y = _norm(spec, x, layer.ffn_norm, layer.ffn_norm_bias)
        y = (
            feed_forward(spec, layer, y)
            if layer.router is None
            else mixture(spec, layer, y, routing)
        )
        y = _norm(spec, y, layer.post_ffn_norm)
        x = add(x, y)
    return x


def _norm(spec: ModelSpec, x: F32, weight: F32 | None, bias: F32 | None = None) -> F32:
    """RMS norm, or LayerNorm where it has a bias; x where the architecture has none at this place."""
    if weight is None:
        return x
    if bias is None:
        return rms_norm(x, weight, spec.norm_eps)
    return layer_norm(x, weight, bias, spec.norm_eps)


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
    qkv = _biased(matmul(x, layer.qkv), layer.qkv_bias)
    heads = qkv.reshape(len(x), -1, spec.head_dim)  # (T, H + 2 KVH, hd)
    num_rotated = spec.num_heads + spec.num_kv_heads
    qk, v = heads[:, :num_rotated], heads[:, num_rotated:]
    if layer.q_norm is not None or layer.k_norm is not None:
        q = _head_norm(spec, qk[:, : spec.num_heads], layer.q_norm)
        k = _head_norm(spec, qk[:, spec.num_heads :], layer.k_norm)
        qk = np.concatenate([q, k], axis=1)
    cos, sin = table
    qk = rope(qk, positions, cos, sin, spec.rope_pairing)
    q, k = qk[:, : spec.num_heads], qk[:, spec.num_heads :]
    if spec.temperature is not None:
        q *= spec.temperature.factors(positions)[:, None, None]

    out = attend(index, q, k, v)
    return _biased(matmul(out.reshape(len(x), -1), layer.o), layer.o_bias)


def _biased(x: F32, bias: F32 | None) -> F32:
    return x if bias is None else add(x, bias)


def _head_norm(spec: ModelSpec, x: F32, weight: F32 | None) -> F32:
    """RMS norm of each head, or of all heads (T, H, hd) together."""
    if not spec.whole_qk_norm:
        return _norm(spec, x, weight)
    return _norm(spec, x.reshape(len(x), -1), weight).reshape(x.shape)


def feed_forward(spec: ModelSpec, layer: Layer | SharedExpert, x: F32) -> F32:
    """The feed-forward of one layer, or the experts' shared one: x (T, hidden) -> (T, hidden)."""
    if isinstance(layer, SharedExpert):
        return matmul(_gated(spec, matmul(x, layer.gate_up)), layer.down)
    inner = _biased(matmul(x, layer.gate_up), layer.gate_up_bias)
    inner = _gated(spec, inner) if spec.gated else ACTIVATIONS_ALONE[spec.activation](inner)
    return _biased(matmul(inner, layer.down), layer.down_bias)


def _gated(spec: ModelSpec, gate_up: F32) -> F32:
    ffn = gate_up.shape[1] // 2
    gate, up = gate_up[:, :ffn], gate_up[:, ffn:]
    return ACTIVATIONS[spec.activation](gate, up)


def mixture(spec: ModelSpec, layer: Layer, x: F32, routing: Routing | None = None) -> F32:
    """Each token's experts, weighted by the router, and the shared one: x (T, hidden) -> (T, hidden)."""
    experts = spec.experts
    assert experts is not None and layer.router is not None
    chances = _biased(matmul(x, layer.router), layer.router_bias)
    given = None if routing is None else routing.next(chances, experts.used)
    ids, weights = top_experts(chances, experts.used, experts.normalized, experts.scale, given)
    gate, up = layer.gate_up.reshape(2, experts.count, spec.ffn_size, -1)
    down = layer.down.reshape(experts.count, spec.hidden_size, -1)
    gate_up_bias = down_bias = None
    if layer.gate_up_bias is not None and layer.down_bias is not None:
        both = layer.gate_up_bias.reshape(2, experts.count, -1)
        gate_up_bias = np.concatenate([both[0], both[1]], axis=1)  # (experts, 2 ffn)
        down_bias = layer.down_bias.reshape(experts.count, -1)
    y = np.zeros_like(x)
    for expert in np.unique(ids):
        tokens, places = np.nonzero(ids == expert)
        rows = x[tokens]
        gate_up = np.concatenate([matmul(rows, gate[expert]), matmul(rows, up[expert])], axis=1)
        gate_up = gate_up if gate_up_bias is None else add(gate_up, gate_up_bias[expert])
        out = matmul(_gated(spec, gate_up), down[expert])
        out = out if down_bias is None else add(out, down_bias[expert])
        y[tokens] += out * weights[tokens, places, None]
    if (shared := layer.shared) is not None:
        y += feed_forward(spec, shared, x) * sigmoid(matmul(x, shared.router))
    return y


def output_norm(weights: Weights, x: F32) -> F32:
    """The norm behind all layers: (N, hidden), same out."""
    return _norm(weights.spec, x, weights.output_norm, weights.output_norm_bias)


def logits(weights: Weights, x: F32) -> F32:
    """Hidden states (N, hidden) -> logits (N, vocab)."""
    spec = weights.spec
    y = _biased(matmul(output_norm(weights, x), weights.output), weights.output_bias)
    if spec.logit_scale != 1:
        y *= np.float32(spec.logit_scale)
    return y if spec.logit_cap == 0 else soft_cap(y, spec.logit_cap)


def forward(weights: Weights, token_ids: NDArray[np.integer]) -> F32:
    """Logits (T, vocab) of one whole sequence without a cache: the plain truth for tests."""
    spec = weights.spec
    positions = np.arange(len(token_ids), dtype=np.int32)

    def attend(index: int, q: F32, k: F32, v: F32) -> F32:
        window = spec.layers[index].window
        scale, cap = spec.attention_scale, spec.attention_cap
        sinks = weights.layers[index].sinks
        return attention(q, k, v, positions, window, scale, cap=cap, sinks=sinks)

    tables = layer_rope_tables(weights, len(token_ids))
    x = hidden_states(weights, tables, token_ids.astype(np.int32), positions, attend)
    return logits(weights, x)
