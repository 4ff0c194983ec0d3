"""Tiny random models, one for each architecture and for each way its files may differ; what the tests run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from tiny_gguf import Tensor, random_model, random_rows

HEAD_DIM, LAYERS = 32, 4
EXPERTS, USED = 6, 2


@dataclass(frozen=True)
class Sizes:
    """Of the matrices; `ffn` of one expert where there are experts."""

    width: int = 128
    ffn: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = HEAD_DIM
    shared_ffn: int = 64


USUAL = Sizes()

YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}
MULTIPLIERS = {
    "embedding_scale": 6.0,
    "residual_scale": 0.3,
    "attention.scale": 0.05,
    "logit_scale": 4.0,
}
SOFT_CAPS = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}
LAYER_NORMS = {"attention.layer_norm_epsilon": 1e-5}
MIXTURE = {"expert_count": EXPERTS, "expert_used_count": USED}

NORM_BIASES = (
    "gpt2",
    "starcoder",
    "starcoder2",
    "gptneox",
    "stablelm",
    "nemotron",
    "phi2",
    "falcon",
)
UNGATED = ("gpt2", "starcoder", "starcoder2", "gptneox", "nemotron", "phi2", "falcon", "arcee")
PARALLEL = ("phi2", "falcon", "command-r", "cohere2")
"""Architectures with one norm for both parts."""
PRODUCT_BIASES = ("gpt2", "starcoder", "starcoder2", "gptneox", "phi2")

CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, rope factors": {"rope_freqs.weight": HEAD_DIM // 2},
    "llama, linear rope": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    "llama, YaRN": YARN,
    "llama, experts (Mixtral)": MIXTURE,
    "mistral3": {},
    "mistral3, YaRN, queries that grow": YARN
    | {
        "rope.scaling.original_context_length": 16,
        "rope.scaling.yarn_log_multiplier": 0.7,
        "attention.temperature_scale": 0.5,
    },
    "qwen2": {},
    "qwen2vl": {"rope.dimension_sections": [4, 6, 6, 0]},
    "qwen2moe": MIXTURE,
    "qwen3": {},
    "qwen3, YaRN": YARN,
    "qwen3vl": {"rope.dimension_sections": [6, 5, 5, 0]},
    "qwen3moe": MIXTURE,
    "qwen3vlmoe": MIXTURE | {"rope.dimension_sections": [6, 5, 5, 0]},
    "seed_oss": {},
    "internlm2": {},
    "ernie4_5": {},
    "arcee": {},
    "exaone": {"rope_freqs.weight": HEAD_DIM // 2},
    "exaone4": {},
    "exaone4, windows (32B)": {
        "attention.sliding_window": 16,
        "attention.sliding_window_pattern": 4,
        "block_count": 64,  # by which llama.cpp tells it
    },
    "chatglm": {"rope.dimension_count": HEAD_DIM // 2},
    "glm4": {"rope.dimension_count": HEAD_DIM // 2},
    "glm4, biases": {"rope.dimension_count": HEAD_DIM // 2},
    "gemma": {},
    "gemma2": SOFT_CAPS | {"attention.sliding_window": 16},
    "gemma3": {"attention.sliding_window": 16, "attention.sliding_window_pattern": 2},
    "phi3": {},
    "phi3, long rope of half a head": {
        "rope.dimension_count": HEAD_DIM // 2,
        "rope_factors_short.weight": HEAD_DIM // 4,
        "rope_factors_long.weight": HEAD_DIM // 4,
        "rope.scaling.original_context_length": 4096,
        "rope.scaling.attn_factor": 1.2,
    },
    "phi3, long rope in a long context": {
        "rope_factors_short.weight": HEAD_DIM // 2,
        "rope_factors_long.weight": HEAD_DIM // 2,
        "rope.scaling.original_context_length": 128,
        "rope.scaling.attn_factor": 1.2,
    },
    "smollm3": {},
    "granite": MULTIPLIERS,
    "granitemoe": MULTIPLIERS | MIXTURE,
    "olmoe": MIXTURE,
    "olmo2": {},
    "olmo2, windows (OLMo 3)": {"attention.sliding_window": 16},
    "olmo2, windows, YaRN (OLMo 3)": YARN | {"attention.sliding_window": 16},
    "gpt-oss": MIXTURE | YARN | {"attention.sliding_window": 16},
    "gpt2": LAYER_NORMS | {"context_length": 256},
    "starcoder": LAYER_NORMS | {"context_length": 256},
    "starcoder2": LAYER_NORMS,
    "gptneox": LAYER_NORMS | {"use_parallel_residual": True, "rope.dimension_count": HEAD_DIM // 4},
    "gptneox, one after the other": LAYER_NORMS | {"use_parallel_residual": False},
    "stablelm": LAYER_NORMS | {"rope.dimension_count": HEAD_DIM // 4},
    "nemotron": LAYER_NORMS | {"rope.dimension_count": HEAD_DIM // 2},
    "command-r": LAYER_NORMS | {"logit_scale": 0.0625},
    "cohere2": LAYER_NORMS | {"logit_scale": 0.25, "attention.sliding_window": 16},
    "phi2": LAYER_NORMS | {"rope.dimension_count": HEAD_DIM // 2},
    "phi2, q, k and v apart": LAYER_NORMS,
    "falcon": LAYER_NORMS,
    "falcon, two norms (40B)": LAYER_NORMS,
}
"""By name, "ARCHITECTURE, what differs": metadata below the architecture, and sizes of further vectors."""


def architecture_model(
    path: Path,
    name: str,
    *,
    quant: str = "F32",
    seed: int = 0,
    sizes: Sizes = USUAL,
    replaced: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write the model of a case; matrices are `quant`. `replaced`: tensors in place of its own."""
    architecture, given = name.split(",")[0], CASES[name]
    layers = given.get("block_count", LAYERS)
    if architecture == "olmoe":  # which llama.cpp reads with as many
        sizes = replace(sizes, kv_heads=sizes.heads)
    rng = np.random.default_rng(seed + 1)
    metadata = {f"{architecture}.{key}": v for key, v in given.items() if ".weight" not in key}
    tensors: dict[str, Tensor | None] = {
        key: rng.uniform(1, 4, size).astype(np.float32)
        for key, size in given.items()
        if ".weight" in key
    }
    if "expert_count" in given and architecture != "llama":
        metadata[f"{architecture}.expert_feed_forward_length"] = sizes.ffn
    if architecture == "qwen2moe":
        metadata[f"{architecture}.expert_shared_feed_forward_length"] = sizes.shared_ffn
    if architecture in NORM_BIASES:
        tensors["output_norm.bias"] = rng.normal(0, 0.3, sizes.width).astype(np.float32)
    if architecture == "phi2":
        tensors["output.bias"] = rng.normal(0, 1, 512).astype(np.float32)
    if architecture in ("gpt2", "starcoder"):
        tensors["position_embd.weight"] = rng.normal(0, 0.3, (256, sizes.width)).astype(np.float32)
    for layer in range(layers):
        tensors |= _layer(name, f"blk.{layer}.", rng, GGMLQuantizationType[quant], given, sizes)
    return random_model(
        path,
        architecture,  # type: ignore[arg-type]
        quant=quant,
        layers=layers,
        width=sizes.width,
        ffn=sizes.ffn,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        seed=seed,
        tied=architecture.startswith(("gemma", "co")),
        metadata=metadata,
        tensors=tensors | dict(replaced or {}),
    )


