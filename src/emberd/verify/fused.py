"""Products with what follows them in one dispatch, on a model's own weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..gguf.loaded import loaded_type
from ..gguf.reader import TensorInfo
from ..gguf.spec import ModelFile
from ..reference.transformer import ACTIVATIONS
from ..runtime import linear, matvec
from ..runtime.activations import QUANT_RUN, PendingNorm, QuantizedActivations
from ..runtime.device import Device
from ..runtime.linear import LinearTable
from ..runtime.matvec import MatvecTable
from ..runtime.products import Form, Product
from ..runtime.weights import FLOAT_TYPES, upload_matrix
from .bench import F32, GROUP, Workbench, read_quantized
from .check import TOLERANCE, Check, relative_error

TOKENS = (1, 4, 7)
TILED_TOKENS = 72
MAX_ROWS = 256

Pair = tuple[NDArray[Any], NDArray[Any]]


def check_fused(bench: Workbench, model: ModelFile) -> Iterator[Check]:
    """The products that a pending norm, the residual or the gated activation can join, once for each type."""
    spec, layers = model.spec, model.tensors.layers
    if layers[0].attention_norm_bias is not None:
        return  # a LayerNorm's input is not left to its reader, and nothing else can join
    quantized = [layer for layer in layers if not _is_float(layer.q, layer.o, layer.down)]
    outputs = {(m.type, m.shape[1]): m for layer in quantized for m in (layer.o, layer.down)}
    readers = {m.type: m for layer in quantized for m in (layer.q, layer.k, layer.v)}
    gates = {
        layer.gate.type: (layer.gate, layer.up)
        for layer in quantized
        if layer.gate is not None and layer.gate.type == layer.up.type and not _is_float(layer.gate)
    }
    if not _is_float(model.tensors.token_embedding):
        yield check_ahead(bench, model)
    for tokens in TOKENS:
        if layers[0].post_attention_norm is None:
            if not _is_float(model.tensors.output):
                yield check_pending(bench, model, model.tensors.output, tokens, given=True)
            for info in outputs.values():
                yield check_output(bench, model, info, tokens)
            for info in readers.values():
                yield check_pending(bench, model, info, tokens)
        for pending in (False, True):
            for gate, up in gates.values():
                yield check_gate_up(bench, model, gate, up, tokens, pending, spec.activation)
    # Every other tile that measuring may put in the table's place.
    device, tokens = bench.device, TOKENS[1]
    if layers[0].post_attention_norm is None:
        for info in {info.type: info for info in outputs.values()}.values():
            rows = min(info.shape[0], MAX_ROWS)
            for table in _tables(device, "output", info, rows, tokens):
                yield check_output(bench, model, info, tokens, table.matvec)
    tiled = linear.default_table(device).matvec.tokens < TILED_TOKENS
    for gate, up in gates.values():
        rows = 2 * min(gate.shape[0], MAX_ROWS)
        for table in _tables(device, "gate_up", gate, rows, tokens):
            yield check_gate_up(bench, model, gate, up, tokens, True, spec.activation, table)
        for table in _tables(device, "gate_up", gate, rows, TILED_TOKENS) if tiled else ():
            yield check_gate_up(bench, model, gate, up, TILED_TOKENS, False, spec.activation, table)


def _tables(
    device: Device, form: Form, info: TensorInfo, rows: int, tokens: int
) -> list[LinearTable]:
    kind = loaded_type(info.type, device.left_out).name
    product = Product(form, kind, rows, info.shape[1], tokens)
    tiles = linear.candidates(device, product)
    return [linear.table_of(device, form, tile) for tile in tiles]


def check_output(
    bench: Workbench,
    model: ModelFile,
    info: TensorInfo,
    tokens: int,
    table: MatvecTable | None = None,
    note: str = "",
) -> Check:
    def run() -> Pair:
        raw = model.file.rows(info)[:MAX_ROWS]
        matrix = upload_matrix(bench.device, [(raw, info.type)])
        x_q8, x = bench.quantized(bench.normal(tokens, matrix.cols))
        before, weight = bench.normal(tokens, matrix.rows), bench.normal(matrix.rows)
        hidden = bench.put(before)
        out = bench.activations(tokens, matrix.rows, model.spec.norm_eps, GROUP)
        step = matvec.output_quantize(
            bench.kernels,
            matrix,
            x_q8,
            hidden,
            bench.put(weight),
            out,
            rows=tokens,
            count=bench.count(tokens),
            table=table or linear.default_table(bench.device).matvec,
        )
        found = bench.run(step, hidden)[0]
        product = x.astype(np.float64) @ bench.floats(raw, info.type).T.astype(np.float64)
        if relative_error(found, before + product) > TOLERANCE["int8_twin"]:
            return found, before + product
        assert out.norm is not None
        squares = bench.run([], out.norm.squares)[0]
        sums = (found**2).reshape(tokens, -1, 16).sum(axis=2)
        if relative_error(squares, sums) > TOLERANCE["float"]:
            return squares, sums
        return read_quantized(bench, [], out), bench.rounded(found * weight, GROUP)

    shape = f"{tokens}×{info.shape[1]} · {info.shape[0]}×{info.shape[1]} +=, int8"
    shape += note or ("" if table is None else ", another tile")
    return bench.compare("matvec residual", info.type.name, shape, "int8_round", run)


def check_ahead(bench: Workbench, model: ModelFile) -> Check:
    """Embedding rows that go on as the first norm's input."""
    info, spec, tokens = model.tensors.token_embedding, model.spec, TOKENS[-1]

    def run() -> Pair:
        raw = model.file.rows(info)[:MAX_ROWS]
        matrix = upload_matrix(bench.device, [(raw, info.type)])
        ids, weight = bench.rng.integers(0, len(raw), tokens), bench.normal(matrix.cols)
        out = bench.activations(tokens, matrix.cols, spec.norm_eps, GROUP)
        steps = linear.embedding(
            bench.kernels,
            matrix,
            bench.ints(ids),
            bench.put(np.zeros(1, np.uint32)),
            bench.ints(np.zeros(tokens)),
            bench.poisoned(tokens, matrix.cols),
            rows=tokens,
            scale=spec.embedding_scale,
            ahead=(bench.put(weight), out),
        )
        found = read_quantized(bench, steps, out)
        rows = bench.floats(raw, info.type)[ids] * np.float32(spec.embedding_scale)
        assert out.norm is not None
        squares = bench.run([], out.norm.squares)[0]
        sums = (rows**2).reshape(tokens, -1, 16).sum(axis=2)
        if relative_error(squares, sums) > TOLERANCE["float"]:
            return squares, sums
        return found, bench.rounded(rows * weight, GROUP)

    shape = f"{tokens}×{info.shape[1]}, int8"
    return bench.compare("embedding norm", info.type.name, shape, "int8_round", run)


