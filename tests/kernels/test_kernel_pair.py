"""Products of two weight types in one dispatch give what they give alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GGMLType

from emberd.gguf.dequant import dequantize
from emberd.runtime import linear
from emberd.runtime.device import Device, Tensor
from emberd.runtime.kernel import Dispatch, Kernels, run_once
from emberd.runtime.linear import LinearTable, candidates
from emberd.runtime.matmul import MatmulTable, MatmulTile
from emberd.runtime.matvec import MatvecTile
from emberd.runtime.pair import Member, WeightPair, can_pair, matmul_pair
from emberd.runtime.products import Form, Product
from emberd.runtime.weights import WeightMatrix, upload_matrix
from fused_cases import pending
from linear_cases import (
    NARROW,
    QUANT_TYPES,
    columns,
    limited,
    quantized,
    with_rows_tile,
    with_subgroups,
)
from pair_plans import as_gpu, layers_of, mixed_model
from tiny_gguf import random_rows
from tolerance import check

pytestmark = pytest.mark.device

Q4_K, Q6_K = GGMLType.Q4_K, GGMLType.Q6_K
ROWS = (43, 21)
LEFT, RIGHT = 3, 2
"""Columns beside the products, which stay as they were."""


def check_pair(
    kernels: Kernels,
    rng: np.random.Generator,
    kinds: tuple[GGMLType, GGMLType],
    table: LinearTable,
    *,
    tokens: int,
    one_output: bool = False,
    bias: bool = False,
    finishes_norm: bool = False,
    baked: bool = False,
    alone: bool = False,
) -> Dispatch:
    """Fresh weights whose rows end within a tile, and one token that is not live where there are several.

    `alone`: against each of the two in a dispatch of its own, else against NumPy.
    """
    device, live = kernels.device, max(1, tokens - 1)
    (cols,) = set(map(columns, kinds))
    raws = [random_rows(rng, rows, cols, kind) for rows, kind in zip(ROWS, kinds, strict=True)]
    weights = [upload_matrix(device, [pair]) for pair in zip(raws, kinds, strict=True)]
    values = rng.standard_normal((tokens, cols), np.float32)
    x: linear.QuantizedActivations | Tensor = device.upload(values)
    if weights[0].is_quantized:
        x, values = quantized(device, values)
        if finishes_norm:
            x, values = pending(device, rng, tokens, cols)
    added = [rng.standard_normal(rows, np.float32) * bias for rows in ROWS]
    count = device.upload(np.array([live], np.uint32))
    before = np.full((tokens, LEFT + sum(ROWS) + RIGHT), np.nan, np.float32)
    ys = [device.upload(before) for _ in weights]
    ys[1] = ys[0] if one_output else ys[1]
    members = [
        Member(weight, device.upload(add) if bias else None, y, column)
        for weight, add, y, column in zip(weights, added, ys, (LEFT, LEFT + ROWS[0]), strict=True)
    ]
    table = replace(table, paired=True)
    (step,) = matmul_pair(kernels, *members, x, rows=tokens, count=count, table=table)
    assert step.kernel.key.second is not None
    step = kernels.baked(step) if baked else step
    run_once(device, [step])
    found = [device.read(y) for y in ys]
    expected = [before.copy() for _ in ys]
    expected[1] = expected[0] if one_output else expected[1]
    for member, raw, kind, add, out in zip(members, raws, kinds, added, expected, strict=True):
        product = values[:live].astype(np.float64) @ dequantize(raw, kind).T + add
        out[:live, member.column : member.column + member.weight.rows] = product
    if alone:
        for y in ys:
            device.write(y, before)
        for member in members:
            sizes = {"rows": tokens, "count": count, "column": member.column, "bias": member.bias}
            run_once(
                device, linear.matmul(kernels, member.weight, x, member.y, table=table, **sizes)
            )
        for y, out in zip(found, map(device.read, ys), strict=True):
            np.testing.assert_array_equal(y, out)
    for y, ref in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.isnan(y), np.isnan(ref))
        written = ~np.isnan(ref)
        check(y[written], ref[written], "int8_twin" if weights[0].is_quantized else "float")
    return step


def test_rows_of_two_types_with_a_pending_norm(kernels: Kernels, rng: np.random.Generator) -> None:
    step = check_pair(kernels, rng, (Q4_K, Q6_K), NARROW, tokens=1, finishes_norm=True, alone=True)
    assert step.kernel.bindings.count("x_q") == 1 and "squares" in step.kernel.bindings
    assert {"quants_second", "scales_second", "y_second"} <= {*step.kernel.bindings}


@pytest.mark.slow
def test_tiles_of_two_types(kernels: Kernels, rng: np.random.Generator) -> None:
    check_pair(kernels, rng, (Q4_K, Q6_K), NARROW, tokens=20, alone=True)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [8, 18])
@pytest.mark.parametrize("kinds", [(GGMLType.Q8_0, GGMLType.Q5_0), (GGMLType.Q5_K, GGMLType.Q3_K)])
def test_other_types_with_biases_in_one_output(
    kernels: Kernels, rng: np.random.Generator, kinds: tuple[GGMLType, GGMLType], tokens: int
) -> None:
    step = check_pair(kernels, rng, kinds, NARROW, tokens=tokens, one_output=True, bias=True)
    assert "y_second" not in step.kernel.bindings


def test_floats_of_two_types_in_one_output(kernels: Kernels, rng: np.random.Generator) -> None:
    kinds = (GGMLType.F16, GGMLType.BF16)
    step = check_pair(kernels, rng, kinds, NARROW, tokens=2, one_output=True, bias=True, alone=True)
    assert "y_second" not in step.kernel.bindings


def test_params_of_a_pair_go_into_its_text(kernels: Kernels, rng: np.random.Generator) -> None:
    kinds = (GGMLType.Q8_0, GGMLType.Q4_0)
    step = check_pair(kernels, rng, kinds, NARROW, tokens=1, baked=True)
    assert step.params == b"" and not step.kernel.fields


@pytest.mark.slow
def test_pairs_by_subgroups(device: Device, rng: np.random.Generator) -> None:
    kernels = Kernels(with_subgroups(device))
    size = kernels.device.subgroup_size or 0
    table = with_rows_tile(MatvecTile(size, 1, 8 * size, 2))
    check_pair(kernels, rng, (Q4_K, Q6_K), table, tokens=1, finishes_norm=True)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["rows", "matmul"])
def test_every_tile_that_may_be_measured(
    device: Device, kernels: Kernels, rng: np.random.Generator, form: Form
) -> None:
    if device.info.is_software:
        pytest.skip("a software device takes a second to compile each of some 30 kernels")
    for tile in candidates(device, Product(form, "Q4_K+Q6_K", 3072, 2048, 512)):
        if isinstance(tile, MatvecTile):
            check_pair(kernels, rng, (Q4_K, Q6_K), with_rows_tile(tile), tokens=3)
        else:
            table = replace(NARROW, matmul=MatmulTable(((1, tile),)))
            check_pair(kernels, rng, (Q4_K, Q6_K), table, tokens=tile.tokens + 3)


@pytest.mark.slow
def test_tiles_in_slices(kernels: Kernels, rng: np.random.Generator) -> None:
    """As those of decode steps on a GPU: workgroup memory of both is the same."""
    tile = MatmulTile(16, 16, 4, runs=8, slices=8, ahead=2)
    table = replace(NARROW, matmul=MatmulTable(((1, tile),)))
    check_pair(kernels, rng, (Q4_K, Q6_K), table, tokens=9)


@pytest.mark.parametrize("tokens", [3, 20])
def test_the_texts_of_all_types_go_together(
    device: Device, kernels: Kernels, rng: np.random.Generator, tokens: int
) -> None:
    """Each type with the next one, first and second: valid modules, which is not all that a driver asks for."""
    table, y = replace(NARROW, paired=True), device.empty((tokens, 16))
    count, x = device.empty((1,), "u32"), linear.activations(device, tokens, 512)
    matrices = [
        upload_matrix(device, [(random_rows(rng, 16, 512, kind), kind)]) for kind in QUANT_TYPES
    ]
    made = 0
    for pair in pairwise([*matrices, matrices[0]]):
        for members in (pair, pair[::-1]):
            if can_pair(table, *members, tokens):
                products = [Member(weight, None, y, 0) for weight in members]
                (step,) = matmul_pair(kernels, *products, x, rows=tokens, count=count, table=table)
                device.wgpu.create_shader_module(code=step.kernel.source)
                made += 1
    assert made >= 2 * len(QUANT_TYPES) - 4  # but for tiles of Q2_K beside others


def test_what_cannot_be_one_dispatch(device: Device, rng: np.random.Generator) -> None:
    x = quantized(device, rng.standard_normal((20, 512), np.float32))[0]
    one, two, minima, whole = (
        upload_matrix(device, [(random_rows(rng, 16, 512, kind), kind)])
        for kind in (Q4_K, Q6_K, GGMLType.Q2_K, GGMLType.F16)
    )
    table = replace(NARROW, paired=True)
    assert can_pair(table, one, two, 1) and can_pair(table, one, two, 20)
    assert not can_pair(NARROW, one, two, 1)
    assert not can_pair(table, one, whole, 1)  # it reads other activations
    assert not can_pair(table, one, replace(two, parts=two.parts * 2), 1)
    assert can_pair(table, one, minima, 1)
    assert not can_pair(table, one, minima, 20)  # its tile is laid out in another way

    y, count = device.empty((20, 16)), device.empty((1,), "u32")
    members = (Member(one, None, y, 0), Member(two, None, y, 0))
    name = "max-storage-buffers-per-shader-stage"

    def dispatches(**limits: Any) -> int:
        kernels = Kernels(limited(device, **limits))
        return len(matmul_pair(kernels, *members, x, rows=1, count=count, table=table))

    assert dispatches(limits=device.limits | {name: 7}) == 1  # 2 × quants, scales; 2 of x; count, y
    assert dispatches(limits=device.limits | {name: 6}) == 2
    assert dispatches(max_grid=4) == 1 and dispatches(max_grid=3) == 2


def test_a_pair_has_a_measured_tile_of_its_own() -> None:
    """That of one of its types was not tried with the other."""
    one = WeightMatrix(Q4_K, 2560, 2048, ())
    two = replace(one, type=Q6_K, rows=512)
    pair, odd, other = WeightPair(one, two), MatvecTile(1, 2, 64), MatmulTile(16, 32, 4)
    assert str(Product.of("rows", pair, 1)) == "rows Q4_K+Q6_K 3072×2048, 1 tokens"
    for form, tokens, tile in (("rows", 1, odd), ("matmul", 32, other)):
        rule = NARROW.tile_for(form, pair, tokens)
        for weight, expected in ((one, rule), (two, rule), (pair, tile)):
            table = NARROW.with_tiles({Product.of(form, weight, tokens): tile})
            assert table.tile_for(form, pair, tokens) == expected


@pytest.mark.parametrize("tokens", [1, 32])
def test_a_plan_has_one_dispatch_less_for_each_pair(
    device: Device, tmp_path: Path, rng: np.random.Generator, tokens: int
) -> None:
    """A software device has nothing to wait for, and keeps them apart."""
    path = mixed_model(tmp_path / "m.gguf", rng)
    together = layers_of(as_gpu(device), path, tokens)
    assert sum(step.kernel.key.second is not None for step in together) == 2
    apart = layers_of(as_gpu(device, "paired"), path, tokens)
    assert len(apart) - len(together) == 2
    software = limited(device, info=replace(device.info, kind="CPU"))
    assert not any(step.kernel.key.second for step in layers_of(software, path, tokens))


def test_one_bias_of_two_is_two_dispatches(kernels: Kernels, rng: np.random.Generator) -> None:
    device, x = kernels.device, rng.standard_normal((1, 256), np.float32)
    table = replace(NARROW, paired=True)
    bias = device.upload(rng.standard_normal(21, np.float32))
    members = []
    for kind, rows, added in ((Q4_K, 43, None), (Q6_K, 21, bias)):
        weight = upload_matrix(device, [(random_rows(rng, rows, 256, kind), kind)])
        members.append(Member(weight, added, device.empty((1, rows)), 0))
    q8, _ = quantized(device, x)
    count = device.upload(np.array([1], np.uint32))
    assert len(matmul_pair(kernels, *members, q8, rows=1, count=count, table=table)) == 2
