"""Small random models as arrays, one for each architecture's switches; no file is involved."""

from __future__ import annotations

from typing import Any

import numpy as np

from emberd.gguf.spec import LayerSpec, ModelSpec
from emberd.reference.ops import F32
from emberd.reference.weights import Layer, Weights

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 48, 80, 6, 2, 16, 97

VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {"rope_pairing": "adjacent", "rope_dim": 12},
    "qwen2": {"bias": True},
    "qwen3": {"head_norms": True},
    "gemma3": {
        "head_norms": True,
        "post_norms": True,
        "activation": "gelu",
        "embedding_scale": HIDDEN**0.5,
        "layers": (LayerSpec(10000.0, 1.0, 7), LayerSpec(1e6, 8.0, 0), LayerSpec(10000.0, 1.0, 7)),
    },
}


def random_weights(
    rng: np.random.Generator,
    *,
    bias: bool = False,
    head_norms: bool = False,
    post_norms: bool = False,
    tied: bool = True,
    **switches: Any,
) -> Weights:
    """A model of `switches` (fields of ModelSpec) whose logits spread over a few units."""
    layers = switches.pop("layers", (LayerSpec(10000.0, 1.0, 0),) * 2)
    fields: dict[str, Any] = {
        "rope_dim": HEAD_DIM,
        "rope_pairing": "halves",
        "activation": "silu",
        "embedding_scale": 1.0,
        "context_length": 4096,
    }
    spec = ModelSpec(
        architecture="test",
        name="random",
        num_layers=len(layers),
        hidden_size=HIDDEN,
        ffn_size=FFN,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        vocab_size=VOCAB,
        norm_eps=1e-6,
        attention_scale=HEAD_DIM**-0.5,
        layers=layers,
        **(fields | switches),
    )

    def matrix(rows: int, cols: int) -> F32:
        return rng.standard_normal((rows, cols), dtype=np.float32) * np.float32(cols**-0.5)

    def norm(size: int) -> F32:
        return rng.uniform(0.5, 1.5, size).astype(np.float32)

    def layer() -> Layer:
        heads = (HEADS + 2 * KV_HEADS) * HEAD_DIM
        return Layer(
            attention_norm=norm(HIDDEN),
            qkv=matrix(heads, HIDDEN),
            qkv_bias=rng.standard_normal(heads, dtype=np.float32) if bias else None,
            q_norm=norm(HEAD_DIM) if head_norms else None,
            k_norm=norm(HEAD_DIM) if head_norms else None,
            o=matrix(HIDDEN, HEADS * HEAD_DIM),
            post_attention_norm=norm(HIDDEN) if post_norms else None,
            ffn_norm=norm(HIDDEN),
            gate_up=matrix(2 * FFN, HIDDEN),
            down=matrix(HIDDEN, FFN),
            post_ffn_norm=norm(HIDDEN) if post_norms else None,
        )

    embedding = rng.standard_normal((VOCAB, HIDDEN), dtype=np.float32)
    return Weights(
        spec=spec,
        token_embedding=embedding,
        layers=tuple(layer() for _ in layers),
        output_norm=norm(HIDDEN),
        output=embedding if tied else matrix(VOCAB, HIDDEN),
        rope_factors=None,
        nbytes=embedding.nbytes,
    )
