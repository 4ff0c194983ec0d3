"""What the tests of fused products share: a product with what follows it, checked against NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as GGMLType
from numpy.typing import NDArray

from emberd.reference import ops as reference
from emberd.runtime import matvec
from emberd.runtime.activations import PendingNorm, QuantizedActivations, activations
from emberd.runtime.device import Device
from emberd.runtime.kernel import Kernels, run_once
from emberd.runtime.matvec import MatvecTable
from emberd.runtime.weights import upload_matrix
from linear_cases import columns, quantized, random_weights
from tolerance import TOLERANCE, check

Array = NDArray[Any]
EPS = 1e-5


def pending(
    device: Device, rng: np.random.Generator, tokens: int, width: int
) -> tuple[QuantizedActivations, Array]:
    """Activations whose norm lacks its 1 / rms, and the floats that they stand for with it."""
    hidden = rng.standard_normal((tokens, width), np.float32) * 3
    weight = rng.standard_normal(width, np.float32)
    made, rounded = quantized(device, hidden * weight)
    runs = (hidden.astype(np.float32) ** 2).reshape(tokens, -1, 16).sum(axis=2)
    rms = np.sqrt((hidden.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + EPS)
    return replace(made, norm=PendingNorm(device.upload(runs), EPS)), rounded / rms


def poisoned(
    device: Device, rows: int, width: int, eps: float | None = None
) -> QuantizedActivations:
    out = activations(device, rows, width, eps, group=16)  # what matvec is given
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
    _, scale = reference.quantize_q8(expected.astype(np.float32), out.group)
    check(scales[:, :, 0], scale, "float")
    sums = q.reshape(live, -1, 16).sum(axis=2, dtype=np.int32)
    check(scales[:, :, 1], sums * scales[:, :, 0], "float")
    divisor = np.where(scale == 0, 1, scale)  # a group of zeros: all its weights may be
    exact = expected / np.repeat(divisor, out.group, axis=1)
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
    runs = (after[:live].astype(np.float64) ** 2).reshape(live, rows // 16, 16).sum(axis=2)
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
