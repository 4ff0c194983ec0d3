"""Activations to int8: alone, after RMS norm, after the gated activation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from emberd.reference import ops as reference
from emberd.reference.transformer import ACTIVATIONS
from emberd.runtime import linear
from emberd.runtime.device import Device
from emberd.runtime.kernel import Kernels, run_once
from linear_cases import check_quantized, limited, poisoned, with_subgroups

pytestmark = pytest.mark.device

WIDTHS = [32, 96, 2080]
ROWS = 3


@pytest.fixture(params=[(16, False), (32, False), (16, True), (32, True)], ids=str)
def form(request: pytest.FixtureRequest) -> dict[str, Any]:
    """How many values share a scale, and whether each has a second int8."""
    group, fine = request.param
    return {"group": group, "fine": fine}


@pytest.mark.parametrize("width", WIDTHS)
def test_quantize_q8(
    device: Device, kernels: Kernels, rng: np.random.Generator, width: int, form: dict[str, Any]
) -> None:
    x = rng.standard_normal((ROWS, width), np.float32) * 3
    x[1, :32] = 0  # a run of zeros has scale 0
    out = poisoned(device, ROWS, width, **form)
    run_once(device, [linear.quantize_q8(kernels, device.upload(x), out, rows=ROWS, width=width)])
    check_quantized(device, out, x)
    assert (device.read(out.scales)[1, :2] == 0).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_quantize(
    device: Device, kernels: Kernels, rng: np.random.Generator, width: int, form: dict[str, Any]
) -> None:
    x = rng.standard_normal((ROWS, width), np.float32) * 3
    weight = rng.standard_normal(width, np.float32)
    out = poisoned(device, ROWS, width, **form)
    step = linear.rms_norm_quantize(
        kernels, device.upload(x), device.upload(weight), out, rows=ROWS, width=width, eps=1e-5
    )
    run_once(device, [step])
    check_quantized(device, out, reference.rms_norm(x, weight, 1e-5))


def test_rms_norm_quantize_of_chosen_rows(
    device: Device, kernels: Kernels, rng: np.random.Generator, form: dict[str, Any]
) -> None:
    x = rng.standard_normal((5, 96), np.float32)
    weight = rng.standard_normal(96, np.float32)
    indices = np.array([4, 0, 4], np.int32)
    out = poisoned(device, ROWS, 96, **form)
    tensors = (device.upload(x), device.upload(weight), out, device.upload(indices))
    step = linear.rms_norm_quantize(kernels, *tensors, rows=ROWS, width=96, eps=1e-5)
    run_once(device, [step])
    check_quantized(device, out, reference.rms_norm(x[indices], weight, 1e-5))


@pytest.mark.parametrize("width", [32, 2080, 4128, 16416])
def test_rms_norm_quantize_by_subgroups(
    device: Device, rng: np.random.Generator, form: dict[str, Any], width: int
) -> None:
    """One quad of a row to a lane, several, and more than a lane holds, which the other kernel takes."""
    kernels = Kernels(with_subgroups(device))
    x = rng.standard_normal((ROWS + 1, width), np.float32) * 3
    x[2, -32:] = 0
    weight = rng.standard_normal(width, np.float32)
    indices = np.array([3, 0, 2], np.int32) if width == 2080 else None
    out = poisoned(device, ROWS, width, **form)
    step = linear.rms_norm_quantize(
        kernels,
        device.upload(x),
        device.upload(weight),
        out,
        None if indices is None else device.upload(indices),
        rows=ROWS,
        width=width,
        eps=1e-5,
    )
    quads, subgroup = width // 4, kernels.device.subgroup_size or 0
    assert (step.kernel.key.name == "rms_norm_quantize") == (
        quads > 4 * device.max_workgroup_size or subgroup % 8 != 0
    )
    run_once(device, [step])
    check_quantized(
        device, out, reference.rms_norm(x[:ROWS] if indices is None else x[indices], weight, 1e-5)
    )


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_silu_mul_quantize(
    device: Device,
    kernels: Kernels,
    rng: np.random.Generator,
    width: int,
    activation: Any,
    form: dict[str, Any],
) -> None:
    gate_up = rng.standard_normal((ROWS, 2 * width), np.float32) * 3
    out = poisoned(device, ROWS, width, **form)
    step = linear.silu_mul_quantize(
        kernels, device.upload(gate_up), out, rows=ROWS, width=width, activation=activation
    )
    run_once(device, [step])
    product = ACTIVATIONS[activation]
    check_quantized(device, out, product(gate_up[:, :width], gate_up[:, width:]))


def test_more_runs_than_the_grid_allows_are_folded(
    device: Device, rng: np.random.Generator, form: dict[str, Any]
) -> None:
    kernels = Kernels(limited(device, max_grid=3))
    width = 32 * 64 * 5
    x = rng.standard_normal((1, 2 * width), np.float32)
    out = poisoned(device, 1, width, **form)
    step = linear.silu_mul_quantize(
        kernels, device.upload(x), out, rows=1, width=width, activation="silu"
    )
    run_once(device, [step])
    check_quantized(device, out, reference.silu_mul(x[:, :width], x[:, width:]))
