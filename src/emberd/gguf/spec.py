"""ModelSpec: what a model is, read from GGUF metadata. The only place that knows GGUF's key and tensor names.

A difference of sizes or switches between architectures is a field here; only different mathematics is new code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .reader import TensorInfo


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
