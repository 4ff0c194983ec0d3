"""ModelSpec from GGUF metadata: the only place beside tensors.py that knows GGUF's key and tensor names."""

from __future__ import annotations

import math
import os
import reprlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from gguf import LlamaFileType

from ..errors import ModelFileError
from .architectures import ARCHITECTURES, Architecture
from .checked import Keys
from .encoder import (
    ENCODER_ARCHITECTURES,
    EncoderFile,
    has_bert_block,
    is_encoder,
    open_encoder,
)
from .model import ExpertSpec, LayerSpec, ModelDescription, ModelFile, ModelSpec, ModelTensors
from .reader import GGUFFile
from .rope import Temperature, Yarn
from .shards import model_stem
from .tensors import load_tensors

__all__ = [
    "LayerSpec",
    "ModelFile",
    "ModelSpec",
    "ModelTensors",
    "describe",
    "load_spec",
    "open_any",
    "open_bidirectional",
    "open_model",
]

MAX_LAYERS = 1024
MAX_SIZE = 1 << 20  # of the hidden state, the feed-forward state, heads
MAX_HEAD_DIM = 1024
MAX_CONTEXT = 1 << 30
MAX_EXPERTS = 1024
MAX_FACTOR = 1e6  # of scales and caps
MIN_SCALE = 0.01  # positions are divided by it; the rotations of far larger ones are noise


def open_any(path: str | os.PathLike[str]) -> ModelFile | EncoderFile:
    """Open, check and describe the file of any kind of model; raises `ModelFileError` naming file and fault."""
    with GGUFFile(path) as file:
        if has_bert_block(file):
            opens: Callable[..., ModelFile | EncoderFile] = open_encoder
        else:
            opens = open_bidirectional if is_encoder(file) else open_model
    return opens(path)


def open_model(path: str | os.PathLike[str]) -> ModelFile:
    """The file of a model that generates text; raises as `open_any`."""
    return _open_decoder(path, causal=True)


def open_bidirectional(path: str | os.PathLike[str]) -> ModelFile:
    """The file of a decoder whose attention looks both ways; raises as `open_any`."""
    return _open_decoder(path, causal=False)


def _open_decoder(path: str | os.PathLike[str], causal: bool) -> ModelFile:
    file = GGUFFile(path)
    try:
        if causal and is_encoder(file):
            raise _not_generating(file)
        spec = load_spec(file)
        return ModelFile(file, spec, load_tensors(file, spec))
    except BaseException:
        file.close()
        raise


def load_spec(file: GGUFFile) -> ModelSpec:
    """What the metadata says the model is, every size checked against sane limits."""
    name = _checked_architecture(file)
    architecture = ARCHITECTURES[name]
    keys = Keys(file, name)
    unlike = "not causal" if architecture.causal else "causal"
    keys.off("attention.causal", architecture.causal, f"attention that is {unlike} is")
    if architecture.soft_caps is None:
        keys.off("attn_logit_softcapping", 0, "soft caps on attention are")
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
    experts = _experts(keys, architecture)
    context_length = keys.count("context_length", most=MAX_CONTEXT)
    original_context = keys.count(
        "rope.scaling.original_context_length", most=MAX_CONTEXT, default=context_length
    )
    yarn = _yarn(keys, architecture, original_context)
    per_head = hidden_size // num_heads if num_layers == architecture.wide_layers else head_dim
    # A residual multiplier r is taken out of the sums: norms do not see a common factor of their input, so
    # adding f(norm(x)) to x / r is the same, with the embedding and the norms' epsilon scaled to fit.
    epsilon = "layer_norm_epsilon" if architecture.layer_norms else "layer_norm_rms_epsilon"
    residual = _multiplier(keys, architecture, "residual_scale", 1.0)
    embedding = math.sqrt(hidden_size) if architecture.scaled_embedding else 1.0
    return ModelSpec(
        architecture=name,
        name=_model_name(file),
        num_layers=num_layers,
        hidden_size=hidden_size,
        ffn_size=_ffn_size(keys, experts),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=_vocab_size(file),
        context_length=context_length,
        norm_eps=keys.number(f"attention.{epsilon}", most=1.0) / residual**2,
        rope_dim=rope_dim,
        rope_pairing=architecture.rope_pairing,
        activation=architecture.activation,
        embedding_scale=_multiplier(keys, architecture, "embedding_scale", embedding) / residual,
        attention_scale=_multiplier(keys, architecture, "attention.scale", per_head**-0.5),
        layers=_layers(keys, num_layers, architecture),
        rope_magnitude=_rope_magnitude(keys, yarn),
        rope_original_context=original_context,
        yarn=yarn,
        attention_cap=_cap(keys, architecture, "attn_logit_softcapping"),
        logit_cap=_cap(keys, architecture, "final_logit_softcapping"),
        logit_scale=_multiplier(keys, architecture, "logit_scale", 1.0)
        ** (1 if architecture.multiplies_logits else -1),
        whole_qk_norm=architecture.whole_qk_norm,
        experts=experts,
        temperature=_temperature(keys, architecture, original_context),
        gated=architecture.gated,
        parallel=_parallel(keys, architecture),
    )


