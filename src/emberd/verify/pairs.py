"""Neighbouring products of two weight types as the forward pass makes them: in one dispatch where that can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..gguf.dequant import dequantize
from ..gguf.loaded import loaded_type
from ..gguf.model import LayerTensors, ModelFile
from ..gguf.reader import TensorInfo
from ..runtime import linear
from ..runtime.activations import FLOAT_UNIT, padded
from ..runtime.device import Tensor
from ..runtime.matmul import MatmulTile
from ..runtime.model import Projection
from ..runtime.pair import WeightPair, can_pair
from ..runtime.plan import bakes
from ..runtime.products import Form, Product
from ..runtime.projection import Input, Projector
from ..runtime.weights import FLOAT_TYPES, WeightMatrix, WeightPart, matrix_columns, upload_matrix
from .bench import Workbench
from .check import Check
from .fused import pending_input
from .linear import MAX_ROWS
from .steps import Steps

Biased = tuple[TensorInfo, TensorInfo | None]
Group = tuple[Biased, ...]
"""Matrices of one type, which are one below the other."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Two groups side by side. `ahead`: the norm of their input may be left to them; `apart`: in two outputs."""

    first: Group
    second: Group
    ahead: bool
    apart: bool
    row_unit: int  # of which each matrix is made a multiple

    @property
    def groups(self) -> tuple[Group, Group]:
        return self.first, self.second


def check_pairs(bench: Workbench, model: ModelFile, steps: Steps) -> Iterator[Check]:
    """Each pair by every kernel that the rules may choose for it."""
    for case in _cases(bench, model, steps, linear.default_table(bench.device)):
        yield from _check_case(bench, model, case)


def check_tuned_pairs(
    bench: Workbench, model: ModelFile, steps: Steps, table: linear.LinearTable
) -> Iterator[tuple[Product, Check]]:
    """Each measured tile of `table` for a pair, in every kernel that it has a part in."""
    tuned = {*table.matvec.tuned, *table.matmul.tuned}
    for case in _cases(bench, model, steps, table):
        if case.product in tuned:
            for check in _check_case(bench, model, case):
                yield case.product, check


@dataclass(frozen=True, slots=True)
class _Case:
    """A pair by one kernel: so many tokens, by this tile, and whether their input's norm is left to them."""

    pair: Neighbours
    product: Product
    tile: linear.Tile
    tokens: int
    pending: bool


def _cases(
    bench: Workbench, model: ModelFile, steps: Steps, table: linear.LinearTable
) -> Iterator[_Case]:
    """One for each kernel."""
    for pair in _neighbours(model) if table.paired else ():
        first, second = (_matrix(bench, group, pair.row_unit) for group in pair.groups)
        both, seen = WeightPair(first, second), set()
        for tokens in steps.numbers_of_tokens:
            if not can_pair(table, first, second, tokens):
                continue
            few = tokens <= table.matvec.tokens
            form: Form = "rows" if few else "matmul"
            tile = table.tile_for(form, both, tokens)
            kernel = tile, table.matvec.group_of(tokens) if few else 0
            if kernel in seen:
                continue
            seen.add(kernel)
            for pending in (False, True) if few and pair.ahead and table.matvec.fused else (False,):
                yield _Case(pair, Product.of(form, both, tokens), tile, tokens, pending)


def _check_case(bench: Workbench, model: ModelFile, case: _Case) -> Iterator[Check]:
    """One comparison, and another where a step of one token has its kernels' params in their text."""
    yield _check(bench, model, case)
    if bakes(bench.device, case.tokens):
        with bench.sizes_in_text():
            yield _check(bench, model, case)


def _matrix(bench: Workbench, group: Group, row_unit: int) -> WeightMatrix:
    """What a runner makes of these, of which nothing but type and sizes is read."""
    infos, part = [info for info, _ in group], cast(WeightPart, None)
    kind = loaded_type(infos[0].type, bench.device.left_out)
    rows = sum(padded(info.shape[0], row_unit) for info in infos)
    return WeightMatrix(kind, rows, matrix_columns(kind, infos[0].shape[1]), (part,))


