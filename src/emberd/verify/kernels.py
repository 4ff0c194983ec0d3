"""Every kernel that a model uses, on the device against its NumPy twin, with the model's shapes and weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..gguf.dequant import dequantize
from ..gguf.reader import TensorInfo
from ..gguf.spec import ModelFile, open_any
from ..reference import ops as reference
from ..reference.transformer import ACTIVATIONS, ACTIVATIONS_ALONE
from ..runtime import linear, ops
from ..runtime.activations import is_fine
from ..runtime.device import Device
from .attention import check_attention
from .bench import F32, Workbench, read_quantized
from .check import Check
from .experts import check_experts
from .fused import check_fused
from .layer_norm import check_layer_norm, check_positions
from .linear import check_embedding, check_products, check_tiles, check_widen
from .rope import check_rope
from .sampling import check_sampler
from .steps import USUAL, Steps

TOKENS = 5

Pair = tuple[NDArray[Any], NDArray[Any]]


def check_kernels(device: Device, path: Path) -> Iterator[Check]:
    """All checks of one decoder's file, causal or not. Raises ModelFileError, HeadsError."""
    model = open_any(path)
    assert isinstance(model, ModelFile), "an encoder's own block has its own checks"
    bench = Workbench(device)
    bench.fine = is_fine(model.spec.hidden_size)
    try:
        ops.kv_include(device, model.spec.head_dim)
        yield from check_embedding(bench, model)
        yield from check_norms(bench, model)
        yield from check_layer_norm(bench, model)
        yield from check_positions(bench, model)
        yield from check_post_norm(bench, model)
        yield from check_products(bench, model)
        yield from check_tiles(bench, model)
        yield from check_fused(bench, model)
        yield from check_rope(bench, model)
        yield from check_attention(bench, model)
        yield from check_activation(bench, model)
        yield from check_in_place(bench, model)
        yield from check_widen(bench, model.spec.num_heads * model.spec.head_dim)
        yield from check_experts(bench, model)
        if model.spec.causal:
            yield from check_sampler(bench, model.spec.vocab_size)
    finally:
        model.close()


def check_norms(bench: Workbench, model: ModelFile, steps: Steps = USUAL) -> Iterator[Check]:
    """The norms ahead of projections, in the forms that these read at those steps."""
    spec, layer = model.spec, model.tensors.layers[0]
    if layer.attention_norm_bias is not None:
        return  # check_layer_norm has them
    weight = _vector(model, layer.attention_norm or model.tensors.output_norm)
    shape = f"{TOKENS}×{spec.hidden_size}"
    sizes = {"rows": TOKENS, "width": spec.hidden_size}
    all_rows = bench.normal(TOKENS + 2, spec.hidden_size) * np.float32(3)
    picked = bench.rng.integers(0, len(all_rows), TOKENS).astype(np.int32)
    readers = [
        info
        for item in model.tensors.layers
        for info in (item.q, item.k, item.v, item.gate or item.up, item.up)
    ]
    readers += [layer.router for layer in model.tensors.layers if layer.router is not None]
    readers.append(model.tensors.output)

    def cases(
        indices: NDArray[np.int32] | None,
    ) -> tuple[Callable[[], Pair], Callable[[int], Pair]]:
        x = all_rows[:TOKENS] if indices is None else all_rows
        expected = reference.rms_norm(all_rows[:TOKENS], weight, spec.norm_eps)
        if indices is not None:
            expected = reference.rms_norm(all_rows[indices], weight, spec.norm_eps)

        def inputs() -> tuple[Any, Any, Any]:
            given = None if indices is None else bench.ints(indices)
            return bench.put(bench.wide(x)), bench.put(bench.wide(weight)), given

        def plain() -> Pair:
            x, w, given = inputs()
            y = bench.poisoned(TOKENS, x.shape[1])
            step = ops.rms_norm(
                *(bench.kernels, x, w, y, given),
                rows=TOKENS,
                width=x.shape[1],
                count=spec.hidden_size,
                eps=spec.norm_eps,
            )
            return bench.run(step, y)[0], bench.wide(expected)

        def quantizing(group: int) -> Pair:
            x, w, given = inputs()
            out = bench.activations(TOKENS, spec.hidden_size, group=group)
            step = linear.rms_norm_quantize(
                bench.kernels, x, w, out, given, eps=spec.norm_eps, **sizes
            )
            return read_quantized(bench, step, out), bench.rounded(expected, group)

        return plain, quantizing

    for rows, indices in (("all", None), ("chosen", picked)):
        plain, quantizing = cases(indices)
        # Hidden states are told as floats, whatever else reads them: chosen ones, or those of whole texts.
        told = (indices is None) != spec.causal
        if told or any(_is_float(info) for info in readers):
            yield bench.compare("rms_norm", "F32", f"{shape} {rows} rows", "float", plain)
        if not all(_is_float(info) for info in readers):
            for group in steps.quant_runs(bench.device):
                label = f"{shape} {rows} rows, runs of {group}"
                case = partial(quantizing, group)
                yield bench.compare("rms_norm_quantize", "int8", label, "int8_round", case)


