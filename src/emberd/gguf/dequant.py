"""NumPy decoders of GGUF tensor data to float32: the numerical truth that every kernel is checked against.

Bit-equal to `gguf.quants.dequantize`. A quant block is a fixed number of weights packed with their scales;
each decoder takes (n, bytes) quant blocks and fills (n, weights). Knows no model and no file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from ..errors import ModelFileError

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_CHUNK_WEIGHTS = 1 << 17  # decoded at a time, so that temporaries stay in the cache


@dataclass(frozen=True, slots=True)
class QuantType:
    """How one tensor type packs its weights."""

    weights: int  # in a quant block
    nbytes: int  # of a quant block
    decode: Callable[[Bytes, Floats], None]


def dequantize(raw: Bytes, type: GGMLQuantizationType) -> Floats:
    """(rows, bytes a row) of raw tensor data -> (rows, cols) float32.

    Raises `ModelFileError` for a type without a decoder, `ValueError` when a row is not whole quant blocks.
    """
    quant = quant_type(type)
    rows, row_bytes = raw.shape
    if row_bytes % quant.nbytes:
        raise ValueError(f"{row_bytes} bytes a row are not whole {type.name} quant blocks")
    cols = row_bytes // quant.nbytes * quant.weights
    out = np.empty((rows, cols), dtype=np.float32)
    packed = raw.reshape(-1, quant.nbytes)
    decoded = out.reshape(-1, quant.weights)
    step = max(1, _CHUNK_WEIGHTS // quant.weights)
    # A scale may be infinite or no number in a damaged file; the weights then are, too.
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(packed), step):
            quant.decode(packed[start : start + step], decoded[start : start + step])
    return out


def quant_type(type: GGMLQuantizationType) -> QuantType:
    """The packing of `type`; raises `ModelFileError` listing what is supported."""
    try:
        return QUANT_TYPES[type]
    except KeyError:
        supported = ", ".join(known.name for known in QUANT_TYPES)
        raise ModelFileError(
            f"tensor type {type.name} is not supported; supported are {supported}"
        ) from None


def row_nbytes(type: GGMLQuantizationType, cols: int) -> int:
    """Bytes of a row of `cols` weights."""
    quant = quant_type(type)
    return cols // quant.weights * quant.nbytes


def _f16(raw: Bytes) -> Floats:
    """(n, 2k) bytes -> (n, k) float32."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes, low: Bytes, high: Bytes) -> None:
    """Split each byte; outputs may be views of one array."""
    np.bitwise_and(packed, 15, out=low)
    np.right_shift(packed, 4, out=high)


def _decode_f32(raw: Bytes, out: Floats) -> None:
    out[:] = np.ascontiguousarray(raw).view("<f4")


def _decode_f16(raw: Bytes, out: Floats) -> None:
    out[:] = np.ascontiguousarray(raw).view("<f2")


def _decode_bf16(raw: Bytes, out: Floats) -> None:
    # The upper half of a float32.
    words = np.ascontiguousarray(raw).view("<u2").astype(np.uint32)
    out[:] = (words << 16).view(np.float32)


def _decode_q4_0(raw: Bytes, out: Floats) -> None:
    # 2 scale f16 | 16 bytes: weight i low, weight i + 16 high. w = scale * (q - 8)
    quants = np.empty(out.shape, dtype=np.uint8)
    _nibbles(raw[:, 2:], quants[:, :16], quants[:, 16:])
    np.subtract(quants, np.float32(8), out=out)
    out *= _f16(raw[:, :2])


def _decode_q4_1(raw: Bytes, out: Floats) -> None:
    # 2 scale f16 | 2 minimum f16 | 16 bytes as Q4_0. w = scale * q + minimum
    quants = np.empty(out.shape, dtype=np.uint8)
    _nibbles(raw[:, 4:], quants[:, :16], quants[:, 16:])
    np.multiply(quants, _f16(raw[:, :2]), out=out)
    out += _f16(raw[:, 2:4])


def _q5_quants(high_bits: Bytes, packed: Bytes) -> Bytes:
    """(n, 4) fifth bits, weight i in bit i, and (n, 16) nibbles -> (n, 32) of 0..31."""
    quants = np.empty((len(packed), 32), dtype=np.uint8)
    _nibbles(packed, quants[:, :16], quants[:, 16:])
    quants |= np.unpackbits(high_bits, axis=1, bitorder="little") << np.uint8(4)
    return quants


def _decode_q5_0(raw: Bytes, out: Floats) -> None:
    # 2 scale f16 | 4 fifth bits | 16 nibbles. w = scale * (q - 16)
    np.subtract(_q5_quants(raw[:, 2:6], raw[:, 6:]), np.float32(16), out=out)
    out *= _f16(raw[:, :2])


