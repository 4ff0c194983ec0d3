"""A decoder model's tensors by place: which names an architecture has, and in which shapes."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
from gguf import GGML_QUANT_SIZES
from numpy.typing import NDArray

from ..errors import ModelFileError
from .architectures import ARCHITECTURES, Architecture, Presence
from .checked import Keys, Tensors
from .dequant import dequantize
from .encoder import MAX_SIZE
from .model import LayerTensors, ModelFile, ModelSpec, ModelTensors, SharedExpertTensors
from .reader import GGUFFile, TensorInfo


def load_tensors(file: GGUFFile, spec: ModelSpec) -> ModelTensors:
    """The model's tensors by place. A missing one, a wrong shape, a type without a decoder and a
    tensor that the architecture has no use for (results would be wrong without it) are errors.
    """
    architecture = ARCHITECTURES[spec.architecture]
    take, hidden = Tensors(file), spec.hidden_size
    embedding = take.required("token_embd.weight", spec.vocab_size, hidden)
    output = take.optional("output.weight", spec.vocab_size, hidden)
    output_norm = take.required("output_norm.weight", hidden)
    layers = tuple(_layer_tensors(take, spec, f"blk.{i}.") for i in range(spec.num_layers))
    short = long = None
    if architecture.rope_factors:
        short = _factors(file, take, spec, "rope_freqs.weight")
    if architecture.long_rope_factors:
        short = _factors(file, take, spec, "rope_factors_short.weight")
        long = _factors(file, take, spec, "rope_factors_long.weight")
        if (short is None) != (long is None):
            missing = "short" if short is None else "long"
            raise ModelFileError(f"{file.name}: tensor 'rope_factors_{missing}.weight' is missing")
    found = ModelTensors(
        embedding,
        output_norm,
        output or embedding,
        layers,
        output_norm_bias=_norm_bias(take, architecture, "output_norm.bias", hidden),
        output_bias=_wanted(take, architecture.output_bias, "output.bias", spec.vocab_size),
        positions=_wanted(
            take,
            architecture.learned_positions,
            "position_embd.weight",
            spec.context_length,
            hidden,
        ),
        rope_factors=short,
        long_rope_factors=long,
    )
    if architecture.dense:
        found = replace(found, dense=_dense(file, take, spec))
    if not spec.causal:
        found = replace(found, output=embedding)  # there are no logits
    take.check_all_taken(spec.architecture)
    return found


def dense_matrix(model: ModelFile) -> NDArray[np.float32] | None:
    """(hidden, hidden): what a pooled vector is multiplied by, the product of both dense layers, which have nothing
    between them; None where the file has none."""
    if model.tensors.dense is None:
        return None
    first, second = (
        dequantize(model.file.rows(info), info.type).astype(np.float64)
        for info in model.tensors.dense
    )
    return (second @ first).astype(np.float32)


def _dense(file: GGUFFile, take: Tensors, spec: ModelSpec) -> tuple[TensorInfo, TensorInfo] | None:
    """The dense layers of sentence-transformers; None where neither their sizes nor their tensors are there."""
    keys, hidden = Keys(file, spec.architecture), spec.hidden_size
    sizes = ("dense_2_feat_in", "dense_2_feat_out", "dense_3_feat_in", "dense_3_feat_out")
    names = ("dense_2.weight", "dense_3.weight")
    if not any(key in keys for key in sizes) and not any(map(take.present, names)):
        return None
    width, inner, inner_again, width_again = (keys.count(key, most=MAX_SIZE) for key in sizes)
    if (width, inner_again, width_again) != (hidden, inner, hidden):
        raise ModelFileError(
            f"{file.name}: the dense layers map {width} values to {inner} and {inner_again} to {width_again}; "
            f"{hidden} to some and these to {hidden} is wanted"
        )
    return take.required(names[0], inner, hidden), take.required(names[1], hidden, inner)


def _wanted(take: Tensors, wanted: Presence | bool, name: str, *shape: int) -> TensorInfo | None:
    if wanted == "optional":
        return take.optional(name, *shape)
    return take.required(name, *shape) if wanted in (True, "required") else None


def _norm_bias(
    take: Tensors, architecture: Architecture, name: str, size: int
) -> TensorInfo | None:
    """Of a LayerNorm: zeros where the architecture has none."""
    if not architecture.layer_norms:
        return None
    return take.required(name, size) if architecture.norm_biases else TensorInfo.zeros(name, size)


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

    def vector(wanted: Presence | bool, name: str, size: int) -> TensorInfo | None:
        return _wanted(take, wanted, prefix + name, size)

    if architecture.fused and not take.present(prefix + "attn_q.weight"):
        sizes = (q_size, kv_size, kv_size)
        q, k, v = _parts(
            take, take.required(prefix + "attn_qkv.weight", sum(sizes), hidden), *sizes
        )
        bias = vector(architecture.qkv_bias, "attn_qkv.bias", sum(sizes))
        q_bias, k_bias, v_bias = (None, None, None) if bias is None else _parts(take, bias, *sizes)
    else:
        q = take.required(prefix + "attn_q.weight", q_size, hidden)
        k = take.required(prefix + "attn_k.weight", kv_size, hidden)
        v = take.required(prefix + "attn_v.weight", kv_size, hidden)
        q_bias = vector(architecture.qkv_bias, "attn_q.bias", q_size)
        k_bias = vector(architecture.qkv_bias, "attn_k.bias", kv_size)
        v_bias = vector(architecture.qkv_bias, "attn_v.bias", kv_size)
    q_norm, k_norm = (
        (q_size, kv_size) if architecture.whole_qk_norm else (spec.head_dim, spec.head_dim)
    )
    attention_norm, ffn_norm = _norm_names(take, spec, prefix)
    router, gate, up, down = _feed_forward(take, spec, prefix)
    return LayerTensors(
        attention_norm=vector(architecture.pre_norms, f"{attention_norm}.weight", hidden),
        q=q,
        k=k,
        v=v,
        o=take.required(prefix + "attn_output.weight", hidden, q_size),
        ffn_norm=vector(architecture.pre_norms and bool(ffn_norm), f"{ffn_norm}.weight", hidden),
        gate=gate,
        up=up,
        down=down,
        q_bias=q_bias,
        k_bias=k_bias,
        v_bias=v_bias,
        q_norm=vector(architecture.qk_norm, "attn_q_norm.weight", q_norm),
        k_norm=vector(architecture.qk_norm, "attn_k_norm.weight", k_norm),
        post_attention_norm=vector(architecture.post_norms, "post_attention_norm.weight", hidden),
        post_ffn_norm=vector(architecture.post_norms, "post_ffw_norm.weight", hidden),
        router=router,
        attention_norm_bias=_norm_bias(
            take, architecture, f"{prefix}{attention_norm}.bias", hidden
        ),
        ffn_norm_bias=_norm_bias(take, architecture, f"{prefix}{ffn_norm}.bias", hidden)
        if ffn_norm
        else None,
        o_bias=vector(architecture.o_bias, "attn_output.bias", hidden),
        sinks=vector(architecture.sinks, "attn_sinks.weight", spec.num_heads),
        **_feed_forward_biases(take, spec, prefix),
        shared=_shared_expert(take, spec, prefix),
    )


def _norm_names(take: Tensors, spec: ModelSpec, prefix: str) -> tuple[str, str]:
    """Of what attention reads and of what the feed-forward reads: "" where that is the same."""
    architecture = ARCHITECTURES[spec.architecture]
    if not spec.parallel or architecture.parallel == "told":  # GPT-NeoX has both either way
        return "attn_norm", architecture.ffn_norm
    if take.present(prefix + "attn_norm_2.weight"):  # Falcon 40B
        return "attn_norm_2", "attn_norm"
    return "attn_norm", ""


def _feed_forward(
    take: Tensors, spec: ModelSpec, prefix: str
) -> tuple[TensorInfo | None, TensorInfo | None, TensorInfo, TensorInfo]:
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
    if not spec.gated:
        return None, None, take.required(prefix + "ffn_up.weight", ffn, hidden), down
    if ARCHITECTURES[spec.architecture].fused and not take.present(prefix + "ffn_gate.weight"):
        gate, up = _parts(take, take.required(prefix + "ffn_up.weight", 2 * ffn, hidden), ffn, ffn)
    else:
        gate = take.required(prefix + "ffn_gate.weight", ffn, hidden)
        up = take.required(prefix + "ffn_up.weight", ffn, hidden)
    return None, gate, up, down


def _feed_forward_biases(
    take: Tensors, spec: ModelSpec, prefix: str
) -> dict[str, TensorInfo | None]:
    """By field of LayerTensors; those of all experts seen as one vector."""
    architecture = ARCHITECTURES[spec.architecture]
    if spec.experts is None:
        sizes = {"up": spec.ffn_size, "down": spec.hidden_size}
        return {
            f"{part}_bias": _wanted(take, architecture.ffn_bias, f"{prefix}ffn_{part}.bias", size)
            for part, size in sizes.items()
        }
    if not architecture.expert_biases:
        return {}
    count = spec.experts.count
    found: dict[str, TensorInfo | None] = {
        "router_bias": take.required(prefix + "ffn_gate_inp.bias", count)
    }
    for part, size in (("gate", spec.ffn_size), ("up", spec.ffn_size), ("down", spec.hidden_size)):
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


def _parts(take: Tensors, info: TensorInfo, *rows: int) -> list[TensorInfo]:
    """Consecutive rows of a matrix as matrices of their own, or of a vector as vectors. Raises ModelFileError where
    what packs weights together does not end where a part does."""
    width = prod(info.shape[1:])
    packed, pack_bytes = GGML_QUANT_SIZES[info.type]
    parts, offset = [], info.offset
    for count in rows:
        if count * width % packed:
            raise take.refuse(
                f"tensor '{info.name}' ({info.type.name}) has a part of {count * width} weights, "
                f"not a multiple of the {packed} that are packed together"
            )
        nbytes = count * width // packed * pack_bytes
        parts.append(replace(info, shape=(count, *info.shape[1:]), offset=offset, nbytes=nbytes))
        offset += nbytes
    return parts