def check_post_norm(bench: Workbench, model: ModelFile) -> Iterator[Check]:
    """The norm between a projection and the residual add."""
    spec, info = model.spec, model.tensors.layers[0].post_attention_norm
    if info is None:
        return
    weight = _vector(model, info)

    def run() -> Pair:
        x, residual = (bench.normal(TOKENS, spec.hidden_size) for _ in range(2))
        y = bench.put(bench.wide(residual))
        step = ops.rms_norm_add(
            bench.kernels,
            bench.put(bench.wide(x)),
            bench.put(bench.wide(weight)),
            y,
            rows=TOKENS,
            width=y.shape[1],
            count=spec.hidden_size,
            eps=spec.norm_eps,
        )
        expected = residual + reference.rms_norm(x, weight, spec.norm_eps)
        return bench.run(step, y)[0], bench.wide(expected)

    yield bench.compare("rms_norm_add", "F32", f"{TOKENS}×{spec.hidden_size}", "float", run)


def check_in_place(bench: Workbench, model: ModelFile) -> Iterator[Check]:
    """Norms of all heads' queries or keys together, and what becomes of the logits, where the model has these."""
    spec, weight = model.spec, model.tensors.layers[0].q_norm
    if spec.whole_qk_norm and weight is not None:
        norm = _vector(model, weight)

        def columns() -> Pair:
            x = bench.normal(TOKENS, len(norm) + 7)
            y, expected = bench.put(x), x.copy()
            expected[:, 4:-3] = reference.rms_norm(x[:, 4:-3], norm, spec.norm_eps)
            step = ops.rms_norm_columns(
                bench.kernels, y, bench.put(norm), rows=TOKENS, column=4, eps=spec.norm_eps
            )
            return bench.run(step, y)[0], expected

        yield bench.compare("rms_norm_columns", "F32", f"{TOKENS}×{len(norm)}", "float", columns)
    scale, cap = spec.logit_scale, spec.logit_cap
    if scale == 1 and cap == 0:
        return

    def finish() -> Pair:
        x = bench.normal(TOKENS, spec.vocab_size) * np.float32(20)
        y, scaled = bench.put(x), x * np.float32(scale)
        step = ops.finish_logits(bench.kernels, y, rows=TOKENS, scale=scale, cap=cap)
        return bench.run(step, y)[0], reference.soft_cap(scaled, cap) if cap else scaled

    yield bench.compare("finish_logits", "F32", f"{TOKENS}×{spec.vocab_size}", "float", finish)


def check_activation(bench: Workbench, model: ModelFile, steps: Steps = USUAL) -> Iterator[Check]:
    """What stands ahead of the output and down projections, in the forms that these read at those steps."""
    spec, layers = model.spec, model.tensors.layers
    gate, up = bench.normal(TOKENS, spec.ffn_size), bench.normal(TOKENS, spec.ffn_size)
    gate_up, gated = np.concatenate([gate, up], axis=1), spec.gated
    if gated:
        expected = ACTIVATIONS[spec.activation](gate, up)
    else:
        gate_up, expected = up, ACTIVATIONS_ALONE[spec.activation](up)
    sizes = {"rows": TOKENS, "width": spec.ffn_size}
    width = spec.num_heads * spec.head_dim

    def plain() -> Pair:
        y = bench.poisoned(TOKENS, spec.ffn_size)
        x = bench.put(gate_up)
        step = ops.silu_mul(bench.kernels, x, y, activation=spec.activation, gated=gated, **sizes)
        return bench.run(step, y)[0], expected

    def quantizing(group: int) -> Pair:
        out = bench.activations(TOKENS, spec.ffn_size, group=group)
        step = linear.silu_mul_quantize(
            bench.kernels,
            bench.put(gate_up),
            out,
            activation=spec.activation,
            gated=gated,
            **sizes,
        )
        twin = bench.rounded(expected, group)
        return read_quantized(bench, step, out), twin

    def attended(group: int) -> Pair:
        x = bench.normal(TOKENS, width)
        out = bench.activations(TOKENS, width, group=group)
        step = linear.quantize_q8(bench.kernels, bench.put(x), out, rows=TOKENS, width=width)
        return read_quantized(bench, step, out), bench.rounded(x, group)

    shape = f"{TOKENS}×{spec.ffn_size} {spec.activation}"
    if any(_is_float(layer.down) for layer in layers):
        yield bench.compare("silu_mul", "F32", shape, "float", plain)
    if not all(_is_float(layer.down) for layer in layers):
        places = 1 if spec.experts is None else spec.experts.used
        for group in steps.quant_runs(bench.device, places):
            label, case = f"{shape}, runs of {group}", partial(quantizing, group)
            yield bench.compare("silu_mul_quantize", "int8", label, "int8_round", case)
    if not all(_is_float(layer.o) for layer in layers):
        for group in steps.quant_runs(bench.device):
            label, case = f"{TOKENS}×{width}, runs of {group}", partial(attended, group)
            yield bench.compare("quantize_q8", "int8", label, "int8_round", case)


def _vector(model: ModelFile, info: TensorInfo) -> F32:
    return dequantize(model.file.rows(info), info.type).reshape(-1)


def _is_float(info: TensorInfo) -> bool:
    return info.type in linear.FLOAT_TYPES
