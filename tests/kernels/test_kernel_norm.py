"""rms_norm and rms_norm_add against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from emberd.reference import ops as reference
from emberd.runtime import ops
from emberd.runtime.device import Device
from emberd.runtime.kernel import Kernels, run_once
from tolerance import check

pytestmark = pytest.mark.device


@pytest.mark.parametrize("width", [1, 63, 64, 65, 257, 1000])
def test_rms_norm_matches_reference(
    device: Device, kernels: Kernels, rng: np.random.Generator, width: int
) -> None:
    x = rng.standard_normal((3, width), np.float32) * 4
    weight = rng.standard_normal(width, np.float32)
    y = device.upload(np.full_like(x, np.nan))
    run_once(
        device,
        [
            ops.rms_norm(
                kernels, device.upload(x), device.upload(weight), y, rows=3, width=width, eps=1e-5
            )
        ],
    )
    check(device.read(y), reference.rms_norm(x, weight, 1e-5), "float")


def test_rms_norm_add_adds_to_the_residual(
    device: Device, kernels: Kernels, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((5, 131), np.float32)
    weight = rng.standard_normal(131, np.float32)
    before = rng.standard_normal((5, 131), np.float32)
    residual = device.upload(before)
    op = ops.rms_norm_add(
        kernels, device.upload(x), device.upload(weight), residual, rows=5, width=131, eps=1e-6
    )
    run_once(device, [op])
    check(device.read(residual), before + reference.rms_norm(x, weight, 1e-6), "float")


def test_rms_norm_of_zeros_is_zero(device: Device, kernels: Kernels) -> None:
    x = device.empty((1, 70))
    y = device.upload(np.full((1, 70), np.nan, np.float32))
    weight = device.upload(np.ones(70, np.float32))
    run_once(device, [ops.rms_norm(kernels, x, weight, y, rows=1, width=70, eps=1e-5)])
    assert not device.read(y).any()


def test_rms_norm_of_chosen_rows(
    device: Device, kernels: Kernels, rng: np.random.Generator
) -> None:
    """A row may be chosen twice; a negative index of an idle row reads nothing out of bounds."""
    x = rng.standard_normal((7, 200), np.float32)
    weight = rng.standard_normal(200, np.float32)
    indices = np.array([6, -1, 0, 6], np.int32)
    y = device.upload(np.full((4, 200), np.nan, np.float32))
    tensors = (device.upload(x), device.upload(weight), y, device.upload(indices))
    run_once(device, [ops.rms_norm(kernels, *tensors, rows=4, width=200, eps=1e-5)])
    check(device.read(y), reference.rms_norm(x[np.maximum(indices, 0)], weight, 1e-5), "float")
