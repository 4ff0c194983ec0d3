"""ModelSpec: what a model is, read from GGUF metadata. The only place that knows GGUF's key and tensor names.

A difference of sizes or switches between architectures is a field here; only different mathematics is new code.
"""

from __future__ import annotations

import math
import os
import reprlib
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np
from gguf import LlamaFileType

from ..errors import ModelFileError
from .checked import Keys, Tensors
from .dequant import dequantize
from .encoder import ENCODER_ARCHITECTURES, EncoderFile, is_encoder
from .reader import GGUFFile, TensorInfo
from .shards import model_stem

MAX_LAYERS = 1024
MAX_SIZE = 1 << 20  # of the hidden state, the feed-forward state, heads
MAX_HEAD_DIM = 1024
MAX_CONTEXT = 1 << 30


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What may differ from layer to layer."""

    rope_base: float
    rope_scale: float  # positions are divided by it (linear scaling); 1: none
    window: int  # tokens visible to attention, itself included; 0: all


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Sizes and switches of one decoder model."""

    architecture: str
    name: str
    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int  # trained context
    norm_eps: float
    rope_dim: int  # leading dims of a head that are rotated
    rope_pairing: Literal["adjacent", "halves"]  # (0,1),(2,3).. or (0,d/2),(1,d/2+1)..
    activation: Literal["silu", "gelu"]  # gelu: tanh approximation
    embedding_scale: float  # 1: none
    attention_scale: float  # usually head_dim ** -0.5
    layers: tuple[LayerSpec, ...]


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """Tensors of one layer; optional ones are None where the architecture has none. Matrices are (rows, cols)."""

    attention_norm: TensorInfo  # (hidden,)
    q: TensorInfo  # (num_heads * head_dim, hidden)
    k: TensorInfo  # (num_kv_heads * head_dim, hidden)
    v: TensorInfo
    o: TensorInfo  # (hidden, num_heads * head_dim)
    ffn_norm: TensorInfo
    gate: TensorInfo  # (ffn, hidden)
    up: TensorInfo
    down: TensorInfo  # (hidden, ffn)
    q_bias: TensorInfo | None = None
    k_bias: TensorInfo | None = None
    v_bias: TensorInfo | None = None
    q_norm: TensorInfo | None = None  # (head_dim,)
    k_norm: TensorInfo | None = None
    post_attention_norm: TensorInfo | None = None  # before the residual add
    post_ffn_norm: TensorInfo | None = None


@dataclass(frozen=True, slots=True)
class ModelTensors:
    token_embedding: TensorInfo  # (vocab, hidden)
    output_norm: TensorInfo
    output: TensorInfo  # the token embedding itself where the file ties them
    layers: tuple[LayerTensors, ...]
    rope_factors: TensorInfo | None = None  # (rope_dim / 2,) divides the frequencies


@dataclass(frozen=True, slots=True)
class ModelFile:
    """An open model: the file, what it is, and where its tensors lie."""

    file: GGUFFile
    spec: ModelSpec
    tensors: ModelTensors

    def close(self) -> None:
        self.file.close()


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What lists and `show` tell beside the spec."""

    num_parameters: int
    quantization: str  # as Q4_K_M
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class _Architecture:
    """What metadata does not tell: it is fixed by the architecture's name."""

    rope_pairing: Literal["adjacent", "halves"]
    activation: Literal["silu", "gelu"] = "silu"
    qkv_bias: Literal["none", "optional", "required"] = "none"
    qk_norm: bool = False
    post_norms: bool = False
    rope_factors: bool = False
    scaled_embedding: bool = False
    sliding_window: bool = False


_ARCHITECTURES = {
    "llama": _Architecture("adjacent", qkv_bias="optional", rope_factors=True),
    "qwen2": _Architecture("halves", qkv_bias="required"),
    "qwen3": _Architecture("halves", qk_norm=True),
    "gemma3": _Architecture(
        "halves",
        activation="gelu",
        qk_norm=True,
        post_norms=True,
        scaled_embedding=True,
        sliding_window=True,
    ),
}

# Of gemma3: every sixth layer sees everything, and the others have a rope base of their own.
_DEFAULT_PATTERN = 6
_LOCAL_ROPE_BASE = 10000.0
_GEMMA3_27B_LAYERS = 62


def open_model(path: str | os.PathLike[str]) -> ModelFile:
    """Open, check and describe a model file; raises `ModelFileError` naming file and fault."""
    file = GGUFFile(path)
    try:
        spec = load_spec(file)
        return ModelFile(file, spec, load_tensors(file, spec))
    except BaseException:
        file.close()
        raise


