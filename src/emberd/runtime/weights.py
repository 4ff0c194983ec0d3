"""Weight matrices on the GPU: GGUF bits, stacked by rows and split where a binding would be too large.

Types whose quant block would misalign its words are regrouped here into planes, once, on the way to the GPU; those
that no kernel reads become Q8_0 (`gguf/loaded.py`).
Knows tensor types and devices; no model, and what a kernel does with the bits is in `shaders/weights/`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from gguf import GGMLQuantizationType as GGMLType
from numpy.typing import NDArray

from ..errors import DeviceError
from ..gguf.dequant import dequantize, quant_type, row_nbytes
from ..gguf.loaded import loaded_rows, loaded_type
from .activations import padded
from .device import Device, Tensor

Bytes = NDArray[np.uint8]

CHUNK_BYTES = 16 << 20
"""Bytes handed to the queue at a time; the driver's staging copy is given back before the next chunk."""

UPLOAD_THREADS = min(4, os.cpu_count() or 1)
"""Threads that regroup and copy weights; each holds about two chunks."""

FLOAT_TYPES = frozenset({GGMLType.F32, GGMLType.F16, GGMLType.BF16})
"""Types whose products take float activations; all others take int8 ones."""


@dataclass(frozen=True, slots=True)
class Planes:
    """Which bytes of a quant block go to the plane of quants, and which to that of scales."""

    quants: slice
    scales: slice

    @property
    def sizes(self) -> tuple[int, int]:
        return self.quants.stop - self.quants.start, self.scales.stop - self.scales.start


PLANES = {
    GGMLType.Q4_0: Planes(slice(2, 18), slice(0, 2)),
    GGMLType.Q4_1: Planes(slice(4, 20), slice(0, 4)),
    GGMLType.Q5_0: Planes(slice(6, 22), slice(0, 6)),
    GGMLType.Q5_1: Planes(slice(8, 24), slice(0, 8)),
    GGMLType.Q8_0: Planes(slice(2, 34), slice(0, 2)),
    GGMLType.Q2_K: Planes(slice(0, 80), slice(80, 84)),
    GGMLType.Q3_K: Planes(slice(0, 96), slice(96, 110)),
    GGMLType.Q6_K: Planes(slice(0, 208), slice(208, 210)),
    GGMLType.Q8_K: Planes(slice(4, 260), slice(0, 4)),  # its sums are of no use here
    GGMLType.IQ4_NL: Planes(slice(2, 18), slice(0, 2)),
    GGMLType.IQ4_XS: Planes(slice(8, 136), slice(0, 8)),
    GGMLType.MXFP4: Planes(slice(1, 17), slice(0, 1)),
}
"""Types regrouped into two planes; all others stay as they are."""


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Rows first_row .. first_row + rows of a matrix, in one binding for each plane."""

    first_row: int
    rows: int
    quants: Tensor
    scales: Tensor | None  # the second plane of the types in PLANES

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.quants,) if self.scales is None else (self.quants, self.scales)


@dataclass(frozen=True, slots=True)
class WeightMatrix:
    """A (rows, cols) matrix of one tensor type on the GPU; `cols` as `matrix_columns` says."""

    type: GGMLType
    rows: int
    cols: int
    parts: tuple[WeightPart, ...]

    @property
    def type_name(self) -> str:
        return self.type.name

    @property
    def is_quantized(self) -> bool:
        """Whether products with it take int8 activations."""
        return self.type not in FLOAT_TYPES

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for part in self.parts for tensor in part.tensors)


class Uploads:
    """Copies that run on threads, so that kernels compile meanwhile. `wait` before the first step."""

    def __init__(self, done: Callable[[int], None] | None = None) -> None:
        """`done` is told the bytes of each copy that has ended, on any thread."""
        self._pool = ThreadPoolExecutor(UPLOAD_THREADS, "emberd-upload")
        self._futures: list[Future[None]] = []
        self._done = done

    def start(self, nbytes: int, copy: Callable[[], None]) -> None:
        def run() -> None:
            copy()
            if self._done is not None:
                self._done(nbytes)

        self._futures.append(self._pool.submit(run))

    def wait(self) -> None:
        """Raises what a copy raised."""
        try:
            for future in self._futures:
                future.result()
        finally:
            self.drop()

    def drop(self) -> None:
        """Begin no more copies and wait for those under way: no device may be closed beneath one."""
        self._pool.shutdown(cancel_futures=True)


def matrix_columns(kind: GGMLType, cols: int) -> int:
    """Columns of a matrix on the GPU: a multiple of 8 for float types, zeros behind the file's own."""
    return padded(cols) if kind in FLOAT_TYPES else cols


