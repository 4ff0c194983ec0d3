"""layer_norm_add, gelu and attention_encoder against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from emberd.errors import DeviceError
from emberd.reference import encoder_ops as reference
from emberd.runtime import encoder_ops as ops
from emberd.runtime.device import Device
from emberd.runtime.kernel import Kernels, run_once
from linear_cases import limited
from tolerance import check

pytestmark = pytest.mark.device


@pytest.mark.parametrize("width", [1, 63, 64, 65, 384, 1000])
@pytest.mark.parametrize("given", [False, True])
def test_layer_norm_add_matches_reference(
    device: Device, kernels: Kernels, rng: np.random.Generator, width: int, given: bool
) -> None:
    x = rng.standard_normal((3, width), np.float32) + 5
    residual = rng.standard_normal((7 if given else 3, width), np.float32) * 4
    indices = np.array([6, 0, 6], np.int32)
    weight, bias = rng.standard_normal((2, width), np.float32)
    y = device.upload(np.full_like(x, np.nan))
    op = ops.layer_norm_add(
        kernels,
        device.upload(x),
        device.upload(residual),
        device.upload(weight),
        device.upload(bias),
        y,
        device.upload(indices) if given else None,
        rows=3,
        width=width,
        eps=1e-12 if width > 1 else 1e-3,
    )
    run_once(device, [op])
    other = residual[indices] if given else residual
    expected = reference.layer_norm_add(x, other, weight, bias, 1e-12 if width > 1 else 1e-3)
    check(device.read(y), expected, "float")


def test_gelu_matches_reference(device: Device, kernels: Kernels, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 131), np.float32) * 4
    x[0, :4] = [0.0, -30.0, 30.0, -0.0]
    y = device.upload(np.full_like(x, np.nan))
    run_once(device, [ops.gelu(kernels, device.upload(x), y, rows=3, width=131)])
    check(device.read(y), reference.gelu(x), "float")
    assert np.isfinite(device.read(y)).all()


@pytest.mark.parametrize(
    ("lengths", "num_heads", "head_dim"),
    [
        ([1], 1, 32),
        ([3, 1, 70], 3, 32),
        ([64, 65], 2, 64),
        ([5, 131], 2, 80),
        ([9], 2, 128),
        ([5, 131], 2, 320),
    ],
)
def test_attention_encoder_matches_reference(
    device: Device,
    kernels: Kernels,
    rng: np.random.Generator,
    lengths: list[int],
    num_heads: int,
    head_dim: int,
) -> None:
    count, rows, width = sum(lengths), sum(lengths) + 2, num_heads * head_dim
    query_start = np.cumsum([0, *lengths]).astype(np.int32)
    qkv = rng.standard_normal((rows, 3 * width), np.float32)
    bounds = np.zeros((rows, 2), np.int32)
    bounds[:count, 0] = np.repeat(query_start[:-1], lengths)
    bounds[:count, 1] = np.repeat(query_start[1:], lengths)
    if head_dim > device.max_workgroup_size:
        pytest.skip(f"{device.name} has {device.max_workgroup_size} lanes a workgroup")
    y = device.upload(np.full((rows, width), 7, np.float32))
    scale = float(head_dim**-0.5)
    op = ops.attention_encoder(
        kernels,
        device.upload(qkv),
        device.upload(bounds),
        device.upload(np.array([count], np.uint32)),
        y,
        rows=rows,
        num_heads=num_heads,
        head_dim=head_dim,
        scale=scale,
    )
    run_once(device, [op])
    found = device.read(y)
    check(
        found[:count],
        reference.attention_encoder(qkv[:count], query_start, num_heads, scale),
        "float",
    )
    assert (found[count:] == 7).all(), "tokens beyond count were touched"


def test_heads_that_the_kernels_lack_are_refused(device: Device) -> None:
    small = limited(device, max_workgroup_size=256)
    with pytest.raises(DeviceError, match=r"heads of 320 dims .* at most 256"):
        ops.check_heads(small, 320)
    ops.check_heads(small, 256)
