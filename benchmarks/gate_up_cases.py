"""Gate, up and the activation in one dispatch at the shapes of real models, by the default table or every tile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from gguf import GGMLQuantizationType as GGMLType

from emberd.gguf.dequant import dequantize
from emberd.reference import ops as reference
from emberd.runtime import linear
from emberd.runtime.activations import QUANT_RUN, activations
from emberd.runtime.linear import LinearTable
from emberd.runtime.products import Product
from emberd.runtime.weights import WeightMatrix, upload_matrix
from emberd.verify.bench import Workbench, read_quantized
from emberd.verify.check import TOLERANCE, relative_error
from kernel_case import Bytes, Case, ModelShape, copies_of, random_weights
from product_cases import copy_of

CHECKED_RUNS = 8
"""Runs of 32 outputs that are compared: a random choice."""


def gate_up_cases(
    bench: Workbench,
    shape: ModelShape,
    tokens: Sequence[int],
    types: Sequence[str],
    variants: bool,
) -> Iterator[list[Case]]:
    """For each number of tokens the cases to compare."""
    (own_type, rows, cols), *_ = (rest for role, *rest in shape.matrices if role == "gate_up")
    for name in types or (own_type,):
        kind = GGMLType[name]
        raw = random_weights(bench.rng, rows, cols, kind)
        first = upload_matrix(bench.device, [(raw, kind)])
        copies = copies_of(bench.device, first.nbytes)
        matrices = [first, *(copy_of(bench.device, first) for _ in range(copies - 1))]
        for count in tokens:
            default = linear.default_table(bench.device)
            if not linear.can_fuse_gate_up(default, first, count):
                continue
            label = f"{shape.name} {count}×{cols}·{rows}×{cols}"
            tables = [("default", default)]
            if variants:
                product = Product("gate_up", name, rows, cols, count)
                for tile in linear.candidates(bench.device, product):
                    tables.append((str(tile), linear.table_of(bench.device, "gate_up", tile)))
            yield [
                _case(bench, matrices, raw, count, label, variant, table)
                for variant, table in tables
            ]


def _case(
    bench: Workbench,
    matrices: Sequence[WeightMatrix],
    raw: Bytes,
    tokens: int,
    label: str,
    variant: str,
    table: LinearTable,
) -> Case:
    matrix, device = matrices[0], bench.device
    width = matrix.rows // 2
    operand, x = bench.quantized(bench.normal(tokens, matrix.cols))
    group = 16 if tokens <= table.matvec.tokens else QUANT_RUN
    out, count = activations(device, tokens, width, group=group), bench.count(tokens)
    chains = [
        [
            linear.gate_up_quantize(
                bench.kernels,
                each,
                operand,
                out,
                rows=tokens,
                count=count,
                activation="silu",
                table=table,
            )
        ]
        for each in matrices
    ]
    runs = bench.rng.integers(0, width // QUANT_RUN, CHECKED_RUNS)
    picked = (runs[:, None] * QUANT_RUN + np.arange(QUANT_RUN)).reshape(-1)
    gate, up = (
        (x.astype(np.float64) @ dequantize(raw[rows], matrix.type).T).astype(np.float32)
        for rows in (picked, width + picked)
    )
    expected = bench.rounded(reference.silu_mul(gate, up), group)

    def check() -> float:
        device.write(out.scales, np.full(out.scales.shape, np.nan, np.float32))
        return relative_error(read_quantized(bench, chains[0], out)[:, picked], expected)

    return Case(
        op="gate_up_quantize",
        type=matrix.type.name,
        shape=label,
        chains=chains,
        check=check,
        tolerance=TOLERANCE["int8_round"],
        nbytes=matrix.nbytes + tokens * (width + matrix.cols),
        ops=2 * tokens * matrix.rows * matrix.cols,
        integer=True,
        variant=variant,
    )
