"""matvec with what follows it in one dispatch: a pending norm, the residual, the gated activation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GGMLType

from emberd.runtime import linear, matvec
from emberd.runtime.device import Device
from emberd.runtime.kernel import Kernels, run_once
from emberd.runtime.matvec import MatvecTile
from emberd.runtime.weights import upload_matrix
from fused_cases import check_gate_up, check_output, pending
from linear_cases import NARROW, QUANT_TYPES, random_weights, with_subgroups
from tolerance import check

pytestmark = pytest.mark.device

by_type = pytest.mark.parametrize("kind", QUANT_TYPES, ids=lambda kind: kind.name)


@by_type
def test_the_residual_is_added_and_goes_on_in_int8(
    device: Device, kernels: Kernels, rng: np.random.Generator, kind: GGMLType
) -> None:
    check_output(kernels, rng, kind, NARROW.matvec)


@by_type
def test_gate_and_up_are_one_dispatch(
    device: Device, kernels: Kernels, rng: np.random.Generator, kind: GGMLType
) -> None:
    check_gate_up(kernels, rng, kind, NARROW.matvec)


@pytest.mark.parametrize(("tokens", "live"), [(1, 1), (2, 0), (8, 7), (13, 11)])
def test_fused_forms_take_any_number_of_tokens(
    device: Device, kernels: Kernels, rng: np.random.Generator, tokens: int, live: int
) -> None:
    table = replace(NARROW.matvec, tokens=32)
    check_output(kernels, rng, GGMLType.Q8_0, table, tokens, live)
    check_gate_up(kernels, rng, GGMLType.Q8_0, table, tokens, live, activation="gelu")


@pytest.mark.parametrize("tile", [MatvecTile(4, 2, 128, 2), MatvecTile(8, 4, 128, 4)])
def test_lanes_share_rows_in_fused_forms(
    device: Device, kernels: Kernels, rng: np.random.Generator, tile: MatvecTile
) -> None:
    """Tiles of 64 weight rows: two runs of the residual, one of the activation; units beyond the row's end."""
    table = replace(NARROW.matvec, output=((1, 1, tile),), gate_up=((1, tile),))
    check_output(kernels, rng, GGMLType.Q4_K, table, rows=128)
    check_gate_up(kernels, rng, GGMLType.Q4_K, table, width=96)


@pytest.mark.parametrize(
    ("times", "rows", "lanes"), [(1, 4, 16), (1, 2, 8), (2, 2, 32), (4, 4, 16)]
)
def test_fused_forms_by_subgroups(
    device: Device, rng: np.random.Generator, times: int, rows: int, lanes: int
) -> None:
    """A row's lanes are one subgroup or several; the least tile makes one group of 16 activations."""
    kernels = Kernels(with_subgroups(device))
    size = kernels.device.subgroup_size or 0
    tile = MatvecTile(times * size, rows, lanes * size, 2)
    wide = replace(tile, workgroup=2 * tile.workgroup) if tile.tile_rows < 32 else tile
    table = replace(NARROW.matvec, output=((1, 1, tile),), gate_up=((1, wide),))
    check_output(kernels, rng, GGMLType.Q6_K, table)
    check_gate_up(kernels, rng, GGMLType.Q6_K, table)


@pytest.mark.parametrize("tokens", [1, 5])
def test_products_finish_a_pending_norm(
    device: Device, kernels: Kernels, rng: np.random.Generator, tokens: int
) -> None:
    raw, floats = random_weights(rng, 19, GGMLType.Q4_K)
    weight = upload_matrix(device, [(raw, GGMLType.Q4_K)])
    x, normed = pending(device, rng, tokens, weight.cols)
    bias = rng.standard_normal(19, np.float32)
    y = device.upload(np.full((tokens, 19), np.nan, np.float32))
    steps = linear.matmul(
        kernels,
        weight,
        x,
        y,
        rows=tokens,
        count=device.upload(np.array([tokens], np.uint32)),
        bias=device.upload(bias),
        table=NARROW,
    )
    run_once(device, steps)
    check(device.read(y), normed @ floats.T.astype(np.float64) + bias, "int8_twin")


@pytest.mark.parametrize("tokens", [1, 5])
def test_products_take_given_rows_of_a_pending_norm(
    device: Device, kernels: Kernels, rng: np.random.Generator, tokens: int
) -> None:
    """As the logits of those tokens of a step that are sampled."""
    raw, floats = random_weights(rng, 19, GGMLType.Q6_K)
    weight = upload_matrix(device, [(raw, GGMLType.Q6_K)])
    x, normed = pending(device, rng, 7, weight.cols)
    rows = rng.integers(0, 7, tokens).astype(np.int32)
    y = device.upload(np.full((tokens, 19), np.nan, np.float32))
    steps = linear.matmul(
        kernels,
        weight,
        replace(x, rows=device.upload(rows)),
        y,
        rows=tokens,
        count=device.upload(np.array([tokens], np.uint32)),
        table=NARROW,
    )
    run_once(device, steps)
    check(device.read(y), normed[rows] @ floats.T.astype(np.float64), "int8_twin")


def test_a_kernel_with_its_params_in_its_text_gives_the_same(
    device: Device, kernels: Kernels, rng: np.random.Generator
) -> None:
    raw, floats = random_weights(rng, 19, GGMLType.Q4_K)
    weight = upload_matrix(device, [(raw, GGMLType.Q4_K)])
    x, normed = pending(device, rng, 1, weight.cols)
    found = []
    for baked in (False, True):
        y = device.upload(np.full((1, 19), np.nan, np.float32))
        count = device.upload(np.array([1], np.uint32))
        steps = linear.matmul(kernels, weight, x, y, rows=1, count=count, table=NARROW)
        if baked:
            steps = [kernels.baked(step) for step in steps]
            assert not any(step.params or step.kernel.fields for step in steps)
        else:
            reads = weight.cols // 32  # of a lane that has a row to itself
            assert all(matvec.gains_by_baking(step) == (reads <= 8) for step in steps)
        run_once(device, steps)
        found.append(device.read(y))
    check(found[1], normed @ floats.T.astype(np.float64), "int8_twin")
    check(found[1], found[0], "float")


def test_matrices_in_parts_and_ragged_ones_are_not_fused(
    device: Device, rng: np.random.Generator
) -> None:
    raw, _ = random_weights(rng, 128, GGMLType.Q8_0)
    whole = upload_matrix(device, [(raw, GGMLType.Q8_0)])
    table = NARROW.matvec
    for can_fuse in (matvec.can_fuse_output, matvec.can_fuse_gate_up):
        assert can_fuse(table, whole, table.tokens)
        assert not can_fuse(table, whole, table.tokens + 1)
        assert not can_fuse(table, replace(whole, parts=whole.parts * 2), 1)
        assert not can_fuse(table, replace(whole, rows=80), 1)
        assert not can_fuse(table, replace(whole, type=GGMLType.F16), 1)