def describe(model: ModelFile | EncoderFile) -> ModelDescription:
    """Sizes of the file's tensors, and its quantization by the file's own word or by its commonest type."""
    tensors = model.file.tensors.values()
    return ModelDescription(
        num_parameters=sum(math.prod(info.shape) for info in tensors),
        quantization=_quantization(model.file),
        weight_bytes=sum(info.nbytes for info in tensors),
    )


def _not_generating(file: GGUFFile) -> ModelFileError:
    name = file.metadata["general.architecture"]
    return ModelFileError(
        f"{file.name}: is an encoder ({name}), which makes embeddings and cannot generate text"
    )


def _checked_architecture(file: GGUFFile) -> str:
    name = file.metadata.get("general.architecture")
    supported = ", ".join([*ARCHITECTURES, *ENCODER_ARCHITECTURES])
    if has_bert_block(file):
        raise _not_generating(file)
    if name is None:
        raise ModelFileError(f"{file.name}: metadata key 'general.architecture' is missing")
    if not isinstance(name, str) or name not in ARCHITECTURES:
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
    if not isinstance(tokens, list) or not all(type(token) is str for token in tokens):
        raise ModelFileError(f"{file.name}: 'tokenizer.ggml.tokens' is not a list of strings")
    if len(tokens) > rows:
        raise ModelFileError(
            f"{file.name}: 'tokenizer.ggml.tokens' holds {len(tokens)} tokens, but "
            f"'token_embd.weight' has {rows} rows"
        )
    return rows


def _multiplier(keys: Keys, architecture: Architecture, key: str, default: float) -> float:
    if not architecture.multipliers or keys.scalar(key) == 0:  # 0: none
        return default
    multiplier = keys.number(key, most=MAX_FACTOR, default=default)
    if multiplier < 1 / MAX_FACTOR:
        raise keys.refuse(key, f"is {multiplier:g}; it must be 0, for none, or at least 1e-06")
    return multiplier


def _parallel(keys: Keys, architecture: Architecture) -> bool:
    if architecture.parallel != "told":
        return architecture.parallel
    told = keys.scalar("use_parallel_residual")
    if type(told) is not bool:
        raise keys.refuse(
            "use_parallel_residual", f"is {reprlib.repr(told)}; it must be true or false"
        )
    return told


def _cap(keys: Keys, architecture: Architecture, key: str) -> float:
    if architecture.soft_caps is None or keys.scalar(key) == 0:
        return 0.0
    scores, logits = architecture.soft_caps
    default = scores if key.startswith("attn") else logits
    return keys.number(key, most=MAX_FACTOR, default=default)


