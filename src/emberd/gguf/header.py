"""Parser of everything before a GGUF file's tensor data: preamble, metadata, tensor directory.

Everything that a file announces (counts, lengths, offsets, products) is held against the bytes that are
there before it is used, so a hostile file costs neither memory nor time. What keys and tensors mean is
spec.py's.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from numpy.typing import NDArray

from ..errors import ModelFileError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 16
MAX_HEADER_BYTES = 1 << 26  # a vocabulary of 262,144 pieces takes 6 MB, its merges 10
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_KEY_BYTES = 1 << 16
MAX_NAME_BYTES = 128
MAX_STRING_BYTES = 1 << 25
MAX_STRINGS = 1 << 21  # in all arrays of a file together; each becomes a Python object
MAX_INNER_ARRAYS = 1 << 12
MAX_ARRAY_DEPTH = 4
MAX_DIMS = 4

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_SCALARS = {
    GGUFValueType.UINT8: "u1",
    GGUFValueType.INT8: "i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.BOOL: "u1",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
}
_DTYPES = {value_type: np.dtype(code) for value_type, code in _SCALARS.items()}
_STRING, _ARRAY, _BOOL = GGUFValueType.STRING, GGUFValueType.ARRAY, GGUFValueType.BOOL
# Smallest encodings: what a count may at most be is the bytes left divided by these.
_MIN_KEY_RECORD = 8 + 1 + 4 + 1
_MIN_TENSOR_RECORD = 8 + 1 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies. `shape` is (rows, cols) for matrices and (n,) for vectors, slowest dimension first."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file; -1: no file holds it, it is zeros
    nbytes: int

    @classmethod
    def zeros(cls, name: str, size: int) -> TensorInfo:
        """A vector that a model has and no file holds."""
        return cls(name, GGMLQuantizationType.F32, (size,), -1, 4 * size)


def _quote(text: str) -> str:
    """For messages: names from a file may be long or hold control characters."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


