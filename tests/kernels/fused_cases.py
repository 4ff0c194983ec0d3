"""What the tests of fused products share: a product with what follows it, checked against NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as GGMLType
from numpy.typing import NDArray

from emberd.reference import ops as reference
from emberd.runtime import matvec
from emberd.runtime.activations import PendingNorm, QuantizedActivations
from emberd.runtime.device import Device
from emberd.runtime.kernel import Kernels, run_once
from emberd.runtime.matvec import MatvecTable
from emberd.runtime.weights import upload_matrix
from linear_cases import check_quantized, columns, poisoned, quantized, random_weights
from tolerance import check

Array = NDArray[Any]
EPS = 1e-5


def pending(
    device: Device, rng: np.random.Generator, tokens: int, width: int, fine: bool = False
) -> tuple[QuantizedActivations, Array]:
    """Activations whose norm lacks its 1 / rms, and the floats that they stand for with it."""
    hidden = rng.standard_normal((tokens, width), np.float32) * 3
    weight = rng.standard_normal(width, np.float32)
    made, rounded = quantized(device, hidden * weight, fine=fine)
    runs = (hidden.astype(np.float32) ** 2).reshape(tokens, -1, 16).sum(axis=2)
    rms = np.sqrt((hidden.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + EPS)
    return replace(made, norm=PendingNorm(device.upload(runs), EPS)), rounded / rms


def check_output(
    kernels: Kernels,
    rng: np.random.Generator,
    kind: GGMLType,
    table: MatvecTable,
    tokens: int = 3,
    live: int = 2,
    rows: int = 64,
    fine: bool = False,
) -> None:
    device = kernels.device
    raw, floats = random_weights(rng, rows, kind)
    weight = upload_matrix(device, [(raw, kind)])
    drawn = rng.standard_normal((tokens, columns(kind)), np.float32)
    x, rounded = quantized(device, drawn, fine=fine)
    before = rng.standard_normal((tokens, rows), np.float32)
    hidden, norm_weight = device.upload(before), rng.standard_normal(rows, np.float32)
    out = poisoned(device, tokens, rows, EPS, fine=fine)
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
    fine: bool = False,
) -> None:
    device = kernels.device
    made = [random_weights(rng, width, kind) for _ in range(2)]
    weight = upload_matrix(device, [(raw, kind) for raw, _ in made])
    x, normed = pending(device, rng, tokens, columns(kind), fine)
    out = poisoned(device, tokens, width, fine=fine)
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
