"""Products and embedding rows on a model's own weights: one case for each kernel that the model reaches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..gguf.dequant import dequantize
from ..gguf.loaded import loaded_type
from ..gguf.reader import GGUFFile, TensorInfo
from ..gguf.spec import ModelFile
from ..reference import ops as reference
from ..runtime import linear, ops
from ..runtime.activations import padded
from ..runtime.products import Form, Product
from ..runtime.weights import upload_matrix
from .bench import F32, Workbench
from .check import Check

TOKENS = (1, 4, 12, 20, 72)
"""Numbers of tokens: each kernel and tile of the table serves one of them."""

MAX_ROWS = 200
"""Rows of a weight matrix that a case takes; no multiple of a tile, so that ragged edges are in it."""

Pair = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Role:
    """A matrix, and how the forward pass uses it."""

    matrix: TensorInfo
    bias: TensorInfo | None = None
    accumulate: bool = False

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for roles that the same kernels serve."""
        return (self.matrix.type, self.matrix.shape[1], self.bias is not None, self.accumulate)


def roles(model: ModelFile) -> list[Role]:
    """One role for each key in the model, the first that has it."""
    adds = model.tensors.layers[0].post_attention_norm is None  # else the product is normed first
    found: dict[tuple[Any, ...], Role] = {}
    for layer in model.tensors.layers:
        for role in (
            Role(layer.q, layer.q_bias),
            Role(layer.k, layer.k_bias),
            Role(layer.v, layer.v_bias),
            Role(layer.o, layer.o_bias, accumulate=adds),
            *(() if layer.gate is None else (Role(layer.gate, layer.gate_bias),)),
            Role(layer.up, layer.up_bias),
            Role(layer.down, layer.down_bias, accumulate=adds),
        ):
            found.setdefault(role.key, role)
    if model.spec.causal:
        output = Role(model.tensors.output, model.tensors.output_bias)
        found.setdefault(output.key, output)
    return list(found.values())


def check_products(bench: Workbench, model: ModelFile) -> Iterator[Check]:
    """y = x wᵀ for every role and every number of tokens."""
    return check_roles(bench, model.file, roles(model))


def check_roles(bench: Workbench, file: GGUFFile, found: Iterable[Role]) -> Iterator[Check]:
    """Each role's product for every number of tokens."""
    for role in found:
        raw = file.rows(role.matrix)[:MAX_ROWS]
        bias = None
        if role.bias is not None:
            bias = dequantize(file.rows(role.bias), role.bias.type).reshape(-1)[: len(raw)]
        for tokens in TOKENS:
            yield check_product(bench, role, raw, bias, tokens)


def check_tiles(bench: Workbench, model: ModelFile) -> Iterator[Check]:
    """y = x wᵀ by every other tile that measuring may put in the table's place, once for each type."""
    rules = linear.default_table(bench.device).matvec
    forms: list[tuple[Form, int]] = [("rows", TOKENS[1])]
    if rules.tokens < TOKENS[-1]:
        forms.append(("matmul", TOKENS[-1]))
    for role in {role.matrix.type: role for role in reversed(roles(model))}.values():
        raw = model.file.rows(role.matrix)[:MAX_ROWS]
        for form, tokens in forms:
            kind = loaded_type(role.matrix.type, bench.device.left_out).name
            product = Product(form, kind, len(raw), role.matrix.shape[1], tokens)
            for tile in linear.candidates(bench.device, product):
                table = linear.table_of(bench.device, form, tile)
                yield check_product(bench, role, raw, None, tokens, table)


def check_product(
    bench: Workbench,
    role: Role,
    raw: NDArray[np.uint8],
    bias: F32 | None,
    tokens: int,
    table: linear.LinearTable | None = None,
    note: str = "",
) -> Check:
    names: list[str] = []
    quantized = role.matrix.type not in linear.FLOAT_TYPES

    def run() -> Pair:
        matrix = upload_matrix(bench.device, [(raw, role.matrix.type)])
        x = bench.normal(tokens, matrix.cols)
        operand: Any = bench.put(x)
        if quantized:
            operand, x = bench.quantized(x)
        before = bench.normal(tokens, matrix.rows) if role.accumulate else None
        y = bench.poisoned(tokens, matrix.rows) if before is None else bench.put(before)
        steps = linear.matmul(
            bench.kernels,
            matrix,
            operand,
            y,
            rows=tokens,
            count=bench.count(tokens),
            bias=None if bias is None else bench.put(bias),
            accumulate=role.accumulate,
            table=table,
        )
        names.extend(step.kernel.key.name for step in steps)
        found = bench.run(steps, y)[0]
        weight = bench.floats(raw, role.matrix.type)
        expected = x[:, : weight.shape[1]].astype(np.float64) @ weight.T.astype(np.float64)
        expected += 0 if bias is None else bias
        expected += 0 if before is None else before
        return found, expected

    cols = role.matrix.shape[1]
    extras = (" +bias" if bias is not None else "") + (" +=" if role.accumulate else "")
    extras += note or ("" if table is None else ", another tile")
    check = bench.compare(
        "matmul",
        role.matrix.type.name,
        f"{tokens}×{cols} · {len(raw)}×{cols}{extras}",
        "int8_twin" if quantized else "float",
        run,
    )
    return check if not names else check.renamed(names[0])


def check_widen(bench: Workbench, width: int) -> Iterator[Check]:
    """Attention's results on their way into whole units; none where they are."""
    if width == padded(width):
        return
    tokens, live = 5, 4

    def run() -> Pair:
        x, before = bench.normal(tokens, width), bench.normal(tokens, padded(width))
        y, expected = bench.put(before), before.copy()
        expected[:live, :width] = x[:live]
        step = ops.widen(bench.kernels, bench.put(x), bench.count(live), y)
        return bench.run(step, y)[0], expected

    yield bench.compare("widen", "F32", f"{tokens}×{width}", "float", run)


def check_embedding(bench: Workbench, model: ModelFile) -> Iterator[Check]:
    """Rows of the embedding, by token id and by the token that was sampled last."""
    return check_rows(bench, model.file, model.tensors.token_embedding, model.spec.embedding_scale)


def check_rows(bench: Workbench, file: GGUFFile, info: TensorInfo, scale: float) -> Iterator[Check]:
    raw = file.rows(info)[:MAX_ROWS]
    table = bench.floats(raw, info.type)
    tokens = 9

    def run() -> Pair:
        ids = bench.rng.integers(0, len(raw), tokens).astype(np.int32)
        last = bench.rng.integers(0, len(raw), 4).astype(np.uint32)
        sequences = bench.rng.integers(0, 4, tokens).astype(np.int32)
        given = np.where(np.arange(tokens) % 2 == 0, ids, -1)
        wanted = np.where(given < 0, last[sequences].astype(np.int32), ids)
        matrix = upload_matrix(bench.device, [(raw, info.type)])
        y = bench.poisoned(tokens, matrix.cols)
        steps = linear.embedding(
            bench.kernels,
            matrix,
            bench.ints(given),
            bench.put(last),
            bench.ints(sequences),
            y,
            rows=tokens,
            scale=scale,
        )
        return bench.run(steps, y)[0], bench.wide(reference.embedding(table, wanted, scale))

    yield bench.compare("embedding", info.type.name, f"{tokens}×{table.shape[1]}", "float", run)