class Header:
    """Parses everything before the tensor data, front to back; `_position` never passes `_end`."""

    def __init__(self, buffer: mmap.mmap, file_name: str) -> None:
        self._buffer = buffer
        self._size = len(buffer)
        self._end = min(self._size, MAX_HEADER_BYTES)
        self._position = 0
        self._file_name = file_name
        self._num_strings = 0
        self._num_inner_arrays = 0

        self.version = self._preamble()
        num_tensors = self._count("tensor count", MAX_TENSORS, _MIN_TENSOR_RECORD)
        num_keys = self._count("metadata count", MAX_KEYS, _MIN_KEY_RECORD)
        self.metadata: dict[str, Any] = {}
        for index in range(num_keys):
            self._key_value(index)
        alignment = self._alignment()
        records = [self._tensor_record(index) for index in range(num_tensors)]
        start = -(-self._position // alignment) * alignment
        self.tensors = self._place(records, start, alignment)

    def _refuse(self, fault: str) -> ModelFileError:
        return ModelFileError(f"{self._file_name}: {fault}")

    def _too_short(self, need: str) -> ModelFileError:
        if self._end < self._size:
            return self._refuse(
                f"{need}, but header and metadata may take {self._end} bytes at most"
            )
        return self._refuse(
            f"{need}, but the file ends at byte {self._size}; it is damaged or cut short"
        )

    # Primitive reads

    def _need(self, num_bytes: int, what: str) -> int:
        """Start of the next `num_bytes`, which are then behind us."""
        start = self._position
        if num_bytes > self._end - start:
            raise self._too_short(f"{what} needs {num_bytes} bytes at byte {start}")
        self._position = start + num_bytes
        return start

    def _u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self._buffer, self._need(4, what))[0]
        return value

    def _u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self._buffer, self._need(8, what))[0]
        return value

    def _count(self, what: str, most: int, min_record: int) -> int:
        """A count of records that follow, of at least `min_record` bytes each."""
        count = self._u64(what)
        if count > most:
            raise self._refuse(f"{what} is {count}; at most {most} is allowed")
        if count * min_record > self._end - self._position:
            raise self._too_short(f"{what} of {count} needs {count * min_record} bytes or more")
        return count

    def _string(self, what: str, most: int) -> bytes:
        length = self._u64(f"length of {what}")
        if length > most:
            raise self._refuse(f"{what} is {length} bytes long; at most {most} is allowed")
        start = self._need(length, what)
        return self._buffer[start : start + length]

    def _identifier(self, what: str, most: int) -> str:
        raw = self._string(what, most)
        if not raw:
            raise self._refuse(f"{what} is empty")
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self._refuse(f"{what} {_quote(repr(raw))} is not UTF-8") from None

    # Metadata

    def _preamble(self) -> int:
        magic = self._buffer[:4]
        if magic != MAGIC:
            if self._buffer[:40].startswith(b"version https://git-lfs"):
                raise self._refuse("is a Git LFS pointer, not the model; fetch the real file")
            if magic == MAGIC[::-1]:
                raise self._refuse("is big-endian; only little-endian GGUF files are supported")
            raise self._refuse(f"is not a GGUF file: it begins with {magic!r} instead of {MAGIC!r}")
        self._position = 4
        version = self._u32("version")
        if version in VERSIONS:
            return version
        if version & 0xFFFF == 0 and version:
            raise self._refuse("is big-endian; only little-endian GGUF files are supported")
        raise self._refuse(
            f"GGUF version {version} is not supported; versions {VERSIONS[0]} and {VERSIONS[1]} are"
        )

    def _key_value(self, index: int) -> None:
        key = self._identifier(f"metadata key {index}", MAX_KEY_BYTES)
        where = f"metadata key {_quote(key)}"
        if key in self.metadata:
            raise self._refuse(f"{where} appears twice")
        value_type = self._value_type(where)
        value: Any
        if value_type is _STRING:
            value = self._string(where, MAX_STRING_BYTES).decode("utf-8", "replace")
        elif value_type is _ARRAY:
            value = self._array(where, depth=1)
        else:
            value = self._numbers(value_type, 1, where)[0].item()
        self.metadata[key] = value

    def _value_type(self, where: str) -> GGUFValueType:
        code = self._u32(f"type of {where}")
        try:
            return GGUFValueType(code)
        except ValueError:
            raise self._refuse(f"{where} has the unknown value type {code}") from None

    def _numbers(self, value_type: GGUFValueType, count: int, where: str) -> NDArray[Any]:
        dtype = _DTYPES[value_type]
        start = self._need(count * dtype.itemsize, where)
        raw = self._buffer[start : start + count * dtype.itemsize]
        numbers = np.frombuffer(raw, dtype=dtype)
        return numbers != 0 if value_type is _BOOL else numbers

    def _array(self, where: str, depth: int) -> list[Any] | NDArray[Any]:
        value_type = self._value_type(where)
        count = self._u64(f"length of {where}")
        if value_type in _DTYPES:
            return self._numbers(value_type, count, where)
        if value_type is _STRING:
            return self._strings(count, where)
        if depth == MAX_ARRAY_DEPTH:
            raise self._refuse(f"{where} nests arrays more than {MAX_ARRAY_DEPTH} deep")
        self._num_inner_arrays += count
        if self._num_inner_arrays > MAX_INNER_ARRAYS:
            raise self._refuse(
                f"{where} announces {count} inner arrays; a file may hold {MAX_INNER_ARRAYS}"
            )
        return [self._array(where, depth + 1) for _ in range(count)]

    def _strings(self, count: int, where: str) -> list[str]:
        self._num_strings += count
        if self._num_strings > MAX_STRINGS:
            raise self._refuse(f"{where} announces {count} strings; a file may hold {MAX_STRINGS}")
        if count * 8 > self._end - self._position:
            raise self._too_short(f"{where} with {count} strings needs {count * 8} bytes or more")
        # Vocabularies have 262,144 entries and more: this loop is written flat for speed.
        buffer, end, position = self._buffer, self._end, self._position
        length_at = _U64.unpack_from
        strings: list[str] = []
        append = strings.append
        for _ in range(count):
            start = position + 8
            if start > end:
                raise self._too_short(f"item {len(strings)} of {where} needs 8 bytes at {position}")
            position = start + length_at(buffer, position)[0]
            if position > end:
                raise self._too_short(
                    f"item {len(strings)} of {where} needs {position - start} bytes at {start}"
                )
            append(buffer[start:position].decode("utf-8", "surrogateescape"))
        self._position = position
        return strings

    def _alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if (
            type(alignment) is not int
            or not 8 <= alignment <= MAX_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            raise self._refuse(
                f"general.alignment is {alignment!r:.80}; it must be a power of two from 8 to "
                f"{MAX_ALIGNMENT}"
            )
        return alignment

    # Tensors

    def _tensor_record(self, index: int) -> TensorInfo:
        """One entry of the directory; its offset is still relative to the data."""
        name = self._identifier(f"name of tensor {index}", MAX_NAME_BYTES)
        where = f"tensor {_quote(name)}"
        num_dims = self._u32(f"{where}: number of dimensions")
        if not 1 <= num_dims <= MAX_DIMS:
            raise self._refuse(f"{where} has {num_dims} dimensions; 1 to {MAX_DIMS} are allowed")
        dims = [self._u64(f"{where}: dimension {axis}") for axis in range(num_dims)]
        if 0 in dims:
            raise self._refuse(f"{where} has a dimension of 0 in {dims}")
        code = self._u32(f"{where}: type")
        try:
            tensor_type = GGMLQuantizationType(code)
            weights, nbytes = GGML_QUANT_SIZES[tensor_type]
        except (ValueError, KeyError):
            raise self._refuse(f"{where} has the unknown type {code}") from None
        if dims[0] % weights:
            raise self._refuse(
                f"{where} has rows of {dims[0]} weights, not a multiple of the {weights} that "
                f"{tensor_type.name} packs together"
            )
        offset = self._u64(f"{where}: offset")
        return TensorInfo(
            name, tensor_type, tuple(reversed(dims)), offset, prod(dims) // weights * nbytes
        )

    def _place(
        self, records: list[TensorInfo], start: int, alignment: int
    ) -> dict[str, TensorInfo]:
        """Directory by name, in file order, with absolute offsets; each inside the file and apart."""
        tensors: dict[str, TensorInfo] = {}
        for record in records:
            where = f"tensor {_quote(record.name)}"
            if record.name in tensors:
                raise self._refuse(f"{where} appears twice")
            if record.offset % alignment:
                raise self._refuse(
                    f"{where} has offset {record.offset}, not a multiple of the alignment {alignment}"
                )
            offset = start + record.offset
            if record.nbytes > self._size - offset:
                raise self._refuse(
                    f"{where} with shape {list(record.shape)} ({record.type.name}) needs bytes "
                    f"{offset} to {offset + record.nbytes}, but the file ends at byte {self._size}; "
                    "it is damaged or cut short"
                )
            tensors[record.name] = TensorInfo(
                record.name, record.type, record.shape, offset, record.nbytes
            )
        previous: TensorInfo | None = None
        for tensor in sorted(tensors.values(), key=lambda info: info.offset):
            if previous and tensor.offset < previous.offset + previous.nbytes:
                raise self._refuse(
                    f"tensors {_quote(previous.name)} and {_quote(tensor.name)} overlap at byte "
                    f"{tensor.offset}"
                )
            previous = tensor
        return tensors