def load_spec(file: GGUFFile) -> ModelSpec:
    """What the metadata says the model is, every size checked against sane limits."""
    name = _checked_architecture(file)
    architecture = _ARCHITECTURES[name]
    keys = Keys(file, name)
    keys.off("expert_count", 0, "mixtures of experts are")
    keys.off("attention.causal", True, "attention that is not causal is")
    keys.off("final_logit_softcapping", 0, "soft caps on logits are")
    num_layers = keys.count("block_count", most=MAX_LAYERS)
    hidden_size = keys.count("embedding_length", most=MAX_SIZE)
    num_heads = keys.count("attention.head_count", most=MAX_SIZE)
    num_kv_heads = keys.count("attention.head_count_kv", most=MAX_SIZE, default=num_heads)
    if num_heads % num_kv_heads:
        raise keys.refuse(
            "attention.head_count", f"is {num_heads}, not a multiple of {num_kv_heads} KV heads"
        )
    head_dim = _head_dim(keys, hidden_size, num_heads)
    rope_dim = keys.count("rope.dimension_count", most=head_dim, default=head_dim)
    if rope_dim % 2:
        raise keys.refuse("rope.dimension_count", f"is {rope_dim}; it must be even")
    per_head = head_dim
    if name == "gemma3" and num_layers == _GEMMA3_27B_LAYERS:
        per_head = hidden_size // num_heads  # gemma_pytorch config.py, query_pre_attn_scalar
    return ModelSpec(
        architecture=name,
        name=_model_name(file),
        num_layers=num_layers,
        hidden_size=hidden_size,
        ffn_size=keys.count("feed_forward_length", most=MAX_SIZE),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=_vocab_size(file),
        context_length=keys.count("context_length", most=MAX_CONTEXT),
        norm_eps=keys.number("attention.layer_norm_rms_epsilon", most=1.0),
        rope_dim=rope_dim,
        rope_pairing=architecture.rope_pairing,
        activation=architecture.activation,
        embedding_scale=math.sqrt(hidden_size) if architecture.scaled_embedding else 1.0,
        attention_scale=per_head**-0.5,
        layers=_layers(keys, num_layers, architecture.sliding_window),
    )