def _neighbours(model: ModelFile) -> Iterator[Neighbours]:
    """Each pair of the model once."""
    found: dict[Any, Neighbours] = {}
    for layer in model.tensors.layers:
        rms = layer.attention_norm is not None and layer.attention_norm_bias is None
        for parts in _side_by_side(layer):
            ahead = rms and not any(info.type in FLOAT_TYPES for info, _ in parts)
            groups = [tuple(group) for _, group in groupby(parts, key=lambda part: part[0].type)]
            for first, second in pairwise(groups):
                apart = second == ((layer.v, layer.v_bias),)  # v of its own type has its own tensor
                sizes = [
                    (g[0][0].type, g[0][1] is None, *(m.shape for m, _ in g))
                    for g in (first, second)
                ]
                unit = 1 if parts[0][0] is layer.q else FLOAT_UNIT
                found.setdefault((*sizes, apart), Neighbours(first, second, ahead, apart, unit))
    yield from found.values()


def _side_by_side(layer: LayerTensors) -> Iterator[Sequence[Biased]]:
    yield (layer.q, layer.q_bias), (layer.k, layer.k_bias), (layer.v, layer.v_bias)
    if layer.router is None and layer.gate is not None:
        yield (layer.gate, layer.gate_bias), (layer.up, layer.up_bias)
    if layer.shared is not None:
        yield (layer.shared.gate, None), (layer.shared.up, None)


def _check(bench: Workbench, model: ModelFile, case: _Case) -> Check:
    pair, tile, tokens, pending = case.pair, case.tile, case.tokens, case.pending
    infos = [group[0][0] for group in pair.groups]
    is_tile = isinstance(tile, MatmulTile)
    table = linear.table_of(bench.device, "matmul" if is_tile else "rows", tile)
    tokens = min(tokens, tile.tokens + 5) if isinstance(tile, MatmulTile) else tokens

    def run() -> tuple[NDArray[Any], NDArray[Any]]:
        raws = [model.file.rows(info)[:MAX_ROWS] for info in infos]
        matrices = tuple(
            upload_matrix(bench.device, [(raw, info.type)])
            for raw, info in zip(raws, infos, strict=True)
        )
        x: NDArray[Any] = bench.normal(tokens, matrices[0].cols)
        floats = bench.put(x)
        cols = matrices[0].cols
        q8, values = bench.activations(tokens, cols), x
        if matrices[0].is_quantized:
            q8, values = pending_input(bench, tokens, cols, model.spec.norm_eps, pending)
        biases: list[Tensor | None] = []
        expected = []
        for raw, ((info, bias), *_) in zip(raws, pair.groups, strict=True):
            weight = bench.floats(raw, info.type).T.astype(np.float64)
            operand = x.astype(np.float64) if info.type in FLOAT_TYPES else values
            product = operand[:, : len(weight)] @ weight
            biases.append(None)
            if bias is not None:
                added = dequantize(model.file.rows(bias), bias.type).reshape(-1)[: len(raw)]
                biases[-1] = bench.put(added)
                product = product + added
            expected.append(product)
        rows = [matrix.rows for matrix in matrices]
        if pair.apart:
            outputs = [(bench.poisoned(tokens, each), 0) for each in rows]
        else:
            y = bench.poisoned(tokens, sum(rows))
            outputs = [(y, 0), (y, rows[0])]
        steps = Projector(bench.kernels, table).project(
            Projection(matrices, tuple(biases)),
            Input(floats, q8),
            outputs,
            bench.count(tokens),
            tokens,
        )
        written = [y for y, _ in outputs] if pair.apart else [outputs[0][0]]
        return np.concatenate(bench.run(steps, *written), axis=1), np.concatenate(expected, axis=1)

    shapes = " and ".join(f"{info.shape[0]}×{info.shape[1]}" for info in infos)
    notes = ("" if pair.apart else ", one output") + (", norm" if pending else "")
    notes += ", biases" if pair.first[0][1] is not None else ""
    return bench.compare(
        "matmul pair" if is_tile else "matvec pair",
        "+".join(info.type.name for info in infos),
        f"{tokens}×{infos[0].shape[1]} · {shapes}{notes}, {tile}",
        "float" if infos[0].type in FLOAT_TYPES else "int8_twin",
        run,
    )
