"""Matrix products and embedding rows at the shapes of real models, for every table entry that is asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as GGMLType

from emberd.gguf.dequant import dequantize
from emberd.reference import ops as reference
from emberd.runtime import linear
from emberd.runtime.device import Device, Tensor
from emberd.runtime.linear import LinearTable
from emberd.runtime.matmul import MatmulTable, MatmulTile
from emberd.runtime.matvec import MatvecTile
from emberd.runtime.weights import WeightMatrix, WeightPart, upload_matrix
from emberd.verify.bench import Workbench
from emberd.verify.check import TOLERANCE, relative_error
from kernel_case import Bytes, Case, ModelShape, copies_of, random_weights

CHECKED_ROWS = 192
"""Weight rows whose outputs are compared: a random choice, with the first and the last."""


def product_cases(
    bench: Workbench,
    shape: ModelShape,
    tokens: Sequence[int],
    types: Sequence[str],
    roles: Sequence[str] | None,
    variants: bool,
) -> Iterator[list[Case]]:
    """For each matrix and number of tokens the cases to compare: the default table, or all variants."""
    for role, own_type, rows, cols in shape.matrices:
        if roles is not None and role not in roles:
            continue
        for name in types or (own_type,):
            kind = GGMLType[name]
            raw = random_weights(bench.rng, rows, cols, kind)
            first = upload_matrix(bench.device, [(raw, kind)])
            copies = copies_of(bench.device, first.nbytes)
            matrices = [first, *(copy_of(bench.device, first) for _ in range(copies - 1))]
            for count in tokens:
                if role == "output" and count > 32:
                    continue  # logits are made for sampled rows alone
                label = f"{shape.name} {role} {count}×{cols}·{rows}×{cols}"
                yield _products(bench, matrices, raw, count, label, variants)


def _products(
    bench: Workbench,
    matrices: Sequence[WeightMatrix],
    raw: Bytes,
    tokens: int,
    label: str,
    variants: bool,
) -> list[Case]:
    matrix = matrices[0]
    x = bench.normal(tokens, matrix.cols)
    operand: Any = bench.put(x)
    if matrix.is_quantized:
        operand, x = bench.quantized(x)
    y = bench.poisoned(tokens, matrix.rows)
    count = bench.count(tokens)
    picked = np.unique(np.append(bench.rng.integers(0, len(raw), CHECKED_ROWS), [0, len(raw) - 1]))
    expected = reference.matmul(
        x.astype(np.float64), dequantize(raw[picked], matrix.type).astype(np.float64)
    )

    def case(variant: str, table: LinearTable) -> Case:
        chains = [
            linear.matmul(bench.kernels, each, operand, y, rows=tokens, count=count, table=table)
            for each in matrices
        ]

        def check() -> float:
            bench.device.write(y, np.full(y.shape, np.nan, np.float32))
            out = bench.run(chains[0], y)[0]
            return float("nan") if np.isnan(out).any() else relative_error(out[:, picked], expected)

        return Case(
            op="matmul",
            type=matrix.type.name,
            shape=label,
            chains=chains,
            check=check,
            tolerance=TOLERANCE["int8_twin" if matrix.is_quantized else "float"],
            nbytes=matrix.nbytes + 4 * tokens * matrix.rows + tokens * matrix.cols,
            ops=2 * tokens * matrix.rows * matrix.cols,
            integer=matrix.is_quantized,
            variant=variant,
        )

    default = linear.default_table(bench.device)
    found = [case("default", default)]
    if variants:
        found += [case(name, table) for name, table in tables(bench.device, tokens)]
    return found


def tables(device: Device, tokens: int) -> Iterator[tuple[str, LinearTable]]:
    """Every variant that could serve this many tokens, as a table that has nothing else."""
    default = linear.default_table(device)
    if tokens <= 32:
        groups = sorted({min(8, 1 << (tokens - 1).bit_length()), min(tokens, 4)})
        for tile in _matvec_tiles(device):
            for group in groups:
                yield (
                    f"matvec lanes{tile.lanes} rows{tile.rows} wg{tile.workgroup} units{tile.units} m{group}",
                    replace(
                        default,
                        matvec=replace(
                            default.matvec, tokens=tokens, group=group, rows=((1, 1, tile),)
                        ),
                    ),
                )
    if tokens > 4:
        for block in _matmul_tiles(device, tokens):
            name = f"matmul {block.tokens}×{block.rows} lane{block.lane_tokens} runs{block.runs}÷{block.slices}"
            name += " ahead" if block.ahead else ""
            yield name, LinearTable(replace(default.matvec, tokens=0), MatmulTable(((1, block),)))


def _matvec_tiles(device: Device) -> Iterator[MatvecTile]:
    software = device.info.is_software
    for lanes in (1,) if software else sorted({8, 16, device.subgroup_size or 32}):
        for rows in (1, 2, 4):
            for workgroup in (8, 16) if software else (64, 128, 256):
                for units in (1, 2, 4):
                    yield MatvecTile(lanes, rows, workgroup, units)


def _matmul_tiles(device: Device, tokens: int) -> Iterator[MatmulTile]:
    """Tiles that the device can hold, and that are not far larger than the tokens."""
    most = 64 if device.info.is_software else 512  # which compiles for seconds
    for tile_tokens, rows, lane_tokens in itertools.product((16, 32, 64), (8, 16, 32, 64), (4, 8)):
        slices = ((2, 1), (2, 2), (4, 2), (4, 4), (8, 4), (8, 8), (16, 8), (16, 16))
        for (runs, shared), ahead in itertools.product(slices, (0, 2)):
            try:
                tile = MatmulTile(tile_tokens, rows, lane_tokens, runs, shared, ahead)
            except AssertionError:
                continue  # more than the kernel reads at a time
            if tile_tokens < 2 * tokens and 64 <= tile.workgroup <= most and tile.fits(device):
                yield tile


def embedding_case(bench: Workbench, shape: ModelShape, tokens: int) -> Case:
    """Embedding rows of the output matrix's type, from a matrix that no cache holds."""
    _, name, rows, cols = shape.matrices[-1]
    rows = min(rows, 1 << 15)
    kind = GGMLType[name]
    raw = random_weights(bench.rng, rows, cols, kind)
    ids = bench.rng.integers(0, rows, tokens).astype(np.int32)
    y = bench.poisoned(tokens, cols)
    matrix = upload_matrix(bench.device, [(raw, kind)])
    chain = linear.embedding(
        bench.kernels,
        matrix,
        bench.ints(ids),
        bench.put(np.zeros(1, np.uint32)),
        bench.ints(np.zeros(tokens)),
        y,
        rows=tokens,
        scale=1.0,
    )
    return Case(
        op="embedding",
        type=name,
        shape=f"{shape.name} {tokens}×{cols}",
        chains=[chain],
        check=lambda: relative_error(bench.run(chain, y)[0], dequantize(raw[ids], kind)),
        tolerance=TOLERANCE["float"],
        nbytes=tokens * raw.shape[1] + 4 * tokens * cols,
    )


def copy_of(device: Device, matrix: WeightMatrix) -> WeightMatrix:
    """The same weights in other buffers."""
    encoder = device.wgpu.create_command_encoder()

    def clone(tensor: Tensor) -> Tensor:
        made = device.empty(tensor.shape, tensor.dtype, "copy")
        size = (tensor.nbytes + 15) & ~15
        encoder.copy_buffer_to_buffer(tensor.buffer, tensor.offset, made.buffer, 0, size)
        return made

    parts = tuple(
        WeightPart(
            part.first_row,
            part.rows,
            clone(part.quants),
            None if part.scales is None else clone(part.scales),
        )
        for part in matrix.parts
    )
    device.wgpu.queue.submit([encoder.finish()])
    return replace(matrix, parts=parts)