def _decode_q5_1(raw: Bytes, out: Floats) -> None:
    # 2 scale f16 | 2 minimum f16 | 4 fifth bits | 16 nibbles. w = scale * q + minimum
    np.multiply(_q5_quants(raw[:, 4:8], raw[:, 8:]), _f16(raw[:, :2]), out=out)
    out += _f16(raw[:, 2:4])


def _decode_q8_0(raw: Bytes, out: Floats) -> None:
    # 2 scale f16 | 32 int8. w = scale * q
    np.multiply(raw[:, 2:].view(np.int8), _f16(raw[:, :2]), out=out)


def _k_scales(raw: Bytes) -> tuple[Floats, Floats]:
    """Head of a Q4_K or Q5_K quant block -> (n, 8) scales and (n, 8) minimums of its 32-weight groups.

    2 scale f16 | 2 minimum f16 | 12 bytes with 6 bits of each group's scale and minimum: bytes 0-3 and
    4-7 hold groups 0-3 and, in their top two bits, the top of groups 4-7; bytes 8-11 the rest of these.
    """
    first, second, rest = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    scales = np.concatenate((first & 63, (rest & 15) | ((first >> 6) << 4)), axis=1)
    minimums = np.concatenate((second & 63, (rest >> 4) | ((second >> 6) << 4)), axis=1)
    factors = _f16(raw[:, :4])
    return factors[:, :1] * scales, factors[:, 1:] * minimums


def _k_quants(packed: Bytes) -> Bytes:
    """(n, 128) -> (n, 4, 2, 32): each run of 32 bytes holds one group low and the next one high."""
    runs = packed.reshape(-1, 4, 32)
    quants = np.empty((len(runs), 4, 2, 32), dtype=np.uint8)
    _nibbles(runs, quants[:, :, 0], quants[:, :, 1])
    return quants


def _decode_q4_k(raw: Bytes, out: Floats) -> None:
    # 16 head (see _k_scales) | 128 nibbles. w = scale * q - minimum
    scales, minimums = _k_scales(raw)
    groups = out.reshape(-1, 8, 32)
    np.multiply(_k_quants(raw[:, 16:]).reshape(-1, 8, 32), scales[:, :, None], out=groups)
    groups -= minimums[:, :, None]


def _decode_q5_k(raw: Bytes, out: Floats) -> None:
    # 16 head | 32 fifth bits, group g in bit g | 128 nibbles. w = scale * q - minimum
    scales, minimums = _k_scales(raw)
    quants = _k_quants(raw[:, 48:]).reshape(-1, 8, 32)
    shifts = np.arange(8, dtype=np.uint8)[None, :, None]
    quants |= ((raw[:, None, 16:48] >> shifts) & 1) << np.uint8(4)
    groups = out.reshape(-1, 8, 32)
    np.multiply(quants, scales[:, :, None], out=groups)
    groups -= minimums[:, :, None]


def _decode_q6_k(raw: Bytes, out: Floats) -> None:
    # 128 low nibbles | 64 top pairs of bits | 16 int8 scales | 2 scale f16. w = scale * (q - 32)
    # Each half of 128 weights is four runs of 32: nibbles low, low, high, high; pairs by rising bits.
    low = raw[:, :128].reshape(-1, 2, 2, 32)
    top = raw[:, 128:192].reshape(-1, 2, 1, 32)
    quants = np.empty((len(raw), 2, 4, 32), dtype=np.uint8)
    _nibbles(low, quants[:, :, :2], quants[:, :, 2:])
    quants |= ((top >> np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]) & 3) << np.uint8(4)
    scales = _f16(raw[:, 208:]) * raw[:, 192:208].view(np.int8)
    groups = out.reshape(-1, 16, 16)
    np.subtract(quants.reshape(-1, 16, 16), np.float32(32), out=groups)
    groups *= scales[:, :, None]


_DECODERS: dict[GGMLQuantizationType, Callable[[Bytes, Floats], None]] = {
    GGMLQuantizationType.F32: _decode_f32,
    GGMLQuantizationType.F16: _decode_f16,
    GGMLQuantizationType.BF16: _decode_bf16,
    GGMLQuantizationType.Q4_0: _decode_q4_0,
    GGMLQuantizationType.Q4_1: _decode_q4_1,
    GGMLQuantizationType.Q5_0: _decode_q5_0,
    GGMLQuantizationType.Q5_1: _decode_q5_1,
    GGMLQuantizationType.Q8_0: _decode_q8_0,
    GGMLQuantizationType.Q4_K: _decode_q4_k,
    GGMLQuantizationType.Q5_K: _decode_q5_k,
    GGMLQuantizationType.Q6_K: _decode_q6_k,
}

QUANT_TYPES: dict[GGMLQuantizationType, QuantType] = {
    type: QuantType(*GGML_QUANT_SIZES[type], decode) for type, decode in _DECODERS.items()
}
