"""What a load takes on the CPU device, told without loading.

Weights and KV cache by the loader's own sums; a step's arrays, which NumPy allocates as it goes, by their shapes.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import psutil

from emberd.errors import ModelLoadError
from emberd.estimate import LargestMatrix, MemoryEstimate, MemoryQuestion
from emberd.gguf.encoder import EncoderFile, is_encoder, open_encoder
from emberd.gguf.extend import extended
from emberd.gguf.model import ModelFile, ModelSpec
from emberd.gguf.reader import GGUFFile
from emberd.gguf.spec import open_model
from emberd.hardware import DEVICE_SHARE, blas_bytes, num_cores
from emberd.protocol import WorkerOptions

from .encoder import encoder_weight_bytes
from .kv_cache import BLOCK_SIZE, DEFAULT_CONTEXT, cache_kind, kv_types, plan_cache, token_bytes
from .ops import MAX_SCORES
from .runner import step_tokens
from .weights import weight_bytes


def estimate(question: MemoryQuestion) -> MemoryEstimate:
    """Reads the file's header. Raises ModelFileError."""
    path = question.options.model_path
    with GGUFFile(path) as file:
        encodes = is_encoder(file)
    if encodes:
        encoder = open_encoder(path)
        try:
            return _encoder(encoder, question)
        finally:
            encoder.close()
    model = open_model(path)
    try:
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
        context, blocks = plan_cache(spec, options, free, kind)
    except ModelLoadError as error:
        return replace(made, refusal=error.message)
    kv_bytes = blocks * BLOCK_SIZE * token_bytes(spec, kind)
    return replace(made, context_length=context, kv_bytes=kv_bytes)


def _encoder(model: EncoderFile, question: MemoryQuestion) -> MemoryEstimate:
    spec, options = model.spec, question.options
    context = min(options.context_length or spec.context_length, spec.context_length)
    tokens = max(options.max_batch_tokens, context)
    return replace(
        _made(model, question, encoder_weight_bytes(model)),
        scratch_bytes=4 * tokens * (7 * spec.hidden_size + 2 * spec.ffn_size) + blas_bytes(),
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
    """Of the largest step: the residual and a norm's three arrays, q, k and v as projected and as rotated, what
    attention gives, gate, up and their product; scores three times over; logits, and what sampling makes of them."""
    heads = spec.num_heads * spec.head_dim
    kv = spec.num_kv_heads * spec.head_dim
    values = 4 * spec.hidden_size + 2 * (heads + 2 * kv) + heads + 3 * spec.ffn_size
    rows = 2 * options.max_sequences * spec.vocab_size
    return 4 * (step_tokens(options) * values + 3 * MAX_SCORES + rows)


def _token_bytes(spec: ModelSpec) -> int:
    """Of the context: cos and sin tables, and one layer's keys and values brought together."""
    tables = {(layer.rope_base, layer.rope_scale) for layer in spec.layers}
    return 4 * (len(tables) * spec.rope_dim + 2 * spec.num_kv_heads * spec.head_dim)