def _experts(keys: Keys, architecture: Architecture) -> ExpertSpec | None:
    if architecture.experts == "none":
        keys.off("expert_count", 0, "mixtures of experts are")
        return None
    if architecture.experts == "optional" and keys.scalar("expert_count") in (None, 0):
        return None
    count = keys.count("expert_count", most=MAX_EXPERTS)
    used = keys.count("expert_used_count", most=count)
    scale = 1.0
    if keys.scalar("expert_weights_scale") not in (None, 0):
        scale = keys.number("expert_weights_scale", most=MAX_FACTOR)
    # 3 is a softmax of the chosen ones alone: the same where their weights are made to sum up to 1.
    known = (None, 0, 1, 3) if architecture.experts_normalized else (None, 0, 1)
    if keys.scalar("expert_gating_func") not in known:
        raise keys.refuse("expert_gating_func", "must be 1, the softmax; others are not supported")
    keys.off("expert_group_count", 0, "groups of experts are")
    keys.off("leading_dense_block_count", 0, "layers without experts are")
    shared = 0
    if architecture.shared_expert:
        shared = keys.count("expert_shared_feed_forward_length", most=MAX_SIZE)
    return ExpertSpec(count, used, architecture.experts_normalized, scale, shared)


def _ffn_size(keys: Keys, experts: ExpertSpec | None) -> int:
    if experts is not None and "expert_feed_forward_length" in keys:
        return keys.count("expert_feed_forward_length", most=MAX_SIZE)
    return keys.count("feed_forward_length", most=MAX_SIZE)


def _yarn(keys: Keys, architecture: Architecture, original_context: int) -> Yarn | None:
    if keys.scalar("rope.scaling.type") != "yarn":
        return None
    if not architecture.tempered:
        keys.off("rope.scaling.yarn_log_multiplier", 0, "YaRN with a multiplier of its own is")
    return Yarn(
        original_context,
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", most=MAX_FACTOR, default=32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", most=MAX_FACTOR, default=1.0),
        mix=keys.number("rope.scaling.yarn_ext_factor", most=1.0, default=1.0),
    )


def _rope_magnitude(keys: Keys, yarn: Yarn | None) -> float:
    magnitude = keys.number("rope.scaling.attn_factor", most=MAX_FACTOR, default=1.0)
    if yarn is None:
        return magnitude
    growth = 0.1 * math.log(max(1.0, _rope_scale(keys)))
    magnitude *= 1 + growth
    if keys.scalar("rope.scaling.yarn_log_multiplier") not in (None, 0):
        magnitude /= 1 + growth * keys.number("rope.scaling.yarn_log_multiplier", most=MAX_FACTOR)
    return magnitude


def _temperature(
    keys: Keys, architecture: Architecture, original_context: int
) -> Temperature | None:
    if keys.scalar("attention.temperature_scale") in (None, 0):
        return None
    if not architecture.tempered:
        keys.off("attention.temperature_scale", 0, "a temperature of attention is")
    return Temperature(
        keys.number("attention.temperature_scale", most=MAX_FACTOR), original_context
    )


def _rope_scale(keys: Keys) -> float:
    """What positions are divided by. A factor of 0 means none; the second spelling is of old converters."""
    scaling = keys.scalar("rope.scaling.type")
    if scaling not in (None, "none", "linear", "yarn", "longrope"):
        raise keys.refuse(
            "rope.scaling.type",
            f"is {reprlib.repr(scaling)}; supported are 'none', 'linear', 'yarn' and 'longrope'",
        )
    factor = next(
        (key for key in ("rope.scaling.factor", "rope.scale_linear") if key in keys), None
    )
    if factor and scaling not in ("none", "longrope") and keys.scalar(factor) != 0:
        scale = keys.number(factor, most=MAX_FACTOR)
        if scale < MIN_SCALE:
            raise keys.refuse(
                factor, f"is {scale:g}; it must be 0, for none, or at least {MIN_SCALE}"
            )
        return scale
    return 1.0


