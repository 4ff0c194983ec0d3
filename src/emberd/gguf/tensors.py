"""A decoder model's tensors by place: which names an architecture has, and in which shapes."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from ..errors import ModelFileError
from .architectures import ARCHITECTURES
from .checked import Tensors
from .dequant import dequantize
from .model import LayerTensors, ModelSpec, ModelTensors, SharedExpertTensors
from .reader import GGUFFile, TensorInfo


def load_tensors(file: GGUFFile, spec: ModelSpec) -> ModelTensors:
    """The model's tensors by place. A missing one, a wrong shape, a type without a decoder and a
    tensor that the architecture has no use for (results would be wrong without it) are errors.
    """
    architecture = ARCHITECTURES[spec.architecture]
    take = Tensors(file)
    embedding = take.required("token_embd.weight", spec.vocab_size, spec.hidden_size)
    output = take.optional("output.weight", spec.vocab_size, spec.hidden_size)
    output_norm = take.required("output_norm.weight", spec.hidden_size)
    layers = tuple(_layer_tensors(take, spec, f"blk.{i}.") for i in range(spec.num_layers))
    short = long = None
    if architecture.rope_factors:
        short = _factors(file, take, spec, "rope_freqs.weight")
    if architecture.long_rope_factors:
        short = _factors(file, take, spec, "rope_factors_short.weight")
        long = _factors(file, take, spec, "rope_factors_long.weight")
    take.check_all_taken(spec.architecture)
    return ModelTensors(embedding, output_norm, output or embedding, layers, short, long)


def _factors(file: GGUFFile, take: Tensors, spec: ModelSpec, name: str) -> TensorInfo | None:
    info = take.optional(name, spec.rope_dim // 2)
    if info is not None:
        factors = dequantize(file.rows(info), info.type)
        if not (np.isfinite(factors).all() and (factors > 0).all()):
            raise ModelFileError(f"{file.name}: tensor '{name}' must be above 0 throughout")
    return info


def _layer_tensors(take: Tensors, spec: ModelSpec, prefix: str) -> LayerTensors:
    architecture = ARCHITECTURES[spec.architecture]
    hidden = spec.hidden_size
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim

    def bias(name: str, size: int) -> TensorInfo | None:
        if architecture.qkv_bias == "none":
            return None
        if architecture.qkv_bias == "required":
            return take.required(prefix + name, size)
        return take.optional(prefix + name, size)

    def vector(wanted: bool, name: str, size: int) -> TensorInfo | None:
        return take.required(prefix + name, size) if wanted else None

    if architecture.fused:
        qkv = take.required(prefix + "attn_qkv.weight", q_size + 2 * kv_size, hidden)
        q, k, v = _parts(qkv, q_size, kv_size, kv_size)
    else:
        q = take.required(prefix + "attn_q.weight", q_size, hidden)
        k = take.required(prefix + "attn_k.weight", kv_size, hidden)
        v = take.required(prefix + "attn_v.weight", kv_size, hidden)
    q_norm, k_norm = (
        (q_size, kv_size) if architecture.whole_qk_norm else (spec.head_dim, spec.head_dim)
    )
    router, gate, up, down = _feed_forward(take, spec, prefix, architecture.fused)
    return LayerTensors(
        attention_norm=vector(architecture.pre_norms, "attn_norm.weight", hidden),
        q=q,
        k=k,
        v=v,
        o=take.required(prefix + "attn_output.weight", hidden, q_size),
        ffn_norm=vector(architecture.pre_norms, f"{architecture.ffn_norm}.weight", hidden),
        gate=gate,
        up=up,
        down=down,
        q_bias=bias("attn_q.bias", q_size),
        k_bias=bias("attn_k.bias", kv_size),
        v_bias=bias("attn_v.bias", kv_size),
        q_norm=vector(architecture.qk_norm, "attn_q_norm.weight", q_norm),
        k_norm=vector(architecture.qk_norm, "attn_k_norm.weight", k_norm),
        post_attention_norm=vector(architecture.post_norms, "post_attention_norm.weight", hidden),
        post_ffn_norm=vector(architecture.post_norms, "post_ffw_norm.weight", hidden),
        router=router,
        o_bias=vector(architecture.o_bias, "attn_output.bias", hidden),
        sinks=vector(architecture.sinks, "attn_sinks.weight", spec.num_heads),
        **_expert_biases(take, spec, prefix),
        shared=_shared_expert(take, spec, prefix),
    )


def _feed_forward(
    take: Tensors, spec: ModelSpec, prefix: str, fused: bool
) -> tuple[TensorInfo | None, TensorInfo, TensorInfo, TensorInfo]:
    """Router, gate, up and down."""
    hidden, ffn = spec.hidden_size, spec.ffn_size
    if spec.experts is not None:
        count = spec.experts.count
        router = take.required(prefix + "ffn_gate_inp.weight", count, hidden)
        gate = take.required(prefix + "ffn_gate_exps.weight", count, ffn, hidden)
        up = take.required(prefix + "ffn_up_exps.weight", count, ffn, hidden)
        down = take.required(prefix + "ffn_down_exps.weight", count, hidden, ffn)
        return router, _stacked(gate), _stacked(up), _stacked(down)
    down = take.required(prefix + "ffn_down.weight", hidden, ffn)
    if fused:
        gate, up = _parts(take.required(prefix + "ffn_up.weight", 2 * ffn, hidden), ffn, ffn)
    else:
        gate = take.required(prefix + "ffn_gate.weight", ffn, hidden)
        up = take.required(prefix + "ffn_up.weight", ffn, hidden)
    return None, gate, up, down


def _expert_biases(take: Tensors, spec: ModelSpec, prefix: str) -> dict[str, TensorInfo]:
    """By field of LayerTensors; those of all experts seen as one vector."""
    if spec.experts is None or not ARCHITECTURES[spec.architecture].expert_biases:
        return {}
    count = spec.experts.count
    parts = (("gate", spec.ffn_size), ("up", spec.ffn_size), ("down", spec.hidden_size))
    found = {"router_bias": take.required(prefix + "ffn_gate_inp.bias", count)}
    for part, size in parts:
        bias = take.required(f"{prefix}ffn_{part}_exps.bias", count, size)
        found[f"{part}_bias"] = replace(bias, shape=(count * size,))
    return found


def _shared_expert(take: Tensors, spec: ModelSpec, prefix: str) -> SharedExpertTensors | None:
    if spec.experts is None or not spec.experts.shared_ffn_size:
        return None
    hidden, ffn = spec.hidden_size, spec.experts.shared_ffn_size
    router = take.required(prefix + "ffn_gate_inp_shexp.weight", hidden)
    return SharedExpertTensors(
        router=replace(router, shape=(1, hidden)),
        gate=take.required(prefix + "ffn_gate_shexp.weight", ffn, hidden),
        up=take.required(prefix + "ffn_up_shexp.weight", ffn, hidden),
        down=take.required(prefix + "ffn_down_shexp.weight", hidden, ffn),
    )


def _stacked(info: TensorInfo) -> TensorInfo:
    """(n, rows, cols) seen as (n · rows, cols)."""
    return replace(info, shape=(prod(info.shape[:-1]), info.shape[-1]))


def _parts(info: TensorInfo, *rows: int) -> list[TensorInfo]:
    """Consecutive rows of a matrix as matrices of their own."""
    row_bytes = info.nbytes // info.shape[0]
    parts, at = [], 0
    for count in rows:
        offset = info.offset + at * row_bytes
        parts.append(
            replace(info, shape=(count, *info.shape[1:]), offset=offset, nbytes=count * row_bytes)
        )
        at += count
    return parts
