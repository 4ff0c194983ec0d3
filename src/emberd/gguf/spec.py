"""ModelSpec from GGUF metadata: with layers.py and tensors.py the only place that knows GGUF's key and tensor names."""

from __future__ import annotations

import math
import os
import reprlib
from collections import Counter
from collections.abc import Callable

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
from .layers import (
    MAX_CONTEXT,
    MAX_FACTOR,
    MAX_LAYERS,
    layer_specs,
    rope_magnitude,
    temperature_of,
    yarn_of,
)
from .model import ExpertSpec, LayerSpec, ModelDescription, ModelFile, ModelSpec, ModelTensors
from .reader import GGUFFile
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

MAX_SIZE = 1 << 20  # of the hidden state, the feed-forward state, heads
MAX_HEAD_DIM = 1024
MAX_EXPERTS = 1024


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
    yarn = yarn_of(keys, architecture, original_context)
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
        layers=layer_specs(keys, num_layers, architecture),
        rope_magnitude=rope_magnitude(keys, yarn),
        rope_original_context=original_context,
        yarn=yarn,
        attention_cap=_cap(keys, architecture, "attn_logit_softcapping"),
        logit_cap=_cap(keys, architecture, "final_logit_softcapping"),
        logit_scale=_factor(keys, "logit_scale", 1.0)
        if architecture.logit_factor
        else 1.0 / _multiplier(keys, architecture, "logit_scale", 1.0),
        whole_qk_norm=architecture.whole_qk_norm,
        experts=experts,
        temperature=temperature_of(keys, architecture, original_context),
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
    return _factor(keys, key, default) if architecture.multipliers else default


def _factor(keys: Keys, key: str, default: float) -> float:
    if keys.scalar(key) == 0:  # none
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


def _quantization(file: GGUFFile) -> str:
    code = file.metadata.get("general.file_type", -1)
    names = {int(known): known.name for known in LlamaFileType}
    if isinstance(code, int) and code in names:
        return names[code].removeprefix("MOSTLY_").removeprefix("ALL_")
    weights: Counter[str] = Counter()
    for info in file.tensors.values():
        weights[info.type.name] += math.prod(info.shape)
    return weights.most_common(1)[0][0]
