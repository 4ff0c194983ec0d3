"""An encoder on the device against NumPy: its kernels on its own weights, then the whole of it on a few texts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..gguf.dequant import dequantize
from ..gguf.encoder import EncoderFile, open_encoder
from ..gguf.loaded import loading_note
from ..gguf.model import ModelFile
from ..gguf.reader import TensorInfo
from ..gguf.spec import open_any
from ..protocol import FloatArray, IntArray, WorkerOptions
from ..reference import encoder_ops as reference
from ..reference.bidirectional import load_encoder as load_on_cpu
from ..runtime import encoder_ops, linear
from ..runtime.activations import is_fine, padded
from ..runtime.bidirectional import load_encoder as load_on_gpu
from ..runtime.device import Device
from .bench import F32, Workbench, read_quantized
from .check import Check, relative_error
from .linear import Role, check_roles, check_rows, check_widen
from .linear import roles as decoder_roles

LENGTHS = (5, 1, 70)  # of texts side by side
TEXTS = (
    "The lighthouse keeper wrote every evening what the sea had brought.",
    "A crate of oranges, two letters in a bottle, and once a small boat with nobody in it.",
)
MAX_DISTANCE = {"float": 1e-5, "f16": 1e-5, "fine": 1e-5, "int8": 1e-2}
"""Allowed 1 − cosine between a text's vectors. MAX_ERROR: that of all states. fine: two int8 an activation."""
MAX_ERROR = {"float": 1e-4, "f16": 2e-3, "fine": 2e-3, "int8": 0.1}

Pair = tuple[NDArray[Any], NDArray[Any]]


def check_encoder_kernels(device: Device, path: Path) -> Iterator[Check]:
    """All checks of one encoder's file. Raises ModelFileError, HeadsError."""
    model = open_encoder(path)
    try:
        encoder_ops.check_heads(device, model.spec.head_dim)
        bench = Workbench(device)
        bench.fine = is_fine(model.spec.hidden_size)
        yield from check_beside_products(bench, model)
        yield from check_roles(bench, model.file, roles(model))
    finally:
        model.close()


def check_beside_products(bench: Workbench, model: EncoderFile) -> Iterator[Check]:
    """All of one open encoder but products of matrices."""
    yield from check_rows(bench, model.file, model.tensors.token_embedding, 1.0)
    yield from check_norm(bench, model)
    yield from check_small(bench, model)
    yield from check_widen(bench, model.spec.hidden_size)
    yield from check_attention(bench, model)


def roles(model: EncoderFile | ModelFile) -> list[Role]:
    """One role for each kernel that the encoder's products reach."""
    if isinstance(model, ModelFile):
        return decoder_roles(model)
    found: dict[tuple[Any, ...], Role] = {}
    for layer in model.tensors.layers:
        for part in (layer.q, layer.k, layer.v, layer.o, layer.up, layer.down):
            role = Role(part.weight, part.bias)
            found.setdefault(role.key, role)
    return list(found.values())


def check_norm(bench: Workbench, model: EncoderFile) -> Iterator[Check]:
    """With the residual of the same rows, and of chosen ones as the positions are."""
    width, eps = model.spec.hidden_size, model.spec.norm_eps
    norm, tokens = model.tensors.embedding_norm, 5
    weight, bias = _vector(model, norm.weight), _vector(model, norm.bias)

    def run(chosen: bool) -> Pair:
        x, residual = bench.normal(tokens, width), bench.normal(tokens, width)
        indices = bench.rng.integers(0, tokens, tokens).astype(np.int32)
        y = bench.poisoned(tokens, padded(width))
        step = encoder_ops.layer_norm_add(
            bench.kernels,
            bench.put(bench.wide(x)),
            bench.put(bench.wide(residual)),
            bench.put(bench.wide(weight)),
            bench.put(bench.wide(bias)),
            y,
            bench.ints(indices) if chosen else None,
            rows=tokens,
            width=padded(width),
            count=width,
            eps=eps,
        )
        other = residual[indices] if chosen else residual
        expected = reference.layer_norm_add(x, other, weight, bias, eps)
        return bench.run(step, y)[0], bench.wide(expected)

    for rows, chosen in (("all", False), ("chosen", True)):
        label = f"{tokens}×{width} {rows} rows"
        yield bench.compare("layer_norm_add", "F32", label, "float", lambda c=chosen: run(c))  # type: ignore[misc]


