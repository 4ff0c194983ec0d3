"""rms_norm, rms_norm_add, layer_norm, add_positions and widen against NumPy."""

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


@pytest.mark.parametrize("width", [1, 65, 300])
def test_layer_norm_of_all_rows_and_of_given_ones(
    device: Device, kernels: Kernels, rng: np.random.Generator, width: int
) -> None:
    x = rng.standard_normal((5, width), np.float32) * 4 + 3
    weight, bias = rng.standard_normal((2, width), np.float32)
    rows = rng.integers(0, 5, 4).astype(np.int32)
    for indices, taken in ((None, x[:4]), (rows, x[rows])):
        y = device.upload(np.full((4, width), np.nan, np.float32))
        op = ops.layer_norm(
            kernels,
            device.upload(x),
            device.upload(weight),
            device.upload(bias),
            y,
            None if indices is None else device.upload(indices),
            rows=4,
            width=width,
            eps=1e-5,
        )
        run_once(device, [op])
        check(device.read(y), reference.layer_norm(taken, weight, bias, 1e-5), "float")


def test_means_are_of_the_values_ahead_of_the_zeros(
    device: Device, kernels: Kernels, rng: np.random.Generator
) -> None:
    """Zeros that make rows long enough for the products behind the norm count in no mean, and stay zeros."""
    width, count = 136, 131
    x = rng.standard_normal((3, width), np.float32) * 4 + 3
    weight, bias, before = rng.standard_normal((3, width), np.float32)
    for array in (x, weight[None], bias[None], before[None]):
        array[:, count:] = 0
    sizes = {"rows": 3, "width": width, "count": count, "eps": 1e-5}
    given, scales, shifts = device.upload(x), device.upload(weight), device.upload(bias)
    normed, centred = (device.upload(np.full_like(x, np.nan)) for _ in range(2))
    residual = device.upload(np.tile(before, (3, 1)))
    steps = [
        ops.rms_norm(kernels, given, scales, normed, **sizes),
        ops.layer_norm(kernels, given, scales, shifts, centred, **sizes),
        ops.rms_norm_add(kernels, given, scales, residual, **sizes),
    ]
    run_once(device, steps)
    x, weight, bias = x[:, :count], weight[:count], bias[:count]
    expected = reference.rms_norm(x, weight, 1e-5)
    found = [device.read(tensor) for tensor in (normed, centred, residual)]
    check(found[0][:, :count], expected, "float")
    check(found[1][:, :count], reference.layer_norm(x, weight, bias, 1e-5), "float")
    check(found[2][:, :count], before[:count] + expected, "float")
    assert not any(out[:, count:].any() for out in found)


def test_widen_writes_live_rows_and_nothing_behind_them(
    device: Device, kernels: Kernels, rng: np.random.Generator
) -> None:
    x, before = rng.standard_normal((4, 131), np.float32), rng.standard_normal((4, 136), np.float32)
    y, count = device.upload(before), device.upload(np.array([3], np.uint32))
    run_once(device, [ops.widen(kernels, device.upload(x), count, y)])
    before[:3, :131] = x[:3]
    np.testing.assert_array_equal(device.read(y), before)


def test_add_positions_leaves_rows_from_the_count_on(
    device: Device, kernels: Kernels, rng: np.random.Generator
) -> None:
    table, x = rng.standard_normal((9, 130), np.float32), rng.standard_normal((4, 130), np.float32)
    places = rng.integers(0, 9, 4).astype(np.int32)
    y, count = device.upload(x), device.upload(np.array([3], np.uint32))
    op = ops.add_positions(kernels, device.upload(table), device.upload(places), count, y, rows=4)
    run_once(device, [op])
    x[:3] += table[places[:3]]
    np.testing.assert_array_equal(device.read(y), x)
