"""A mixture's kernels: the router's choice, grouping by expert, gathered products, the weighted sum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..gguf.dequant import dequantize
from ..gguf.model import ExpertSpec, ModelFile
from ..gguf.reader import TensorInfo
from ..reference import ops as reference
from ..runtime import experts as ops
from ..runtime.weights import FLOAT_TYPES, upload_matrix
from .bench import Workbench
from .check import Check
from .steps import USUAL, Steps

EXPERT_ROWS = 12
"""Of a gathered product here: the first rows of the file's matrix, as so many small experts as the model has."""

Pair = tuple[NDArray[Any], NDArray[Any]]


def check_experts(bench: Workbench, model: ModelFile, steps: Steps = USUAL) -> Iterator[Check]:
    """At each number of tokens of those steps that takes other kernels; nothing where the model has no experts."""
    spec = model.spec.experts
    if spec is None:
        return
    yield _check_top(bench, spec)
    mixed = [layer for layer in model.tensors.layers if layer.router is not None]
    matrices = {
        (info.type, info.shape[1], bias is None): (info, bias)
        for layer in mixed
        for info, bias in (
            (layer.gate or layer.up, layer.gate_bias),
            (layer.up, layer.up_bias),
            (layer.down, layer.down_bias),
        )
    }
    for info, bias in matrices.values():
        for tokens in _by_group_size(spec, steps):
            yield _check_product(bench, model, spec, info, bias, tokens)
    shared = any(layer.shared is not None for layer in mixed)
    yield _check_sum(bench, model.spec.hidden_size, spec.used, shared)


def _by_group_size(spec: ExpertSpec, steps: Steps) -> list[int]:
    """The fewest tokens of each size of group."""
    found: dict[int, int] = {}
    for tokens in steps.numbers_of_tokens:
        found.setdefault(ops.group_size(tokens * spec.used, spec.count), tokens)
    return list(found.values())


def _check_top(bench: Workbench, spec: ExpertSpec) -> Check:
    rows = 9

    def run() -> Pair:
        logits = bench.normal(rows, spec.count) * np.float32(3)
        ids = bench.device.upload(np.zeros((rows, spec.used), np.uint32), "u32")
        weights = bench.poisoned(rows, spec.used)
        step = ops.top_experts(
            bench.kernels,
            bench.put(logits),
            bench.count(rows),
            ids,
            weights,
            rows=rows,
            normalized=spec.normalized,
            scale=spec.scale,
        )
        found, found_ids = bench.run(step, weights, ids)
        expected_ids, expected = reference.top_experts(
            logits, spec.used, spec.normalized, spec.scale
        )
        if not np.array_equal(found_ids, expected_ids):
            raise ValueError("other experts are chosen")
        return found, expected

    shape = f"{rows}×{spec.count}, {spec.used} used"
    return bench.compare("top_experts", "F32", shape, "float", run)


def _check_product(
    bench: Workbench,
    model: ModelFile,
    spec: ExpertSpec,
    info: TensorInfo,
    bias_info: TensorInfo | None,
    tokens: int,
) -> Check:
    quantized = info.type not in FLOAT_TYPES
    pairs = tokens * spec.used

    def run() -> Pair:
        raw = model.file.rows(info)[: spec.count * EXPERT_ROWS]
        weight = bench.floats(raw, info.type).reshape(spec.count, EXPERT_ROWS, -1)
        matrix = upload_matrix(bench.device, [(raw, info.type)])
        x, bias = bench.normal(tokens, matrix.cols), None
        if bias_info is not None:
            bias = dequantize(model.file.rows(bias_info), bias_info.type).reshape(-1)[: len(raw)]
        given: Any = bench.put(x)
        if quantized:
            given, x = bench.quantized(x)
        ids = np.argsort(bench.normal(tokens, spec.count), axis=1)[:, : spec.used]
        groups = bench.put(np.zeros(ops.group_words(pairs, spec.count), np.uint32))
        y = bench.poisoned(pairs, EXPERT_ROWS)
        steps = [
            ops.group_experts(
                bench.kernels,
                bench.put(ids.astype(np.uint32)),
                bench.count(tokens),
                groups,
                experts=spec.count,
            ),
            *ops.expert_matvec(
                bench.kernels,
                matrix,
                given,
                groups,
                y,
                pairs=pairs,
                experts=spec.count,
                expert_rows=EXPERT_ROWS,
                pairs_a_row=spec.used,
                bias=None if bias is None else bench.put(bias),
            ),
        ]
        chosen, expected = ids.reshape(-1), np.empty((pairs, EXPERT_ROWS))
        rows = np.repeat(x[:, : weight.shape[2]].astype(np.float64), spec.used, axis=0)
        for expert in range(spec.count):
            expected[chosen == expert] = rows[chosen == expert] @ weight[expert].T
        if bias is not None:
            expected += bias.reshape(spec.count, EXPERT_ROWS)[chosen]
        return bench.run(steps, y)[0], expected

    shape = f"{pairs} pairs of {spec.count} experts, {info.shape[1]} columns"
    shape += "" if bias_info is None else " +bias"
    kind = "int8_twin" if quantized else "float"
    return bench.compare("expert_matvec", info.type.name, shape, kind, run)


def _check_sum(bench: Workbench, width: int, used: int, with_shared: bool) -> Check:
    rows = 5

    def run() -> Pair:
        y, weights = bench.normal(rows * used, width), bench.normal(rows, used)
        before, shared = bench.normal(rows, width), bench.normal(rows, width)
        gates = bench.normal(rows, 1)
        residual = bench.put(before)
        step = ops.add_experts(
            bench.kernels,
            bench.put(y),
            bench.put(weights),
            (bench.put(shared), bench.put(gates)) if with_shared else None,
            bench.count(rows),
            residual,
        )
        expected = before + (weights[..., None] * y.reshape(rows, used, width)).sum(axis=1)
        if with_shared:
            expected = expected + shared * reference.sigmoid(gates)
        return bench.run(step, residual)[0], expected

    shape = f"{rows}×{width}, {used} used" + (", shared" if with_shared else "")
    return bench.compare("add_experts", "F32", shape, "float", run)
