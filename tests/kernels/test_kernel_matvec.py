"""matvec with what follows it in one dispatch: a pending norm, the residual, the gated activation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GGMLType
from numpy.typing import NDArray

from emberd.reference import ops as reference
from emberd.runtime import linear, matvec
from emberd.runtime.activations import PendingNorm, QuantizedActivations, activations
from emberd.runtime.device import Device
from emberd.runtime.kernel import Kernels, run_once
from emberd.runtime.matvec import MatvecTable, MatvecTile
from emberd.runtime.weights import upload_matrix
from linear_cases import NARROW, QUANT_TYPES, columns, quantized, random_weights, with_subgroups
from tolerance import TOLERANCE, check

pytestmark = pytest.mark.device

Array = NDArray[Any]
EPS = 1e-5
by_type = pytest.mark.parametrize("kind", QUANT_TYPES, ids=lambda kind: kind.name)


def pending(
    device: Device, rng: np.random.Generator, tokens: int, width: int
) -> tuple[QuantizedActivations, Array]:
    """Activations whose norm lacks its 1 / rms, and the floats that they stand for with it."""
    hidden = rng.standard_normal((tokens, width), np.float32) * 3
    weight = rng.standard_normal(width, np.float32)
    made, rounded = quantized(device, hidden * weight)
    runs = (hidden.astype(np.float32) ** 2).reshape(tokens, -1, linear.QUANT_RUN).sum(axis=2)
    rms = np.sqrt((hidden.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + EPS)
    return replace(made, norm=PendingNorm(device.upload(runs), EPS)), rounded / rms


def poisoned(
    device: Device, rows: int, width: int, eps: float | None = None
) -> QuantizedActivations:
    out = activations(device, rows, width, eps)
    device.write(out.q, np.full(out.q.shape, 0x55555555, np.uint32))
    device.write(out.scales, np.full(out.scales.shape, np.nan, np.float32))
    if out.norm is not None:
        device.write(out.norm.squares, np.full(out.norm.squares.shape, np.nan, np.float32))
    return out


def check_quantized(device: Device, out: QuantizedActivations, expected: Array) -> None:
    """The first rows are `expected` in int8 as reference quantize_q8 rounds it; the others are poisoned."""
    live = len(expected)
    q, scales = device.read(out.q).view(np.int8), device.read(out.scales)
    assert (q[live:] == 0x55).all() and np.isnan(scales[live:]).all()
    if live == 0:
        return
    q, scales = q[:live], scales[:live]
    _, scale = reference.quantize_q8(expected.astype(np.float32))
    check(scales[:, 0::2, 0], scale, "float")
    np.testing.assert_array_equal(scales[:, 1::2, 0], scales[:, 0::2, 0])
    sums = q.reshape(live, -1, 16).sum(axis=2, dtype=np.int32)
    check(scales[:, :, 1], sums * scales[:, :, 0], "float")
    exact = expected / np.repeat(scale, linear.QUANT_RUN, axis=1)
    assert np.abs(q - exact).max() <= 0.5 + 127 * TOLERANCE["float"]


def check_output(
    kernels: Kernels,
    rng: np.random.Generator,
    kind: GGMLType,
    table: MatvecTable,
    tokens: int = 3,
    live: int = 2,
    rows: int = 64,
) -> None:
    device = kernels.device
    raw, floats = random_weights(rng, rows, kind)
    weight = upload_matrix(device, [(raw, kind)])
    x, rounded = quantized(device, rng.standard_normal((tokens, columns(kind)), np.float32))
    before = rng.standard_normal((tokens, rows), np.float32)
    hidden, norm_weight = device.upload(before), rng.standard_normal(rows, np.float32)
    out = poisoned(device, tokens, rows, EPS)
    step = matvec.output_quantize(
        kernels,
        weight,
        x,
        hidden,
        device.upload(norm_weight),
        out,
        rows=tokens,
        count=device.upload(np.array([live], np.uint32)),
        table=table,
    )
    run_once(device, [step])
    after = device.read(hidden)
    np.testing.assert_array_equal(after[live:], before[live:])
    twin = before.astype(np.float64) + rounded.astype(np.float64) @ floats.T.astype(np.float64)
    check(after[:live], twin[:live], "int8_twin")
    check_quantized(device, out, after[:live] * norm_weight)
    assert out.norm is not None
    squares = device.read(out.norm.squares)
    assert np.isnan(squares[live:]).all()
    runs = (after[:live].astype(np.float64) ** 2).reshape(live, rows // 32, 32).sum(axis=2)
    check(squares[:live], runs, "float")


def check_gate_up(
    kernels: Kernels,
    rng: np.random.Generator,
    kind: GGMLType,
    table: MatvecTable,
    tokens: int = 3,
    live: int = 2,
    width: int = 64,
    activation: Any = "silu",
) -> None:
    device = kernels.device
    made = [random_weights(rng, width, kind) for _ in range(2)]
    weight = upload_matrix(device, [(raw, kind) for raw, _ in made])
    x, normed = pending(device, rng, tokens, columns(kind))
    out = poisoned(device, tokens, width)
    step = matvec.gate_up_quantize(
        kernels,
        weight,
        x,
        out,
        rows=tokens,
        count=device.upload(np.array([live], np.uint32)),
        activation=activation,
        table=table,
    )
    run_once(device, [step])
    gate, up = (normed[:live].astype(np.float64) @ floats.T for _, floats in made)
    product = {"silu": reference.silu_mul, "gelu": reference.gelu_mul}[activation]
    check_quantized(device, out, product(gate.astype(np.float32), up.astype(np.float32)))


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
    table = replace(NARROW.matvec, output=((1, tile),), gate_up=((1, tile),))
    check_output(kernels, rng, GGMLType.Q4_K, table, rows=128)
    check_gate_up(kernels, rng, GGMLType.Q4_K, table, width=96)


def test_fused_forms_by_subgroups(device: Device, rng: np.random.Generator) -> None:
    kernels = Kernels(with_subgroups(device))
    lanes = kernels.device.subgroup_size or 0
    tile = MatvecTile(lanes, 4, 16 * lanes, 2)
    table = replace(NARROW.matvec, output=((1, tile),), gate_up=((1, tile),))
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