def load_tensors(file: GGUFFile, spec: ModelSpec) -> ModelTensors:
    """The model's tensors by place. A missing one, a wrong shape, a type without a decoder and a
    tensor that the architecture has no use for (results would be wrong without it) are errors.
    """
    architecture = _ARCHITECTURES[spec.architecture]
    take = Tensors(file)
    embedding = take.required("token_embd.weight", spec.vocab_size, spec.hidden_size)
    output = take.optional("output.weight", spec.vocab_size, spec.hidden_size)
    output_norm = take.required("output_norm.weight", spec.hidden_size)
    layers = tuple(_layer_tensors(take, spec, f"blk.{i}.") for i in range(spec.num_layers))
    rope_factors = None
    if architecture.rope_factors:
        rope_factors = take.optional("rope_freqs.weight", spec.rope_dim // 2)
    if rope_factors is not None:
        factors = dequantize(file.rows(rope_factors), rope_factors.type)
        if not (np.isfinite(factors).all() and (factors > 0).all()):
            raise ModelFileError(
                f"{file.name}: tensor 'rope_freqs.weight' must be above 0 throughout"
            )
    take.check_all_taken(spec.architecture)
    return ModelTensors(embedding, output_norm, output or embedding, layers, rope_factors)


def describe(model: ModelFile | EncoderFile) -> ModelDescription:
    """Sizes of the file's tensors, and its quantization by the file's own word or by its commonest type."""
    tensors = model.file.tensors.values()
    return ModelDescription(
        num_parameters=sum(math.prod(info.shape) for info in tensors),
        quantization=_quantization(model.file),
        weight_bytes=sum(info.nbytes for info in tensors),
    )


def _checked_architecture(file: GGUFFile) -> str:
    name = file.metadata.get("general.architecture")
    supported = ", ".join([*_ARCHITECTURES, *ENCODER_ARCHITECTURES])
    if is_encoder(file):
        raise ModelFileError(
            f"{file.name}: is an encoder ({name}), which makes embeddings and cannot generate text"
        )
    if name is None:
        raise ModelFileError(f"{file.name}: metadata key 'general.architecture' is missing")
    if not isinstance(name, str) or name not in _ARCHITECTURES:
        raise ModelFileError(
            f"{file.name}: architecture {reprlib.repr(name)} is not supported; supported are {supported}"
        )
    return name


def _model_name(file: GGUFFile) -> str:
    name = file.metadata.get("general.name")
    return name if isinstance(name, str) and name else model_stem(file.path)


def _head_dim(keys: Keys, hidden_size: int, num_heads: int) -> int:
    if "attention.key_length" in keys:
        head_dim = keys.count("attention.key_length", most=MAX_HEAD_DIM)
    elif hidden_size % num_heads:
        raise keys.refuse(
            "attention.head_count",
            f"is {num_heads}, which does not divide the embedding length {hidden_size}",
        )
    else:
        head_dim = hidden_size // num_heads
    value_dim = keys.count("attention.value_length", most=MAX_HEAD_DIM, default=head_dim)
    if value_dim != head_dim:
        raise keys.refuse(
            "attention.value_length", f"is {value_dim}, and keys have {head_dim}; they must agree"
        )
    if head_dim % 2 or head_dim > MAX_HEAD_DIM:
        raise keys.refuse(
            "attention.key_length",
            f"is {head_dim} (given or derived); it must be even and at most {MAX_HEAD_DIM}",
        )
    return head_dim


def _vocab_size(file: GGUFFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError(f"{file.name}: tensor 'token_embd.weight' is missing")
    rows = embedding.shape[0]
    tokens = file.metadata.get("tokenizer.ggml.tokens", [])
    if not isinstance(tokens, list):
        raise ModelFileError(f"{file.name}: 'tokenizer.ggml.tokens' is not a list of strings")
    if len(tokens) > rows:
        raise ModelFileError(
            f"{file.name}: 'tokenizer.ggml.tokens' holds {len(tokens)} tokens, but "
            f"'token_embd.weight' has {rows} rows"
        )
    return rows


def _layers(keys: Keys, num_layers: int, may_slide: bool) -> tuple[LayerSpec, ...]:
    scaling = keys.scalar("rope.scaling.type")
    if scaling not in (None, "none", "linear"):
        raise keys.refuse(
            "rope.scaling.type",
            f"is {reprlib.repr(scaling)}; supported are 'none' and 'linear'",
        )
    keys.off("rope.scaling.attn_factor", 1.0, "scaled rotations are")
    # A factor of 0 means none; the second spelling is of old converters.
    factor = next(
        (key for key in ("rope.scaling.factor", "rope.scale_linear") if key in keys), None
    )
    scale = 1.0
    if factor and scaling != "none" and keys.scalar(factor) != 0:
        scale = keys.number(factor, most=1e6)
    everywhere = LayerSpec(keys.number("rope.freq_base", most=1e12, default=10000.0), scale, 0)
    if not may_slide or keys.scalar("attention.sliding_window") in (None, 0):
        return (everywhere,) * num_layers
    window = keys.count("attention.sliding_window", most=MAX_CONTEXT)
    base = keys.number("rope.freq_base_swa", most=1e12, default=_LOCAL_ROPE_BASE)
    sliding = LayerSpec(base, 1.0, window)
    return tuple(sliding if slides else everywhere for slides in _sliding_layers(keys, num_layers))


def _sliding_layers(keys: Keys, num_layers: int) -> list[bool]:
    """Which layers have a window: one flag a layer, or a period whose last layer has none."""
    key = "attention.sliding_window_pattern"
    flags = keys.array(key)
    if flags is not None:
        if len(flags) != num_layers:
            raise keys.refuse(key, f"has {len(flags)} entries for {num_layers} layers")
        return [bool(flag) for flag in flags]
    period = keys.count(key, most=MAX_LAYERS, default=_DEFAULT_PATTERN)
    return [layer % period < period - 1 for layer in range(num_layers)]


def _layer_tensors(take: Tensors, spec: ModelSpec, prefix: str) -> LayerTensors:
    architecture = _ARCHITECTURES[spec.architecture]
    hidden, ffn = spec.hidden_size, spec.ffn_size
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim

    def bias(name: str, size: int) -> TensorInfo | None:
        if architecture.qkv_bias == "none":
            return None
        if architecture.qkv_bias == "required":
            return take.required(prefix + name, size)
        return take.optional(prefix + name, size)

    def norm(wanted: bool, name: str, size: int) -> TensorInfo | None:
        return take.required(prefix + name, size) if wanted else None

    return LayerTensors(
        attention_norm=take.required(prefix + "attn_norm.weight", hidden),
        q=take.required(prefix + "attn_q.weight", q_size, hidden),
        k=take.required(prefix + "attn_k.weight", kv_size, hidden),
        v=take.required(prefix + "attn_v.weight", kv_size, hidden),
        o=take.required(prefix + "attn_output.weight", hidden, q_size),
        ffn_norm=take.required(prefix + "ffn_norm.weight", hidden),
        gate=take.required(prefix + "ffn_gate.weight", ffn, hidden),
        up=take.required(prefix + "ffn_up.weight", ffn, hidden),
        down=take.required(prefix + "ffn_down.weight", hidden, ffn),
        q_bias=bias("attn_q.bias", q_size),
        k_bias=bias("attn_k.bias", kv_size),
        v_bias=bias("attn_v.bias", kv_size),
        q_norm=norm(architecture.qk_norm, "attn_q_norm.weight", spec.head_dim),
        k_norm=norm(architecture.qk_norm, "attn_k_norm.weight", spec.head_dim),
        post_attention_norm=norm(architecture.post_norms, "post_attention_norm.weight", hidden),
        post_ffn_norm=norm(architecture.post_norms, "post_ffw_norm.weight", hidden),
    )


def _quantization(file: GGUFFile) -> str:
    code = file.metadata.get("general.file_type", -1)
    names = {int(known): known.name for known in LlamaFileType}
    if isinstance(code, int) and code in names:
        return names[code].removeprefix("MOSTLY_").removeprefix("ALL_")
    weights: Counter[str] = Counter()
    for info in file.tensors.values():
        weights[info.type.name] += math.prod(info.shape)
    return weights.most_common(1)[0][0]