def _layers(keys: Keys, num_layers: int, architecture: Architecture) -> tuple[LayerSpec, ...]:
    base = _rope_base(keys, "rope.freq_base", 10000.0)
    everywhere = LayerSpec(base, _rope_scale(keys), 0)
    if period := architecture.unrotated_period:
        still = LayerSpec(0.0, 1.0, 0)
        return tuple(
            still if layer % period == period - 1 else everywhere for layer in range(num_layers)
        )
    unrotated = architecture.multipliers and keys.scalar("rope.scaling.finetuned") is False
    if unrotated or architecture.learned_positions:
        return (LayerSpec(0.0, 1.0, 0),) * num_layers
    if not architecture.sliding_window:
        return (everywhere,) * num_layers
    if not architecture.causal:
        return _both_ways(keys, num_layers, architecture, everywhere)
    given = keys.scalar("attention.sliding_window")
    if given == 0 or (given is None and not architecture.window):
        return (everywhere,) * num_layers
    window = keys.count("attention.sliding_window", most=MAX_CONTEXT, default=architecture.window)
    if architecture.window_period == 1:
        return (LayerSpec(base, everywhere.rope_scale, window),) * num_layers
    scale = everywhere.rope_scale if architecture.local_rope_scaled else 1.0
    sliding = LayerSpec(base, scale, window)
    if (local := architecture.local_rope_base) is not None:
        own = _rope_base(keys, "rope.freq_base_swa", local)
        sliding = LayerSpec(own, 1.0, window)
    slides = _sliding_layers(keys, num_layers, architecture.window_period)
    whole = LayerSpec(0.0, 1.0, 0) if architecture.still_without_window else everywhere
    return tuple(sliding if slid else whole for slid in slides)


def _both_ways(
    keys: Keys, num_layers: int, architecture: Architecture, everywhere: LayerSpec
) -> tuple[LayerSpec, ...]:
    """Layers whose attention looks both ways: windows are told as their width, of which half lies on either side
    (llama.cpp's LLAMA_SWA_TYPE_SYMMETRIC)."""
    half = keys.count("attention.sliding_window", most=MAX_CONTEXT) // 2
    if half == 0:
        raise keys.refuse("attention.sliding_window", "is 1; each token would see itself alone")
    base = _rope_base(keys, "rope.freq_base_swa", architecture.local_rope_base or 10000.0)
    sliding = LayerSpec(base, 1.0, half + 1, half)
    whole = replace(everywhere, ahead=MAX_CONTEXT)
    slides = _sliding_layers(keys, num_layers, architecture.window_period)
    return tuple(sliding if slid else whole for slid in slides)


def _rope_base(keys: Keys, key: str, default: float) -> float:
    base = keys.number(key, most=1e12, default=default)
    if base <= 1:
        raise keys.refuse(key, f"is {base:g}; the base of rotations must be above 1")
    return base


def _sliding_layers(keys: Keys, num_layers: int, default: int) -> list[bool]:
    """Which layers have a window: one flag a layer, or a period whose last layer has none."""
    key = "attention.sliding_window_pattern"
    flags = keys.array(key)
    if flags is not None:
        if len(flags) != num_layers:
            raise keys.refuse(key, f"has {len(flags)} entries for {num_layers} layers")
        return [bool(flag) for flag in flags]
    period = keys.count(key, most=MAX_LAYERS, default=default)
    return [layer % period < period - 1 for layer in range(num_layers)]


def _quantization(file: GGUFFile) -> str:
    code = file.metadata.get("general.file_type", -1)
    names = {int(known): known.name for known in LlamaFileType}
    if isinstance(code, int) and code in names:
        return names[code].removeprefix("MOSTLY_").removeprefix("ALL_")
    weights: Counter[str] = Counter()
    for info in file.tensors.values():
        weights[info.type.name] += math.prod(info.shape)
    return weights.most_common(1)[0][0]
