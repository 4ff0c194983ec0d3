"""What metadata does not tell: it is fixed by the architecture's name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from .model import Activation

Presence = Literal["none", "optional", "required"]


@dataclass(frozen=True, slots=True)
class Architecture:
    rope_pairing: Literal["adjacent", "halves"]
    activation: Activation = "silu"
    qkv_bias: Presence = "none"
    o_bias: Presence = "none"
    ffn_bias: Presence = "none"
    output_bias: bool = False
    layer_norms: bool = False  # instead of RMS norms
    norm_biases: bool = True  # of LayerNorms
    sinks: bool = False
    qk_norm: bool = False
    whole_qk_norm: bool = False  # over all heads together
    pre_norms: bool = True
    post_norms: bool = False
    ffn_norm: str = "ffn_norm"  # its name
    rope_factors: bool = False
    long_rope_factors: bool = False
    scaled_embedding: bool = False
    sliding_window: bool = False
    window_period: int = 1  # the last layer of each period sees everything; 1: all have the window
    still_without_window: bool = (
        False  # layers that see everything beside others with a window do not rotate
    )
    local_rope_base: float | None = None  # of layers with a window; None: the model's own
    local_rope_scaled: bool = True  # those layers too
    unrotated_period: int = 0  # the last layer of each period does not rotate; 0: all do
    fused: bool = False  # q, k and v are one tensor, and so are gate and up
    gated: bool = True
    parallel: bool | Literal["told"] = (
        False  # attention and feed-forward side by side; or as the file says
    )
    learned_positions: bool = False  # instead of rotation
    tempered: bool = False  # queries may grow with their position, and YaRN have a multiplier
    multipliers: bool = False  # of embedding, residual, attention, logits, in the metadata
    logit_factor: bool = False  # in the metadata, of logits alone; Granite's divides
    soft_caps: tuple[float, float] | None = (
        None  # of scores, of logits, where keys are missing; None: there are none
    )
    window: int = 0  # where its key is missing
    window_needed: bool = False  # a file without one is refused
    causal: bool = True  # else attention looks both ways, and the model makes embeddings only
    dense: bool = False  # there may be linear layers behind the pooling
    wide_layers: int = 0  # with so many layers, attention is scaled by hidden size / heads
    experts: Presence = "none"
    experts_normalized: bool = True
    expert_biases: bool = False  # of the router too
    shared_expert: bool = False


_GPT2 = Architecture(
    "halves",
    layer_norms=True,
    activation="gelu",
    gated=False,
    fused=True,
    qkv_bias="required",
    o_bias="required",
    ffn_bias="required",
    learned_positions=True,
)
_COMMAND_R = Architecture(
    "adjacent",
    layer_norms=True,
    norm_biases=False,
    qkv_bias="optional",
    parallel=True,
    logit_factor=True,
)

ARCHITECTURES = {
    "llama": Architecture("adjacent", qkv_bias="optional", rope_factors=True, experts="optional"),
    "mistral3": Architecture(
        "adjacent", qkv_bias="optional", rope_factors=True, experts="optional", tempered=True
    ),
    "qwen2": Architecture("halves", qkv_bias="required"),
    "qwen2moe": Architecture(
        "halves",
        qkv_bias="required",
        experts="required",
        experts_normalized=False,
        shared_expert=True,
    ),
    "qwen2vl": Architecture("halves", qkv_bias="required"),
    "qwen3": Architecture("halves", qk_norm=True),
    "qwen3vl": Architecture("halves", qk_norm=True),
    "qwen3moe": Architecture("halves", qk_norm=True, experts="required"),
    "qwen3vlmoe": Architecture("halves", qk_norm=True, experts="required"),
    "seed_oss": Architecture(
        "halves", qkv_bias="optional", o_bias="optional", ffn_norm="post_attention_norm"
    ),
    "internlm2": Architecture("adjacent", qkv_bias="optional"),
    "ernie4_5": Architecture("adjacent", qkv_bias="optional", o_bias="optional"),
    "arcee": Architecture(
        "adjacent", qkv_bias="optional", rope_factors=True, gated=False, activation="relu_squared"
    ),
    "exaone": Architecture("halves", rope_factors=True),
    "exaone4": Architecture(
        "halves",
        qk_norm=True,
        pre_norms=False,
        post_norms=True,
        rope_factors=True,
        sliding_window=True,
        window_period=4,
        still_without_window=True,
    ),
    "chatglm": Architecture("adjacent", qkv_bias="optional", fused=True),
    "glm4": Architecture("adjacent", qkv_bias="optional", fused=True, post_norms=True),
    "gemma": Architecture("halves", activation="gelu", scaled_embedding=True),
    "gemma2": Architecture(
        "halves",
        activation="gelu",
        post_norms=True,
        scaled_embedding=True,
        sliding_window=True,
        window_period=2,
        soft_caps=(50.0, 30.0),
        window=4096,
        wide_layers=46,  # 27B
    ),
    "gemma3": Architecture(
        "halves",
        activation="gelu",
        qk_norm=True,
        post_norms=True,
        scaled_embedding=True,
        sliding_window=True,
        window_period=6,
        local_rope_base=10000.0,
        wide_layers=62,  # 27B; gemma_pytorch config.py, query_pre_attn_scalar
    ),
    "gemma-embedding": Architecture(
        "halves",
        activation="gelu",
        qk_norm=True,
        post_norms=True,
        scaled_embedding=True,
        sliding_window=True,
        window_period=6,
        local_rope_base=10000.0,
        causal=False,
        dense=True,
    ),
    "phi3": Architecture("halves", fused=True, sliding_window=True, long_rope_factors=True),
    "smollm3": Architecture("adjacent", qkv_bias="optional", unrotated_period=4),
    "granite": Architecture("adjacent", qkv_bias="optional", rope_factors=True, multipliers=True),
    "granitemoe": Architecture(
        "adjacent", qkv_bias="optional", rope_factors=True, multipliers=True, experts="required"
    ),
    "olmoe": Architecture(
        "halves", qk_norm=True, whole_qk_norm=True, experts="required", experts_normalized=False
    ),
    "olmo2": Architecture(
        "halves",
        qk_norm=True,
        whole_qk_norm=True,
        pre_norms=False,
        post_norms=True,
        sliding_window=True,  # OLMo 3
        window_period=4,
        local_rope_scaled=False,
    ),
    "gpt-oss": Architecture(
        "halves",
        activation="clamped_silu",
        qkv_bias="required",
        o_bias="required",
        sinks=True,
        ffn_norm="post_attention_norm",
        sliding_window=True,
        window_period=2,
        experts="required",
        expert_biases=True,
    ),
    "gpt2": _GPT2,
    "starcoder": _GPT2,
    "starcoder2": Architecture(
        "halves",
        layer_norms=True,
        activation="gelu",
        gated=False,
        qkv_bias="optional",
        o_bias="optional",
        ffn_bias="optional",
    ),
    "phi2": Architecture(
        "halves",
        layer_norms=True,
        activation="gelu",
        gated=False,
        parallel=True,
        fused=True,
        qkv_bias="required",
        o_bias="required",
        ffn_bias="required",
        output_bias=True,
    ),
    "gptneox": Architecture(
        "halves",
        layer_norms=True,
        activation="gelu",
        gated=False,
        parallel="told",
        fused=True,
        qkv_bias="required",
        o_bias="required",
        ffn_bias="required",
    ),
    "stablelm": Architecture("halves", layer_norms=True, qkv_bias="optional"),
    "nemotron": Architecture(
        "halves",
        layer_norms=True,
        activation="relu_squared",
        gated=False,
        qkv_bias="optional",
        o_bias="optional",
        ffn_bias="optional",
    ),
    "command-r": _COMMAND_R,
    "cohere2": replace(
        _COMMAND_R,
        sliding_window=True,
        window_period=4,
        window_needed=True,
        still_without_window=True,
    ),
    "falcon": Architecture(
        "halves",
        layer_norms=True,
        activation="gelu",
        gated=False,
        parallel=True,
        fused=True,
    ),
}
