"""Every tile that the tuner may pick, in every form, for a software device and for GPUs with and without subgroups."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GGMLType

from emberd.runtime.device import Device
from emberd.runtime.kernel import Kernels
from emberd.runtime.linear import candidates, default_table
from emberd.runtime.matmul import MATMUL_TILES, MatmulTable, matmul_tiles
from emberd.runtime.matvec import MatvecTile, matvec_tiles
from emberd.runtime.products import Form, Product
from emberd.runtime.weights import upload_matrix
from fused_cases import check_gate_up, check_output
from linear_cases import (
    ALL_TYPES,
    NARROW,
    QUANT_TYPES,
    check_product,
    limited,
    random_weights,
    with_rows_tile,
    with_subgroups,
)

pytestmark = pytest.mark.device

KINDS = ("software", "subgroups", "plain")
FORMS: tuple[Form, ...] = ("rows", "output", "gate_up")
by_kind = pytest.mark.parametrize("kind", KINDS)


def kernels_of(device: Device, kind: str) -> Kernels:
    """This device, as one of a kind."""
    other = limited(device)
    other.info = replace(device.info, kind="CPU" if kind == "software" else "DiscreteGPU")
    if kind == "subgroups":
        return Kernels(with_subgroups(other))
    other.subgroup_size = None
    return Kernels(other)


def check_tile(
    kernels: Kernels,
    rng: np.random.Generator,
    form: Form,
    tile: MatvecTile,
    kind: GGMLType,
    fine: bool,
) -> None:
    """With rows that end within a tile where the form allows it, and a token that is not live."""
    if form == "rows":
        rows = max(1, 32 // tile.tile_rows) * tile.tile_rows + 6
        raw, floats = random_weights(rng, rows, kind)
        weight = upload_matrix(kernels.device, [(raw, kind)])
        table = with_rows_tile(tile)
        check_product(kernels, rng, weight, floats, tokens=3, live=2, table=table, fine=fine)
    elif form == "output":
        table = replace(NARROW.matvec, output=((1, 1, tile),))
        check_output(kernels, rng, kind, table, rows=2 * tile.tile_rows, fine=fine)
    else:
        table = replace(NARROW.matvec, gate_up=((1, tile),))
        check_gate_up(kernels, rng, kind, table, width=tile.tile_rows, fine=fine)


def matvec_cases(device: Device) -> Iterator[tuple[Form, MatvecTile]]:
    for form in FORMS:
        for tile in matvec_tiles(device, form):
            yield form, tile


@by_kind
def test_every_matvec_tile(device: Device, rng: np.random.Generator, kind: str) -> None:
    """One type of each layout in turn; a real GPU takes all of them, below."""
    kernels = kernels_of(device, kind)
    types = [GGMLType.Q4_K, GGMLType.Q6_K, GGMLType.Q5_0]
    for index, (form, tile) in enumerate(matvec_cases(kernels.device)):
        check_tile(kernels, rng, form, tile, types[index % len(types)], bool(rng.integers(2)))


def _needs_gpu(device: Device) -> None:
    if device.info.is_software:
        pytest.skip("a software device takes a second to compile each of some 700 kernels")


@pytest.mark.slow
@by_kind
@pytest.mark.parametrize("type_", ALL_TYPES, ids=lambda type_: type_.name)
def test_every_matvec_tile_of_every_type(
    device: Device, rng: np.random.Generator, kind: str, type_: GGMLType
) -> None:
    _needs_gpu(device)
    kernels = kernels_of(device, kind)
    for form, tile in matvec_cases(kernels.device):
        if form == "rows" or type_ in QUANT_TYPES:
            check_tile(kernels, rng, form, tile, type_, False)
        if type_ in QUANT_TYPES:
            check_tile(kernels, rng, form, tile, type_, True)


@pytest.mark.slow
@pytest.mark.parametrize("type_", ALL_TYPES, ids=lambda type_: type_.name)
def test_every_matmul_tile_of_every_type(
    device: Device, kernels: Kernels, rng: np.random.Generator, type_: GGMLType
) -> None:
    _needs_gpu(device)
    forms = (False, True) if type_ in QUANT_TYPES else (False,)
    for tile, fine in itertools.product(matmul_tiles(device, "matmul"), forms):
        raw, floats = random_weights(rng, tile.rows + 6, type_)
        weight = upload_matrix(device, [(raw, type_)])
        table = replace(NARROW, matmul=MatmulTable(((1, tile),)))
        tokens = tile.tokens + 3
        check_product(
            kernels,
            rng,
            weight,
            floats,
            tokens=tokens,
            live=tokens - 1,
            accumulate=True,
            table=table,
            fine=fine,
        )


@by_kind
def test_the_tuner_picks_among_the_tested_tiles_only(device: Device, kind: str) -> None:
    """And every tile of the rules is one of them."""
    kind_of_device = kernels_of(device, kind).device
    for form in FORMS:
        picked = candidates(kind_of_device, Product(form, "Q4_K", 1 << 16, 4096, 8))
        assert picked == matvec_tiles(kind_of_device, form)
    tested = {form: {*matmul_tiles(kind_of_device, form)} for form in ("matmul", "gate_up")}
    assert {*candidates(kind_of_device, Product("matmul", "Q4_K", 4096, 4096, 512))} <= tested[
        "matmul"
    ]
    joint = {*candidates(kind_of_device, Product("gate_up", "Q4_K", 4096, 4096, 512))}
    assert joint <= tested["gate_up"] | {*matvec_tiles(kind_of_device, "gate_up")}
    rules = default_table(kind_of_device)
    assert {tile for _, _, tile in rules.matvec.rows} <= {*matvec_tiles(kind_of_device, "rows")}
    assert {tile for _, _, tile in rules.matvec.output} <= {*matvec_tiles(kind_of_device, "output")}
    assert {tile for _, tile in rules.matvec.gate_up} <= {*matvec_tiles(kind_of_device, "gate_up")}
    assert {tile for _, tile in rules.matmul.tiles} <= tested["matmul"]
    assert {tile for _, tile in rules.matmul.gate_up} <= tested["gate_up"]


@by_kind
def test_a_fused_form_gets_only_tiles_that_divide_its_rows(device: Device, kind: str) -> None:
    kind_of_device = kernels_of(device, kind).device
    for form in FORMS[1:]:
        for tile in candidates(kind_of_device, Product(form, "Q4_K", 64, 256, 1)):
            assert isinstance(tile, MatvecTile) and 64 % tile.tile_rows == 0


def test_matmul_tiles_that_would_be_half_empty_are_left_out(device: Device) -> None:
    for tile in candidates(device, Product("matmul", "Q4_K", 4096, 4096, 16)):
        assert tile not in {tile for _, tile in MATMUL_TILES if tile.tokens >= 32}
