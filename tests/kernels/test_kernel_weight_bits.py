"""Decoding inside kernels: any bytes give what NumPy gives, and types without kernels arrive as Q8_0."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GGMLType

from emberd.gguf.dequant import DECODED_TYPES, dequantize, row_nbytes
from emberd.gguf.loaded import loaded_rows
from emberd.runtime import linear
from emberd.runtime.device import Device
from emberd.runtime.kernel import Kernels, run_once
from emberd.runtime.weights import WeightMatrix, upload_matrix
from linear_cases import ALL_TYPES, NARROW, Array, check_product, columns, limited, random_weights
from tolerance import TOLERANCE

pytestmark = pytest.mark.device

SUBNORMAL = 2.0**-126
"""What is less may be 0 on a device."""


def decoded(kernels: Kernels, weight: WeightMatrix) -> Array:
    """All rows, through the embedding kernel."""
    device = kernels.device
    ids = np.arange(weight.rows, dtype=np.int32)
    y = device.empty((weight.rows, weight.cols), "f32")
    none = device.upload(np.zeros(weight.rows, np.int32))
    steps = linear.embedding(
        kernels,
        weight,
        device.upload(ids),
        device.empty((1,), "u32"),
        none,
        y,
        rows=weight.rows,
        scale=1.0,
    )
    run_once(device, steps)
    return device.read(y)


@pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.name)
def test_any_bytes_decode_as_in_numpy(
    device: Device, kernels: Kernels, rng: np.random.Generator, kind: GGMLType
) -> None:
    """Scales that are infinite, no number, negative or subnormal too: no number in NumPy is none here."""
    raw = rng.integers(0, 256, (64, row_nbytes(kind, columns(kind))), dtype=np.uint8)
    with np.errstate(invalid="ignore"):
        exact = dequantize(raw, kind).astype(np.float64)
    out = decoded(kernels, upload_matrix(device, [(raw, kind)])).astype(np.float64)
    finite = np.isfinite(exact)
    assert finite.any()
    np.testing.assert_array_equal(np.isfinite(out), finite)
    # A minimum is subtracted from a product that may be as large: rounding is relative to the quant block.
    scale = np.where(finite, np.abs(exact), 0).reshape(len(raw), -1, 32).max(axis=2)
    allowed = np.repeat(scale, 32, axis=1) * TOLERANCE["float"] + SUBNORMAL * 128
    difference = np.abs(np.where(finite, out - np.where(finite, exact, 0), 0))
    worst = np.unravel_index(int((difference - allowed).argmax()), difference.shape)
    assert (difference <= allowed).all(), (worst, out[worst], exact[worst])


@pytest.mark.parametrize("kind", sorted(DECODED_TYPES), ids=lambda kind: kind.name)
def test_a_type_without_kernels_is_computed_as_q8_0(
    device: Device,
    kernels: Kernels,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    kind: GGMLType,
) -> None:
    """Matvec, matmul and embedding; decoded in chunks, from two matrices, into two parts."""
    monkeypatch.setattr("emberd.runtime.weights.CHUNK_BYTES", 10_000)
    raws = [random_weights(rng, rows, kind)[0] for rows in (11, 8)]
    floats = np.concatenate([dequantize(loaded_rows(raw, kind), GGMLType.Q8_0) for raw in raws])
    small = limited(device, max_binding_bytes=10 * columns(kind))
    weight = upload_matrix(small, [(raw, kind) for raw in raws])
    assert weight.type == GGMLType.Q8_0 and len(weight.parts) == 2
    for tokens in (2, 20):
        check_product(kernels, rng, weight, floats, tokens=tokens, table=NARROW)
    np.testing.assert_allclose(decoded(kernels, weight), floats, rtol=1e-6)