def check_pending(
    bench: Workbench,
    model: ModelFile,
    info: TensorInfo,
    tokens: int,
    given: bool = False,
    table: linear.LinearTable | None = None,
    bias: F32 | None = None,
    note: str = "",
) -> Check:
    """`given`: of rows of the input in another order."""

    def run() -> Pair:
        raw = model.file.rows(info)[:MAX_ROWS]
        matrix = upload_matrix(bench.device, [(raw, info.type)])
        x_q8, x = pending_input(bench, tokens, matrix.cols, model.spec.norm_eps, pending=True)
        if given:
            order = bench.rng.permutation(tokens)
            x_q8, x = replace(x_q8, rows=bench.ints(order)), x[order]
        y = bench.poisoned(tokens, matrix.rows)
        steps = linear.matmul(
            bench.kernels,
            matrix,
            x_q8,
            y,
            rows=tokens,
            count=bench.count(tokens),
            bias=None if bias is None else bench.put(bias[: len(raw)]),
            table=table,
        )
        found = bench.run(steps, y)[0]
        expected = x @ bench.floats(raw, info.type).T.astype(np.float64)
        return found, expected if bias is None else expected + bias[: len(raw)]

    shape = f"{tokens}×{info.shape[1]} · {info.shape[0]}×{info.shape[1]}"
    shape += ", given rows" if given else ""
    shape += ("" if bias is None else " +bias") + note
    return bench.compare("matvec norm", info.type.name, shape, "int8_twin", run)


def check_gate_up(
    bench: Workbench,
    model: ModelFile,
    gate: TensorInfo,
    up: TensorInfo,
    tokens: int,
    pending: bool,
    activation: Any,
    table: LinearTable | None = None,
    note: str = "",
) -> Check:
    """By matvec, or for more tokens than that takes by matmul."""
    chosen = table or linear.default_table(bench.device)
    tiled = tokens > chosen.matvec.tokens
    group = QUANT_RUN if tiled else GROUP

    def run() -> Pair:
        raws = [model.file.rows(info)[:MAX_ROWS] for info in (gate, up)]
        matrix = upload_matrix(bench.device, [(raw, gate.type) for raw in raws])
        x_q8, x = pending_input(bench, tokens, matrix.cols, model.spec.norm_eps, pending)
        out = bench.activations(tokens, matrix.rows // 2, group=group)
        step = linear.gate_up_quantize(
            bench.kernels,
            matrix,
            x_q8,
            out,
            rows=tokens,
            count=bench.count(tokens),
            activation=activation,
            table=chosen,
        )
        found = read_quantized(bench, step, out)
        halves = [(x @ bench.floats(raw, gate.type).T).astype(np.float32) for raw in raws]
        product = ACTIVATIONS[activation](halves[0], halves[1])
        return found, bench.rounded(product, group)

    shape = f"{tokens}×{gate.shape[1]} · 2×{gate.shape[0]}×{gate.shape[1]} {activation}"
    shape += note or ("" if table is None else ", another tile")
    name = f"{'matmul' if tiled else 'matvec'} gate up" + (" norm" if pending else "")
    return bench.compare(name, gate.type.name, shape, "int8_round", run)


def pending_input(
    bench: Workbench, tokens: int, width: int, eps: float, pending: bool
) -> tuple[QuantizedActivations, NDArray[np.float64]]:
    """int8 activations, with the norm's 1 / rms pending or done, and the values that they stand for."""
    hidden: F32 = bench.normal(tokens, width)
    x_q8, x = bench.quantized(hidden * bench.normal(width))
    values: NDArray[np.float64] = x.astype(np.float64)
    if not pending:
        return x_q8, values
    squares = (hidden**2).reshape(tokens, -1, 16).sum(axis=2)
    rms = np.sqrt((hidden.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + eps)
    return replace(x_q8, norm=PendingNorm(bench.put(squares), eps)), values / rms


def _is_float(*infos: TensorInfo) -> bool:
    return any(info.type in FLOAT_TYPES for info in infos)
