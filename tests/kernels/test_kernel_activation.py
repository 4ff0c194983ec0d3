"""silu_mul against its NumPy twin of each activation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from emberd.reference.ops import quantize_q8
from emberd.reference.transformer import ACTIVATIONS, ACTIVATIONS_ALONE
from emberd.runtime import linear, ops
from emberd.runtime.device import Device
from emberd.runtime.kernel import Kernels, run_once
from tolerance import check

pytestmark = pytest.mark.device


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("width", [1, 127, 129])
def test_silu_mul_matches_reference(
    device: Device,
    kernels: Kernels,
    rng: np.random.Generator,
    activation: ops.Activation,
    width: int,
) -> None:
    gate, up = rng.standard_normal((2, 3, width), np.float32) * 5
    if width == 1:  # a row of one value near zero is all rounding
        gate, up = np.abs(gate), np.abs(up)
    gate_up = device.upload(np.concatenate([gate, up], axis=1))
    y = device.upload(np.full((3, width), np.nan, np.float32))
    run_once(
        device, [ops.silu_mul(kernels, gate_up, y, rows=3, width=width, activation=activation)]
    )
    check(device.read(y), ACTIVATIONS[activation](gate, up), "float")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_large_gates_do_not_overflow(
    device: Device, kernels: Kernels, activation: ops.Activation
) -> None:
    gate = np.array([[-1e4, -200, -90, 0, 90, 200, 1e4]], np.float32)
    gate_up = device.upload(np.concatenate([gate, np.ones_like(gate)], axis=1))
    y = device.upload(np.full_like(gate, np.nan))
    run_once(device, [ops.silu_mul(kernels, gate_up, y, rows=1, width=7, activation=activation)])
    most = np.maximum(gate, 0)
    if activation == "clamped_silu":
        most = 2 * np.minimum(most, 7)
    check(device.read(y), most, "float")


@pytest.mark.parametrize("activation", ACTIVATIONS_ALONE)
def test_without_gates_plain_and_to_int8(
    device: Device, kernels: Kernels, rng: np.random.Generator, activation: ops.Activation
) -> None:
    x = rng.standard_normal((3, 160), np.float32) * 3
    y, out = device.upload(np.full_like(x, np.nan)), linear.activations(device, 3, 160)
    how: dict[str, Any] = {"rows": 3, "width": 160, "activation": activation, "gated": False}
    given = device.upload(x)
    plain = ops.silu_mul(kernels, given, y, **how)
    int8 = linear.silu_mul_quantize(kernels, given, out, **how)
    run_once(device, [plain, int8])
    expected = ACTIVATIONS_ALONE[activation](x)
    check(device.read(y), expected, "float")
    scales = device.read(out.scales)[:, ::2, 0]
    check(scales, quantize_q8(expected)[1], "float")
    exact = (expected.reshape(3, 5, 32) / scales[..., None]).reshape(x.shape)
    assert np.abs(device.read(out.q).view(np.int8) - exact).max() < 0.51
