"""embedding of every weight type, and how weights reach the GPU."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GGMLType

from emberd.errors import DeviceError
from emberd.gguf.dequant import dequantize
from emberd.runtime import linear
from emberd.runtime.device import Device
from emberd.runtime.kernel import Kernels, run_once
from emberd.runtime.weights import FLOAT_TYPES, upload_matrix, upload_vector
from linear_cases import ALL_TYPES, QUANT_TYPES, check_quantized, limited, poisoned, random_weights
from tiny_gguf import random_rows
from tolerance import check

pytestmark = pytest.mark.device

ROWS = 23


@pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("split", [False, True])
def test_embedding_by_id_and_by_last_token(
    device: Device, kernels: Kernels, rng: np.random.Generator, kind: GGMLType, split: bool
) -> None:
    """K29 when split: every row is written by the part that holds it."""
    raw, floats = random_weights(rng, ROWS, kind)
    limit = 9 * raw.shape[1] if split else device.max_binding_bytes
    weight = upload_matrix(limited(device, max_binding_bytes=limit), [(raw, kind)])
    assert (len(weight.parts) > 1) == split
    ids = rng.integers(0, ROWS, 7).astype(np.int32)
    last = rng.integers(0, ROWS, 4).astype(np.uint32)
    sequences = rng.integers(0, 4, 7).astype(np.int32)
    sequences[0] = -1  # a row without a sequence, as in a bucket's unused end
    given = np.where(np.arange(7) % 2 == 0, ids, -1).astype(np.int32)
    y = device.upload(np.full((7, weight.cols), np.nan, np.float32))
    steps = linear.embedding(
        kernels,
        weight,
        device.upload(given),
        device.upload(last),
        device.upload(sequences),
        y,
        rows=7,
        scale=2.5,
    )
    run_once(device, steps)
    taken = np.where(given < 0, last[sequences].astype(np.int32), ids)
    check(device.read(y), floats[taken] * 2.5, "float")


@pytest.mark.parametrize("kind", FLOAT_TYPES, ids=lambda kind: kind.name)
def test_embedding_of_rows_that_are_no_whole_units(
    device: Device, kernels: Kernels, rng: np.random.Generator, kind: GGMLType
) -> None:
    raw = random_rows(rng, ROWS, 37, kind)
    ids = rng.integers(0, ROWS, 5).astype(np.int32)
    y, some = device.upload(np.full((5, 40), np.nan, np.float32)), device.empty((5,), "i32")
    weight = upload_matrix(device, [(raw, kind)])
    steps = linear.embedding(kernels, weight, device.upload(ids), some, some, y, rows=5, scale=2.5)
    run_once(device, steps)
    check(device.read(y)[:, :37], dequantize(raw, kind)[ids] * 2.5, "float")
    assert not device.read(y)[:, 37:].any()


@pytest.mark.parametrize("kind", QUANT_TYPES, ids=lambda kind: kind.name)
def test_embedding_goes_on_in_int8_for_the_next_norm(
    device: Device, kernels: Kernels, rng: np.random.Generator, kind: GGMLType
) -> None:
    """An unknown id leaves the int8 row, too, as it was."""
    raw, floats = random_weights(rng, ROWS, kind)
    weight = upload_matrix(device, [(raw, kind)])
    ids = np.append(rng.integers(0, ROWS, 3), ROWS).astype(np.int32)
    norm_weight = rng.standard_normal(weight.cols, np.float32)
    y, out = (
        device.empty((4, weight.cols)),
        poisoned(device, 4, weight.cols, 1e-5, fine=bool(rng.integers(2))),
    )
    steps = linear.embedding(
        kernels,
        weight,
        device.upload(ids),
        device.empty((1,), "u32"),
        device.upload(np.zeros(4, np.int32)),
        y,
        rows=4,
        scale=0.5,
        ahead=(device.upload(norm_weight), out),
    )
    run_once(device, steps)
    found = device.read(y)[:3]
    check(found, floats[ids[:3]] * 0.5, "float")
    check_quantized(device, out, found * norm_weight)
    assert out.norm is not None
    squares = (found.astype(np.float64) ** 2).reshape(3, -1, 16).sum(axis=2)
    check(device.read(out.norm.squares)[:3], squares, "float")


def test_embedding_of_an_unknown_id_is_not_written(
    device: Device, kernels: Kernels, rng: np.random.Generator
) -> None:
    raw, floats = random_weights(rng, ROWS, GGMLType.Q8_0)
    weight = upload_matrix(device, [(raw, GGMLType.Q8_0)])
    y = device.upload(np.full((2, weight.cols), 7, np.float32))
    ids = device.upload(np.array([ROWS, ROWS - 1], np.int32))
    none = device.upload(np.zeros(2, np.int32))
    steps = linear.embedding(
        kernels, weight, ids, device.empty((1,), "u32"), none, y, rows=2, scale=1
    )
    run_once(device, steps)
    out = device.read(y)
    assert (out[0] == 7).all()
    check(out[1], floats[-1], "float")


def test_a_row_over_the_binding_limit_is_refused(device: Device, rng: np.random.Generator) -> None:
    """K29: the error tells need and limit."""
    raw, _ = random_weights(rng, 2, GGMLType.F32)
    small = limited(device, max_binding_bytes=raw.shape[1] - 4)
    with pytest.raises(DeviceError, match=rf"{raw.shape[1]} bytes.*{raw.shape[1] - 4}"):
        upload_matrix(small, [(raw, GGMLType.F32)])


@pytest.mark.parametrize("kind", [GGMLType.F32, GGMLType.F16, GGMLType.Q8_0])
def test_vectors_arrive_as_floats(device: Device, rng: np.random.Generator, kind: GGMLType) -> None:
    raw = random_rows(rng, 1, 96, kind)
    out = device.read(upload_vector(device, raw, kind))
    np.testing.assert_array_equal(out, dequantize(raw, kind)[0])