def _layer(
    name: str,
    prefix: str,
    rng: np.random.Generator,
    kind: GGMLQuantizationType,
    given: Mapping[str, Any],
    sizes: Sizes,
) -> dict[str, Tensor | None]:
    """What a layer has beside, or instead of, a llama layer's tensors."""

    def matrix(*shape: int, kind: GGMLQuantizationType = kind) -> Tensor:
        rows, cols = math.prod(shape[:-1]), shape[-1]
        made = random_rows(rng, rows, cols, kind, std=1 / math.sqrt(cols))
        return kind, made.reshape(*shape[:-1], -1)

    def vector(size: int, mean: float = 1.0) -> Tensor:
        return rng.normal(mean, 0.1, size).astype(np.float32)

    architecture = name.split(",")[0]
    q_size, kv_size = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    found: dict[str, Tensor | None] = {}
    if architecture == "qwen2moe":
        for part, size in (("q", q_size), ("k", kv_size), ("v", kv_size)):
            found[f"attn_{part}.bias"] = vector(size, 0.0)
        found |= {
            "ffn_gate_inp_shexp.weight": vector(sizes.width, 0.0),
            "ffn_gate_shexp.weight": matrix(sizes.shared_ffn, sizes.width),
            "ffn_up_shexp.weight": matrix(sizes.shared_ffn, sizes.width),
            "ffn_down_shexp.weight": matrix(sizes.width, sizes.shared_ffn),
        }
    if architecture in ("qwen3moe", "qwen3vl", "qwen3vlmoe", "exaone4"):
        found |= {
            "attn_q_norm.weight": vector(sizes.head_dim),
            "attn_k_norm.weight": vector(sizes.head_dim),
        }
    if architecture in ("gemma2", "olmo2", "exaone4", "glm4"):
        found |= {
            "post_attention_norm.weight": vector(sizes.width),
            "post_ffw_norm.weight": vector(sizes.width),
        }
    if architecture in ("olmo2", "olmoe"):
        found |= {"attn_q_norm.weight": vector(q_size), "attn_k_norm.weight": vector(kv_size)}
    if architecture in ("olmo2", "exaone4"):
        found |= {"attn_norm.weight": None, "ffn_norm.weight": None}
    if architecture == "seed_oss":
        found |= {"ffn_norm.weight": None, "post_attention_norm.weight": vector(sizes.width)}
    if architecture in UNGATED:
        found["ffn_gate.weight"] = None
    if architecture in PARALLEL:
        found["ffn_norm.weight"] = None
    if architecture in NORM_BIASES:
        found["attn_norm.bias"] = vector(sizes.width, 0.0)
        if architecture not in PARALLEL:
            found["ffn_norm.bias"] = vector(sizes.width, 0.0)
    if "two norms" in name:
        found |= {
            "attn_norm_2.weight": vector(sizes.width),
            "attn_norm_2.bias": vector(sizes.width, 0.0),
        }
    if architecture in PRODUCT_BIASES:
        found |= {"attn_output.bias": vector(sizes.width, 0.0)}
        found |= {"ffn_up.bias": vector(sizes.ffn, 0.0), "ffn_down.bias": vector(sizes.width, 0.0)}
    if architecture in ("starcoder2", "qwen2vl") or "apart" in name or "biases" in name:
        for part, size in (("q", q_size), ("k", kv_size), ("v", kv_size)):
            found[f"attn_{part}.bias"] = vector(size, 0.0)
    elif architecture in ("phi3", "gpt2", "starcoder", "gptneox", "phi2", "falcon", "chatglm"):
        found |= dict.fromkeys(("attn_q.weight", "attn_k.weight", "attn_v.weight"), None)
        found["attn_qkv.weight"] = matrix(q_size + 2 * kv_size, sizes.width)
        if architecture in (*PRODUCT_BIASES, "chatglm"):
            found["attn_qkv.bias"] = vector(q_size + 2 * kv_size, 0.0)
    if architecture in ("phi3", "chatglm", "glm4"):
        found["ffn_gate.weight"] = None
        found["ffn_up.weight"] = matrix(2 * sizes.ffn, sizes.width)
    if architecture == "gpt-oss":
        found |= {"ffn_norm.weight": None, "post_attention_norm.weight": vector(sizes.width)}
        found["attn_sinks.weight"] = vector(sizes.heads, 2.0) * 2
        rows = {"attn_q": q_size, "attn_k": kv_size, "attn_v": kv_size, "attn_output": sizes.width}
        for part, size in {**rows, "ffn_gate_inp": EXPERTS}.items():
            found[f"{part}.bias"] = vector(size, 0.0)
        for part, size in (("gate", sizes.ffn), ("up", sizes.ffn), ("down", sizes.width)):
            found[f"ffn_{part}_exps.bias"] = vector(EXPERTS * size, 0.0).reshape(EXPERTS, size)
    expert_kind = kind
    if architecture == "gpt-oss" and kind != GGMLQuantizationType.F32:
        expert_kind = GGMLQuantizationType.MXFP4
    if "expert_count" in given:
        found |= dict.fromkeys(("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"), None)
        found |= {
            "ffn_gate_inp.weight": matrix(EXPERTS, sizes.width, kind=GGMLQuantizationType.F32),
            "ffn_gate_exps.weight": matrix(EXPERTS, sizes.ffn, sizes.width, kind=expert_kind),
            "ffn_up_exps.weight": matrix(EXPERTS, sizes.ffn, sizes.width, kind=expert_kind),
            "ffn_down_exps.weight": matrix(EXPERTS, sizes.width, sizes.ffn, kind=expert_kind),
        }
    return {f"{prefix}{name}": tensor for name, tensor in found.items()}
