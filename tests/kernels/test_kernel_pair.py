"""Products of two weight types in one dispatch give what they give alone."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GGMLType

from emberd.gguf.dequant import dequantize
from emberd.gguf.spec import open_model
from emberd.runtime import linear
from emberd.runtime.buffers import allocate
from emberd.runtime.device import Device, Tensor
from emberd.runtime.inputs import InputSizes, StepInputs
from emberd.runtime.kernel import Dispatch, Kernels, run_once
from emberd.runtime.kv_cache import allocate as allocate_cache
from emberd.runtime.linear import LinearTable, default_table
from emberd.runtime.matmul import MatmulTable, MatmulTile
from emberd.runtime.matvec import MatvecTile
from emberd.runtime.model import load_weights
from emberd.runtime.pair import Member, matmul_pair, pair_tile, paired
from emberd.runtime.transformer import Shape
from emberd.runtime.weights import WeightMatrix, upload_matrix
from fused_cases import pending
from linear_cases import NARROW, columns, limited, quantized, with_rows_tile, with_subgroups
from tiny_gguf import random_model, random_rows
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
    step = matmul_pair(kernels, *members, x, rows=tokens, count=count, table=table)
    assert step is not None
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
def test_tiles_in_slices(kernels: Kernels, rng: np.random.Generator) -> None:
    """As those of decode steps on a GPU: workgroup memory of both is the same."""
    tile = MatmulTile(16, 16, 4, runs=8, slices=8, ahead=2)
    table = replace(NARROW, matmul=MatmulTable(((1, tile),)))
    check_pair(kernels, rng, (Q4_K, Q6_K), table, tokens=9)


def test_what_cannot_be_one_dispatch(device: Device, rng: np.random.Generator) -> None:
    name = "max-storage-buffers-per-shader-stage"
    seven, six = (limited(device, limits=device.limits | {name: most}) for most in (7, 6))
    kernels, x = Kernels(device), quantized(device, rng.standard_normal((20, 512), np.float32))[0]
    one, two, minima, whole = (
        upload_matrix(device, [(random_rows(rng, 16, 512, kind), kind)])
        for kind in (Q4_K, Q6_K, GGMLType.Q2_K, GGMLType.F16)
    )
    y, count = device.empty((20, 16)), device.empty((1,), "u32")

    def pair(kernels: Kernels, second: WeightMatrix, tokens: int = 1) -> Dispatch | None:
        members = (Member(one, None, y, 0), Member(second, None, y, 0))
        return matmul_pair(kernels, *members, x, rows=tokens, count=count, table=NARROW)

    assert pair(kernels, two) is not None
    assert (
        pair(Kernels(seven), two) is not None
    )  # quants, scales of one, x and its scales, count, y
    assert pair(Kernels(six), two) is None
    assert pair(Kernels(limited(device, max_grid=3)), two) is None
    assert pair(kernels, minima) is not None
    assert pair(kernels, minima, 20) is None  # its tile is laid out in another way
    assert pair(kernels, whole) is None  # it reads other activations
    assert pair(kernels, replace(two, parts=two.parts * 2)) is None
    tall, short = (
        linear.matmul(kernels, one, x, y, rows=tokens, count=count, table=NARROW)[0]
        for tokens in (9, 20)
    )
    assert paired(kernels, tall, short) is None  # grids of another height


def test_a_pair_takes_the_rules_tile_of_all_its_rows(device: Device) -> None:
    """A measured one was tried with one of the types only."""
    other = limited(device)
    other.info = replace(device.info, kind="DiscreteGPU")
    rules = default_table(other)
    for tokens in (1, 4, 32, 512):
        tile = pair_tile(rules, 3072, tokens)
        few = tokens <= rules.matvec.tokens
        assert tile == (rules.matvec.rows_tile if few else rules.matmul.tile)(tokens, 3072)
    odd = MatvecTile(1, 2, 64)
    tuned = replace(rules, matvec=replace(rules.matvec, tuned=dict.fromkeys(["x"], odd)))
    assert pair_tile(tuned, 3072, 1) == pair_tile(rules, 3072, 1)


@pytest.mark.parametrize("tokens", [1, 32])
def test_a_plan_has_one_dispatch_less_for_each_layer_of_two_types(
    device: Device, tmp_path: Path, rng: np.random.Generator, tokens: int
) -> None:
    """No kernel is compiled for it. A software device has nothing to wait for, and keeps them apart."""
    mixed = {f"blk.{n}.attn_v.weight": (Q6_K, random_rows(rng, 128, 256, Q6_K)) for n in (0, 2)}
    path = random_model(tmp_path / "m.gguf", quant="Q4_K", layers=3, tensors=mixed)
    counts = {}
    for what in ("software", "paired", "left out"):
        other = copy.copy(device)
        other.info = replace(device.info, kind="CPU" if what == "software" else "DiscreteGPU")
        other.left_out = frozenset({"paired"} if what == "left out" else ())
        counts[what] = body_of(other, path, tokens)
    kernels = [step.kernel.key for step in counts["paired"]]
    assert sum(key.second is not None for key in kernels) == 2
    assert len(counts["left out"]) - len(counts["paired"]) == 2
    assert not any(step.kernel.key.second for step in counts["software"])


def body_of(device: Device, path: Path, tokens: int) -> list[Dispatch]:
    model = open_model(path)
    kernels, weights = Kernels(device), load_weights(device, model, 64)
    weights.uploads.wait()
    made = allocate(
        kernels,
        weights,
        allocate_cache(device, model.spec, 4, "f16"),
        default_table(device),
        max_tokens=tokens,
        max_rows=tokens,
        context_length=64,
    )
    model.close()
    sizes = InputSizes(tokens, tokens, tokens, 0)
    buffer = device.empty((StepInputs.words_needed(device, sizes),), "i32").buffer
    inputs = StepInputs(device, buffer, sizes)
    return made.transformer.body(inputs, Shape(tokens, tokens, 0))