def check_small(bench: Workbench, model: EncoderFile) -> Iterator[Check]:
    """What stands between products."""
    tokens, width = 5, model.spec.ffn_size

    def gelu() -> Pair:
        x = bench.normal(tokens, width) * np.float32(3)
        y = bench.poisoned(tokens, width)
        step = encoder_ops.gelu(bench.kernels, bench.put(x), y, rows=tokens, width=width)
        return bench.run(step, y)[0], reference.gelu(x)

    def quantizing() -> Pair:
        x = bench.normal(tokens, width)
        out = bench.activations(tokens, width)
        step = linear.quantize_q8(bench.kernels, bench.put(x), out, rows=tokens, width=width)
        return read_quantized(bench, step, out), bench.rounded(x)

    yield bench.compare("gelu", "F32", f"{tokens}×{width}", "float", gelu)
    if not _all_float(model):
        yield bench.compare("quantize_q8", "int8", f"{tokens}×{width}", "int8_round", quantizing)


def check_attention(bench: Workbench, model: EncoderFile) -> Iterator[Check]:
    """Texts side by side, none of which may see another."""
    spec, tokens = model.spec, sum(LENGTHS)
    scale = spec.head_dim**-0.5
    query_start = np.cumsum([0, *LENGTHS]).astype(np.int32)

    def run() -> Pair:
        qkv = bench.normal(tokens, 3 * spec.hidden_size)
        bounds = np.stack(
            [np.repeat(query_start[:-1], LENGTHS), np.repeat(query_start[1:], LENGTHS)], axis=1
        )
        y = bench.poisoned(tokens, spec.hidden_size)
        step = encoder_ops.attention_encoder(
            bench.kernels,
            bench.put(qkv),
            bench.ints(bounds),
            bench.count(tokens),
            y,
            rows=tokens,
            num_heads=spec.num_heads,
            head_dim=spec.head_dim,
            scale=scale,
        )
        expected = reference.attention_encoder(qkv, query_start, spec.num_heads, scale)
        return bench.run(step, y)[0], expected

    shape = f"{tokens} tokens, {spec.num_heads} heads of {spec.head_dim}"
    yield bench.compare("attention_encoder", "F32", shape, "float", run)


def check_encoder(path: Path, device: str) -> Iterator[Check]:
    """Raises ModelLoadError where the encoder does not fit into memory as float32."""
    from ..text.tokenizer import (
        Tokenizer,
    )  # which a worker, whose kernels are checked, does without

    model = open_any(path)
    try:
        fine = is_fine(model.spec.hidden_size) and not loading_note(model.file.tensors.values())
        kind = "fine" if fine else "int8"
        if _all_float(model):
            kind = (
                "float" if isinstance(model, EncoderFile) else "f16"
            )  # as keys and values are kept
        tokenizer = Tokenizer.from_metadata(model.file.metadata)
    finally:
        model.close()
    texts = [tokenizer.encode(text, add_special=True, parse_special=False) for text in TEXTS]
    texts = [ids[: model.spec.context_length] for ids in texts]
    token_ids = np.concatenate(texts).astype(np.int32)
    query_start = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    options = WorkerOptions(str(path), device=device)
    cpu = load_on_cpu(options)
    try:
        expected = cpu.hidden_states(token_ids, query_start)
    finally:
        cpu.close()
    shape = f"{len(texts)} texts, {len(token_ids)} tokens"
    try:
        found = _on_device(options, token_ids, query_start)
    except Exception as fault:  # whatever a broken kernel raises
        note = f"{type(fault).__name__}: {fault}"
        yield Check("model states", kind, shape, math.nan, MAX_ERROR[kind], note)
        return
    error = relative_error(found, expected)
    yield Check("model states", kind, shape, error, MAX_ERROR[kind])
    distances = []
    for start, end in pairwise(query_start.tolist()):
        a, b = found[start:end].mean(0), expected[start:end].mean(0)
        distances.append(1 - float(a @ b) / float(np.linalg.norm(a) * np.linalg.norm(b)))
    worst = float(np.max(np.abs(distances)))
    yield Check("model vectors", kind, f"{len(texts)} texts, mean", worst, MAX_DISTANCE[kind])


def _on_device(options: WorkerOptions, token_ids: IntArray, query_start: IntArray) -> FloatArray:
    gpu = load_on_gpu(options)
    try:
        return gpu.hidden_states(token_ids, query_start)
    finally:
        gpu.close()


def _vector(model: EncoderFile, info: TensorInfo) -> F32:
    return dequantize(model.file.rows(info), info.type).reshape(-1)


def _all_float(model: EncoderFile | ModelFile) -> bool:
    return all(role.matrix.type in linear.FLOAT_TYPES for role in roles(model))
