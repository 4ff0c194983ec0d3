"""silu_mul against its NumPy twin of each activation."""

from __future__ import annotations

import numpy as np
import pytest

from emberd.reference.transformer import ACTIVATIONS
from emberd.runtime import ops
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
