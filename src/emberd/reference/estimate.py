"""What a load takes on the CPU device, told without loading.

Weights and KV cache by the loader's own sums; a step's arrays, which NumPy allocates as it goes, by their shapes.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import psutil

from emberd.errors import ModelLoadError
from emberd.estimate import LargestMatrix, MemoryEstimate, MemoryQuestion
from emberd.gguf.encoder import EncoderFile
from emberd.gguf.extend import extended
from emberd.gguf.model import ModelFile, ModelSpec
from emberd.gguf.spec import open_any
from emberd.hardware import DEVICE_SHARE, blas_bytes, num_cores
from emberd.protocol import WorkerOptions

from .encoder import encoder_weight_bytes
from .kv_cache import BLOCK_SIZE, DEFAULT_CONTEXT, cache_kind, kv_types, plan_cache, token_bytes
from .ops import MAX_SCORES
from .runner import step_tokens
from .text_runner import call_sizes
from .weights import check_memory, weight_bytes


def estimate(question: MemoryQuestion) -> MemoryEstimate:
    """Reads the file's header. Raises ModelFileError."""
    model = open_any(question.options.model_path)
    try:
        if isinstance(model, EncoderFile) or not model.spec.causal:
            return _encoder(model, question)
        return _decoder(model, question)
    finally:
        model.close()


def _decoder(model: ModelFile, question: MemoryQuestion) -> MemoryEstimate:
    options, trained = question.options, model.spec.context_length
    model = extended(model, options.context_length, options.rope_scaling)
    spec = model.spec
    made = replace(
        _made(model, question, weight_bytes(model)),
        scratch_bytes=_step_bytes(spec, options) + blas_bytes(),
        scratch_token_bytes=_token_bytes(spec),
        optional_bytes=4 * options.max_sequences * spec.vocab_size,  # counts for penalties
        kv_token_bytes={kind: token_bytes(spec, kind) for kind in kv_types(spec)},
        trained_context=trained,
        max_context=spec.context_length,
        default_context=min(spec.context_length, DEFAULT_CONTEXT),
        block_size=BLOCK_SIZE,
        step_tokens=step_tokens(options),
        sequences=options.max_sequences,
    )
    wanted = min(options.context_length or made.default_context, spec.context_length)
    free = psutil.virtual_memory().available
    if question.memory is not None:
        limit = max(0, question.memory - made.fixed(wanted) - options.beside)
        options = replace(options, kv_limit=min(limit, options.kv_limit or limit))
    free = max(0, free - made.weight_bytes)
    kind = cache_kind(spec, options, free)
    made = replace(made, kv_type=kind)
    try:
        check_memory(model.file.name, made.weight_bytes)
        context, blocks = plan_cache(spec, options, free, kind)
    except ModelLoadError as error:
        return replace(made, refusal=error.message)
    kv_bytes = blocks * BLOCK_SIZE * token_bytes(spec, kind)
    return replace(made, context_length=context, kv_bytes=kv_bytes)


def _encoder(model: EncoderFile | ModelFile, question: MemoryQuestion) -> MemoryEstimate:
    spec = model.spec
    context, tokens = call_sizes(spec.context_length, question.options)
    if isinstance(model, EncoderFile):
        weights, values = encoder_weight_bytes(model), 7 * spec.hidden_size + 2 * spec.ffn_size
        scratch = tokens * values
    else:
        weights = weight_bytes(model)
        places = context * len(_rope_tables(model.spec)) * model.spec.rope_dim
        scratch = tokens * _token_values(model.spec) + places
    return replace(
        _made(model, question, weights),
        scratch_bytes=4 * scratch + blas_bytes(),
        trained_context=spec.context_length,
        max_context=spec.context_length,
        default_context=context,
        context_length=context,
        step_tokens=tokens,
        sequences=tokens,
    )


def _made(model: ModelFile | EncoderFile, question: MemoryQuestion, weights: int) -> MemoryEstimate:
    """Without what differs from kind to kind of model."""
    total = psutil.virtual_memory().total
    largest = max(model.file.tensors.values(), key=lambda info: prod(info.shape))
    return MemoryEstimate(
        device=f"CPU (NumPy, {num_cores()} cores)",
        device_kind="cpu",
        tier="cpu",
        device_memory=total,
        memory=question.memory or int(total * DEVICE_SHARE),
        max_binding_bytes=None,
        largest=LargestMatrix(largest.name, 4 * prod(largest.shape), 1),
        weight_bytes=weights,
    )


def _step_bytes(spec: ModelSpec, options: WorkerOptions) -> int:
    """Of the largest step: its tokens' arrays; scores three times over; logits, and what sampling makes of them."""
    rows = 2 * options.max_sequences * spec.vocab_size
    return 4 * (step_tokens(options) * _token_values(spec) + 3 * MAX_SCORES + rows)


def _token_values(spec: ModelSpec) -> int:
    """Of one token of a step: the residual and a norm's three arrays, q, k and v as projected and as rotated, what
    attention gives, gate, up and their product."""
    heads = spec.num_heads * spec.head_dim
    kv = spec.num_kv_heads * spec.head_dim
    return 4 * spec.hidden_size + 2 * (heads + 2 * kv) + heads + 3 * spec.ffn_size


def _token_bytes(spec: ModelSpec) -> int:
    """Of the context: cos and sin tables, and one layer's keys and values brought together."""
    tables = _rope_tables(spec)
    return 4 * (len(tables) * spec.rope_dim + 2 * spec.num_kv_heads * spec.head_dim)


def _rope_tables(spec: ModelSpec) -> set[tuple[float, float]]:
    return {(layer.rope_base, layer.rope_scale) for layer in spec.layers}
