"""matmul: every tile that a table can pick, ragged and split over slices; and which one is picked."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GGMLType

from emberd.runtime.compose import shader_dir
from emberd.runtime.device import Device
from emberd.runtime.kernel import Kernels
from emberd.runtime.matmul import (
    MATMUL_TILES,
    MatmulTable,
    MatmulTile,
    default_matmul_table,
)
from emberd.runtime.weights import upload_matrix
from linear_cases import NARROW, QUANT_TYPES, check_product, limited, random_weights

pytestmark = pytest.mark.device

SLICED = MatmulTile(16, 16, 4, runs=4, slices=2, ahead=2)
"""The least tile with slices that reads ahead."""

TILES = [tile for _, tile in MATMUL_TILES]


@pytest.mark.parametrize(
    "kind",
    [GGMLType.Q4_K, GGMLType.Q6_K, GGMLType.Q2_K, GGMLType.Q5_1, GGMLType.BF16],
    ids=lambda kind: kind.name,
)
def test_slices_of_the_columns_add_up(
    device: Device, kernels: Kernels, rng: np.random.Generator, kind: GGMLType
) -> None:
    raw, floats = random_weights(rng, 37, kind)
    weight = upload_matrix(device, [(raw, kind)])
    table = dataclasses.replace(NARROW, matmul=MatmulTable(((1, SLICED),)))
    check_product(kernels, rng, weight, floats, tokens=21, live=18, table=table)


@pytest.mark.parametrize("kind", [GGMLType.Q6_K, GGMLType.F16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("tile", [*TILES, MatmulTile(16, 16, 4, 8, 8, 1)], ids=str)
def test_every_tile(
    device: Device, kernels: Kernels, rng: np.random.Generator, kind: GGMLType, tile: MatmulTile
) -> None:
    """With rows, tokens and columns that end within a tile."""
    if not tile.fits(device):
        pytest.skip(f"{device.name} has {device.max_workgroup_bytes} bytes of workgroup memory")
    raw, floats = random_weights(rng, tile.rows + 6, kind)
    weight = upload_matrix(device, [(raw, kind)])
    table = dataclasses.replace(NARROW, matmul=MatmulTable(((1, tile),)))
    tokens = tile.tokens + 3
    check_product(
        kernels, rng, weight, floats, tokens=tokens, live=tokens - 1, bias=True, table=table
    )


@pytest.mark.parametrize("kind", QUANT_TYPES, ids=lambda kind: kind.name)
def test_two_int8_an_activation(
    device: Device, kernels: Kernels, rng: np.random.Generator, kind: GGMLType
) -> None:
    """Through tiles whose last columns are fewer than they take, and through matvec."""
    raw, floats = random_weights(rng, 37, kind)
    weight = upload_matrix(device, [(raw, kind)])
    tiled = dataclasses.replace(NARROW, matmul=MatmulTable(((1, SLICED),)))
    for tokens, table in ((21, tiled), (3, NARROW)):
        live = tokens - 1
        check_product(
            kernels, rng, weight, floats, tokens=tokens, live=live, table=table, fine=True
        )


def cells_in_the_kernel(tile: MatmulTile) -> int:
    """Those of x and of weights in a plane, by the constants in the kernel's text."""
    text = (shader_dir() / "matmul.wgsl").read_text(encoding="utf-8")
    known = {"TILE_TOKENS": tile.tokens, "TILE_ROWS": tile.rows, "RUNS": tile.runs}
    functions = {"select": lambda no, yes, when: yes if when else no, "max": max}
    for name in ("X_STRIDE", "W_STRIDE", "W_ROOM", "W_APART", "X_PLANE", "W_PLANE"):
        (value,) = re.findall(rf"^const {name} = (.*?);", text, re.MULTILINE)
        known[name] = eval(re.sub(r"(?<=\d)u", "", value).replace("/", "//"), functions, known)
    return known["X_PLANE"] + known["W_PLANE"]


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_a_tile_needs_the_memory_that_it_says(tile: MatmulTile) -> None:
    assert tile.memory == cells_in_the_kernel(tile) * (8 * 16 + 48)


def test_a_device_of_16_kib_has_tiles() -> None:
    """WebGPU's least."""
    small = [tile for tile in TILES if tile.memory <= 16384]
    assert {tile.tokens for tile in small} >= {32, 64}


def test_tiles_that_a_device_cannot_hold_are_left_out(device: Device) -> None:
    table = default_matmul_table(limited(device, max_workgroup_bytes=16384, max_workgroup_size=128))
    assert table.tiles and all(tile.memory <= 16384 for _, tile in table.tiles)
    assert all(tile.workgroup <= 128 for _, tile in table.tiles)


def test_the_first_tile_with_enough_workgroups_is_taken() -> None:
    large, small = MatmulTile(64, 64, 8), MatmulTile(32, 16, 4, runs=4, slices=2)
    table = MatmulTable(((8, large), (4, small)))
    assert table.tile(128, 256) is large
    assert table.tile(128, 192) is small
    assert table.tile(32, 4096) is small  # the large one would be half empty
    assert table.tile(33, 512) is large
    assert table.tile(4, 16) is small