def upload_matrix(
    device: Device,
    raws: Sequence[tuple[Bytes, GGMLType]],
    label: str = "weights",
    uploads: Uploads | None = None,
) -> WeightMatrix:
    """Matrices of one type and width, (rows, row bytes) each, stacked by rows in the order given.

    The matrix's own type is `loaded_type` of theirs, on this device.
    The bytes are there on return, or with `uploads` when that is done.
    Raises DeviceError when one row does not fit a binding.
    """
    types = {kind for _, kind in raws}
    assert len(types) == 1, f"{label}: cannot stack {types}"
    (source,) = types
    kind = loaded_type(source, device.left_out)
    widths = {raw.shape[1] for raw, _ in raws}
    assert len(widths) == 1, f"{label}: cannot stack rows of {widths} bytes"
    (row_bytes,) = widths
    cols = row_bytes // quant_type(source).nbytes * quant_type(source).weights
    cols = matrix_columns(kind, cols)

    packing = quant_type(kind)
    planes = PLANES.get(kind)
    quant_bytes, scale_bytes = planes.sizes if planes else (packing.nbytes, 0)
    quant_row_bytes = cols // packing.weights * quant_bytes
    scale_row_bytes = cols // packing.weights * scale_bytes
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
        scales = None
        if planes:
            scales = device.empty((-(-count * scale_row_bytes // 4),), "u32", f"{label} scales")
        part = WeightPart(first, count, quants, scales)
        parts.append(part)
        if not device.holds_data:
            continue
        fill = partial(_fill, device, part, [raw for raw, _ in raws], source, cols)
        if uploads is None:
            fill()
        else:
            uploads.start(count * row_bytes, fill)
    return WeightMatrix(kind, rows, cols, tuple(parts))


def upload_vector(
    device: Device, raw: Bytes, kind: GGMLType, label: str = "vector", unit: int = 1
) -> Tensor:
    """A norm or bias vector of any tensor type, decoded to f32 (n,), n a multiple of `unit` by zeros at the end."""
    values = dequantize(raw.reshape(1, -1), kind).reshape(-1)
    missing = padded(len(values), unit) - len(values)
    return device.upload(np.pad(values, (0, missing)), "f32", label)


def _fill(
    device: Device, part: WeightPart, raws: Sequence[Bytes], source: GGMLType, cols: int
) -> None:
    """Write the part's rows chunk by chunk; the second plane is small and goes in one piece."""
    kind = loaded_type(source, device.left_out)
    planes = PLANES.get(kind)
    written = 0
    scales: list[Bytes] = []
    scratch = np.empty(min(CHUNK_BYTES, part.quants.nbytes) if planes else 0, np.uint8)
    # Decoding goes through float32, which must fit into a chunk as well.
    row_bytes = raws[0].shape[1] if kind == source else 4 * cols
    for rows in _row_chunks(raws, part.first_row, part.rows, max(1, CHUNK_BYTES // row_bytes)):
        chunk: Bytes = np.ascontiguousarray(loaded_rows(rows, source, device.left_out))
        if missing := row_nbytes(kind, cols) - chunk.shape[1]:
            chunk = np.pad(chunk, ((0, 0), (0, missing)))
        chunk = chunk.reshape(-1)
        if planes:
            chunk, second = _regroup(chunk, quant_type(kind).nbytes, planes, scratch)
            scales.append(second)
        device.write(part.quants, chunk, written)
        written += chunk.nbytes
        _drain(device, part.quants)
    if part.scales is not None:
        second = np.concatenate(scales)
        device.write(part.scales, np.pad(second, (0, part.scales.nbytes - second.nbytes)))


def _row_chunks(raws: Sequence[Bytes], first: int, count: int, most: int) -> Iterator[Bytes]:
    """Rows first .. first + count of the stacked matrices, `most` or fewer at a time."""
    start = 0
    for raw in raws:
        low, high = max(first - start, 0), min(first + count - start, len(raw))
        for at in range(low, high, most):
            yield raw[at : min(at + most, high)]
        start += len(raw)


def _regroup(
    blocks: Bytes, block_bytes: int, planes: Planes, scratch: Bytes
) -> tuple[Bytes, Bytes]:
    """Flat quant blocks -> the plane of their quants, in `scratch`, and the plane of their scales."""
    # Items copied whole are twice as fast as bytes along an axis, and memory that is reused three times as
    # fast as new memory.
    quant_bytes, scale_bytes = planes.sizes
    record = np.dtype(
        {
            "names": ["quants", "scales"],
            "formats": [f"V{quant_bytes}", f"V{scale_bytes}"],
            "offsets": [planes.quants.start, planes.scales.start],
            "itemsize": block_bytes,
        }
    )
    records = blocks.view(record)
    quants = scratch[: len(records) * quant_bytes]
    quants.view(f"V{quant_bytes}")[:] = records["quants"]
    return quants, np.ascontiguousarray(records["scales"]).view(np.uint8)


def _drain(device: Device, tensor: Tensor) -> None:
    """Wait until the queue has taken what was written, so that staging memory stays at one chunk."""
    device.wgpu.queue.read_buffer(tensor.buffer, 0, 4)
