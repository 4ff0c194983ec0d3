"""Weight matrices on the GPU: GGUF bits, stacked by rows and split where a binding would be too large.

Types whose quant block would misalign its words are regrouped here into planes, once, on the way to the GPU.
Knows tensor types and devices; no model, and what a kernel does with the bits is in `shaders/weights/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gguf import GGMLQuantizationType as GGMLType

from ..errors import DeviceError
from ..gguf.dequant import dequantize, quant_type
from .device import Device, Tensor

Bytes = NDArray[np.uint8]

CHUNK_BYTES = 64 << 20
"""Bytes handed to the queue at a time; the driver's staging copy is given back before the next chunk."""

SCALE_OFFSET = {GGMLType.Q4_0: 0, GGMLType.Q5_0: 0, GGMLType.Q8_0: 0, GGMLType.Q6_K: 208}
"""Where the f16 scale lies in a quant block of the types that are regrouped into planes."""


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Rows first_row .. first_row + rows of a matrix, in one binding (two where scales are a plane)."""

    first_row: int
    rows: int
    quants: Tensor
    scales: Tensor | None  # f16 pairs, one f16 a quant block

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.quants,) if self.scales is None else (self.quants, self.scales)


@dataclass(frozen=True, slots=True)
class WeightMatrix:
    """A (rows, cols) matrix of one tensor type on the GPU."""

    type: GGMLType
    rows: int
    cols: int
    parts: tuple[WeightPart, ...]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for part in self.parts for tensor in part.tensors)


def upload_matrix(
    device: Device, raws: Sequence[tuple[Bytes, GGMLType]], label: str = "weights"
) -> WeightMatrix:
    """Matrices of one type and width, (rows, row bytes) each, stacked by rows in the order given.

    Columns are a multiple of 32. Raises DeviceError when one row does not fit a binding.
    """
    types = {kind for _, kind in raws}
    assert len(types) == 1, f"{label}: cannot stack {types}"
    (kind,) = types
    packing = quant_type(kind)
    widths = {raw.shape[1] for raw, _ in raws}
    assert len(widths) == 1, f"{label}: cannot stack rows of {widths} bytes"
    (row_bytes,) = widths
    blocks = row_bytes // packing.nbytes
    cols = blocks * packing.weights
    assert cols % 32 == 0, f"{label}: {cols} columns are not a multiple of 32"

    planes = kind in SCALE_OFFSET
    quant_row_bytes = row_bytes - 2 * blocks if planes else row_bytes
    rows = sum(len(raw) for raw, _ in raws)
    rows_a_part = device.max_binding_bytes // quant_row_bytes
    if rows_a_part == 0:
        raise DeviceError(
            f"{label}: one row needs {quant_row_bytes} bytes in a binding, and {device.name} "
            f"allows {device.max_binding_bytes}"
        )
    parts = []
    for first in range(0, rows, rows_a_part):
        count = min(rows_a_part, rows - first)
        quants = device.empty((count * quant_row_bytes // 4,), "u32", label)
        scales = device.empty((-(-count * blocks // 2),), "u32", f"{label} scales")
        part = WeightPart(first, count, quants, scales if planes else None)
        _fill(device, part, [raw for raw, _ in raws], kind, packing.nbytes)
        parts.append(part)
    return WeightMatrix(kind, rows, cols, tuple(parts))


def upload_vector(device: Device, raw: Bytes, kind: GGMLType, label: str = "vector") -> Tensor:
    """A norm or bias vector of any tensor type, decoded to f32 (n,)."""
    return device.upload(dequantize(raw.reshape(1, -1), kind).reshape(-1), "f32", label)


def _fill(
    device: Device, part: WeightPart, raws: Sequence[Bytes], kind: GGMLType, block_bytes: int
) -> None:
    """Write the part's rows chunk by chunk; the scales plane is small and goes in one piece."""
    written = 0
    scales: list[Bytes] = []
    for rows in _row_chunks(raws, part.first_row, part.rows):
        chunk: Bytes = np.ascontiguousarray(rows).reshape(-1, block_bytes)
        if part.scales is not None:
            chunk, plane = _regroup(chunk, SCALE_OFFSET[kind])
            scales.append(plane)
        device.write(part.quants, chunk, written)
        written += chunk.nbytes
        _drain(device, part.quants)
    if part.scales is not None:
        plane = np.concatenate(scales)
        device.write(part.scales, np.pad(plane, (0, part.scales.nbytes - plane.nbytes)))


def _row_chunks(raws: Sequence[Bytes], first: int, count: int) -> Iterator[Bytes]:
    """Rows first .. first + count of the stacked matrices, CHUNK_BYTES or less at a time."""
    start = 0
    for raw in raws:
        low, high = max(first - start, 0), min(first + count - start, len(raw))
        step = max(1, CHUNK_BYTES // raw.shape[1])
        for at in range(low, high, step):
            yield raw[at : min(at + step, high)]
        start += len(raw)


def _regroup(blocks: Bytes, scale_at: int) -> tuple[Bytes, Bytes]:
    """Quant blocks (n, bytes) -> their quants in order, and their f16 scales in order, both flat bytes."""
    nbytes = blocks.shape[1]
    # Items copied whole are several times faster than bytes copied along an axis.
    quants_at = 2 if scale_at == 0 else 0
    record = np.dtype(
        {
            "names": ["scale", "quants"],
            "formats": ["V2", f"V{nbytes - 2}"],
            "offsets": [scale_at, quants_at],
            "itemsize": nbytes,
        }
    )
    records = blocks.reshape(-1).view(record)
    quants = np.ascontiguousarray(records["quants"]).view(np.uint8)
    return quants.reshape(-1), np.ascontiguousarray(records["scale"]).view(np.uint8).reshape(-1)


def _drain(device: Device, tensor: Tensor) -> None:
    """Wait until the queue has taken what was written, so that staging memory stays at one chunk."""
    device.wgpu.queue.read_buffer(tensor.buffer, 0, 4)
