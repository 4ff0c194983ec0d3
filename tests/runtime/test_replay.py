"""Replaying a recording: both replayers, several steps in flight."""

from __future__ import annotations

import numpy as np
import pytest

from emberd.runtime.device import Device
from emberd.runtime.kernel import Kernels
from emberd.runtime.ops import rms_norm
from emberd.runtime.replay import HEAD, DirectReplayer, WrapperReplayer, record

pytestmark = pytest.mark.device


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("times", [1, HEAD + 3])  # short, and long enough to go in two parts
def test_steps_in_flight_come_back_in_order(
    device: Device, kernels: Kernels, rng: np.random.Generator, direct: bool, times: int
) -> None:
    width, eps = 37, 0.5
    x = rng.standard_normal((2, width)).astype(np.float32)
    weight = rng.standard_normal(width).astype(np.float32)
    a, b, w = device.upload(x), device.empty((2, width)), device.upload(weight)
    sizes = {"rows": 2, "width": width}
    there = rms_norm(kernels, a, w, b, eps=eps, **sizes)
    back = rms_norm(kernels, b, w, a, eps=eps, **sizes)
    recording = record(device, [there, back] * times, a)
    replayer = DirectReplayer(device, a.nbytes, 3) if direct else WrapperReplayer(device)
    step = device.upload(np.zeros(1, np.int32))
    values = np.zeros(1, np.int32)

    def norm(y: np.ndarray) -> np.ndarray:
        return y / np.sqrt(np.mean(y**2, axis=1, keepdims=True) + eps) * weight

    replayer.submit(recording, step, values)
    replayer.submit(recording, step, values)
    for number in range(5):
        values[0] = number
        replayer.submit(recording, step, values)
        for _ in range(2 * times):
            x = norm(x)
        out = replayer.collect().view(np.float32).reshape(x.shape)
        np.testing.assert_allclose(out, x, rtol=1e-4, atol=1e-6)
    replayer.collect()
    replayer.collect()
    values[0] = 5
    replayer.submit(recording, step, values)  # nothing is in flight
    for _ in range(2 * 3 * times):
        x = norm(x)
    out = replayer.collect().view(np.float32).reshape(x.shape)
    np.testing.assert_allclose(out, x, rtol=1e-4, atol=1e-6)
    replayer.close()
    assert device.read(step)[0] == 5
