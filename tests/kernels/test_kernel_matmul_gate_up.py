"""matmul with gate, up and the activation in one dispatch: every tile, against the reference and two dispatches."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GGMLType
from numpy.typing import NDArray

from emberd.reference.transformer import ACTIVATIONS
from emberd.runtime import linear
from emberd.runtime.activations import QUANT_RUN, activations
from emberd.runtime.device import Device
from emberd.runtime.kernel import Kernels, run_once
from emberd.runtime.linear import LinearTable
from emberd.runtime.matmul import MatmulTable, MatmulTile, default_matmul_table, matmul_tiles
from emberd.runtime.weights import WeightMatrix, upload_matrix
from linear_cases import (
    NARROW,
    QUANT_TYPES,
    check_quantized,
    columns,
    limited,
    poisoned,
    quantized,
    random_weights,
    with_subgroups,
)
from tolerance import check

pytestmark = pytest.mark.device

LEAST = MatmulTile(16, 64, 4)
SLICED = MatmulTile(16, 64, 8, runs=4, slices=4, ahead=2)


def table_of(tile: MatmulTile) -> LinearTable:
    return replace(NARROW, matmul=MatmulTable(((1, tile),), ((1, tile),)))


def matrix_of(
    device: Device, rng: np.random.Generator, kind: GGMLType, width: int
) -> tuple[WeightMatrix, list[NDArray[Any]]]:
    """Gate rows, then up rows, and the floats of both."""
    made = [random_weights(rng, width, kind) for _ in range(2)]
    return upload_matrix(device, [(raw, kind) for raw, _ in made]), [floats for _, floats in made]


def run(
    kernels: Kernels,
    weight: WeightMatrix,
    x: linear.QuantizedActivations,
    table: LinearTable,
    live: int,
    activation: Any,
) -> linear.QuantizedActivations:
    """What it rounds, from poison."""
    device, tokens = kernels.device, x.q.shape[0]
    out = poisoned(device, tokens, weight.rows // 2, group=QUANT_RUN, fine=x.fine)
    count = device.upload(np.array([live], np.uint32))
    assert linear.can_fuse_gate_up(table, weight, tokens)
    step = linear.gate_up_quantize(
        kernels, weight, x, out, rows=tokens, count=count, activation=activation, table=table
    )
    assert step.kernel.key.name == "matmul"
    run_once(device, [step])
    return out


def check_tile(
    kernels: Kernels,
    rng: np.random.Generator,
    tile: MatmulTile,
    kind: GGMLType,
    activation: Any = "silu",
    width: int = 96,
    dead: int = 2,
    fine: bool = False,
) -> None:
    """Against the reference, with tokens that end within a tile and `dead` ones that must stay as they were."""
    device, tokens = kernels.device, tile.tokens + 5
    live = tokens - dead
    weight, (gate, up) = matrix_of(device, rng, kind, width)
    drawn = rng.standard_normal((tokens, columns(kind)), np.float32)
    x, rounded = quantized(device, drawn, fine=fine)
    out = run(kernels, weight, x, table_of(tile), live, activation)
    halves = [
        (rounded[:live].astype(np.float64) @ part.T).astype(np.float32) for part in (gate, up)
    ]
    check_quantized(device, out, ACTIVATIONS[activation](halves[0], halves[1]))


@pytest.mark.parametrize("kind", [GGMLType.Q2_K, GGMLType.Q5_1], ids=lambda kind: kind.name)
def test_other_layouts(kernels: Kernels, rng: np.random.Generator, kind: GGMLType) -> None:
    """Of a type with a minimum for each 16 columns, and of one whose units are neighbouring columns."""
    check_tile(kernels, rng, LEAST, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", QUANT_TYPES, ids=lambda kind: kind.name)
def test_every_tile_of_every_type(
    device: Device, kernels: Kernels, rng: np.random.Generator, kind: GGMLType
) -> None:
    if device.info.is_software:
        pytest.skip("a software device takes a second to compile each of some 50 kernels")
    for tile, fine in itertools.product(matmul_tiles(device, "gate_up"), (False, True)):
        check_tile(kernels, rng, tile, kind, fine=fine)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(kernels: Kernels, rng: np.random.Generator, activation: Any) -> None:
    check_tile(kernels, rng, SLICED, GGMLType.Q8_0, activation)


@pytest.mark.parametrize("index", range(3))
def test_every_tile_that_may_be_picked(
    device: Device, kernels: Kernels, rng: np.random.Generator, index: int
) -> None:
    tiles = matmul_tiles(device, "gate_up")
    assert len(tiles) <= 3
    if index >= len(tiles):
        pytest.skip(f"{device.name} has {device.max_workgroup_bytes} bytes of workgroup memory")
    for fine in (False, True):
        check_tile(kernels, rng, tiles[index], GGMLType.Q4_K, fine=fine)


@pytest.mark.parametrize("tile", [LEAST, SLICED], ids=str)
def test_rounded_by_subgroups(device: Device, rng: np.random.Generator, tile: MatmulTile) -> None:
    for fine in (False, True):
        check_tile(Kernels(with_subgroups(device)), rng, tile, GGMLType.Q6_K, fine=fine)


@pytest.mark.parametrize("dead", [0, 4, 5, 21])
def test_any_number_of_tokens_is_live(
    kernels: Kernels, rng: np.random.Generator, dead: int
) -> None:
    """All of both tiles of tokens, one of the last, none of it, none at all."""
    if dead < LEAST.tokens + 5:
        check_tile(kernels, rng, LEAST, GGMLType.Q8_0, dead=dead, width=32)
        return
    device = kernels.device
    weight, _ = matrix_of(device, rng, GGMLType.Q8_0, 32)
    x, _ = quantized(device, rng.standard_normal((dead, columns(GGMLType.Q8_0)), np.float32))
    out = run(kernels, weight, x, table_of(LEAST), 0, "silu")
    check_quantized(device, out, np.empty((0, 32)))


def test_two_dispatches_give_the_same(
    device: Device, kernels: Kernels, rng: np.random.Generator
) -> None:
    """The same sums, activated and rounded in a kernel of its own: but for ties, which a last bit may turn."""
    tokens, width = SLICED.tokens + 5, 64
    weight, _ = matrix_of(device, rng, GGMLType.Q4_K, width)
    x, _ = quantized(device, rng.standard_normal((tokens, weight.cols), np.float32))
    table = table_of(SLICED)
    made = run(kernels, weight, x, table, tokens, "gelu")
    q, scales = device.read(made.q).view(np.int8), device.read(made.scales)
    y, out = device.empty((tokens, 2 * width)), activations(device, tokens, width)
    count = device.upload(np.array([tokens], np.uint32))
    steps = linear.matmul(kernels, weight, x, y, rows=tokens, count=count, table=table)
    steps.append(
        linear.silu_mul_quantize(kernels, y, out, rows=tokens, width=width, activation="gelu")
    )
    run_once(device, steps)
    difference = q.astype(np.int32) - device.read(out.q).view(np.int8)
    assert np.abs(difference).max() <= 1 and np.count_nonzero(difference) <= q.size // 1000
    check(scales[:, :, 0], device.read(out.scales)[:, :, 0], "float")


def test_what_stays_two_dispatches(device: Device, rng: np.random.Generator) -> None:
    weight, _ = matrix_of(device, rng, GGMLType.Q8_0, 32)
    table, many = table_of(LEAST), 20
    assert linear.can_fuse_gate_up(table, weight, many)
    for other in (
        replace(weight, type=GGMLType.F16),
        replace(weight, rows=32),
        replace(weight, parts=weight.parts * 2),
    ):
        assert not linear.can_fuse_gate_up(table, other, many)
    assert not linear.can_fuse_gate_up(NARROW, weight, many)  # no tile of 64 rows
    without = limited(device, left_out=frozenset({"fused"}))
    rules = replace(table, matmul=default_matmul_table(without))
    assert not linear.can_fuse_gate_up(rules, weight, many)
    assert linear.can_fuse_gate_up(
        replace(table, matmul=default_matmul_table(device)), weight, many
    )


def test_a_device_of_little_memory_has_a_tile_for_any_number_of_tokens(device: Device) -> None:
    small = limited(device, max_workgroup_bytes=16384)
    tiles = matmul_tiles(small, "gate_up")
    assert {tile.tokens for tile in tiles} == {32, 64}
    assert all(tile.rows == 64 for tile in tiles)
    table = default_matmul_table(small)
    assert table.tile(32, 4096, "gate_up").tokens == 32
    assert table.tile(512, 16384, "gate_up").tokens == 64
