"""Decoders of floats and of quant blocks of 32 weights; the codebooks that some types share.

Each takes (n, bytes) quant blocks and fills (n, weights) float32.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]

IQ4_CODES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
"""What the 16 values of a nibble of IQ4_NL and IQ4_XS stand for."""

MXFP4_CODES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
"""Twice what the 4-bit floats of MXFP4 are; its scale is half."""


def f16(raw: Bytes) -> Floats:
    """(n, 2k) bytes -> (n, k) float32."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def nibbles(packed: Bytes, low: Bytes, high: Bytes) -> None:
    """Split each byte; outputs may be views of one array."""
    np.bitwise_and(packed, 15, out=low)
    np.right_shift(packed, 4, out=high)


def decode_f32(raw: Bytes, out: Floats) -> None:
    out[:] = np.ascontiguousarray(raw).view("<f4")


def decode_f16(raw: Bytes, out: Floats) -> None:
    out[:] = np.ascontiguousarray(raw).view("<f2")


def decode_bf16(raw: Bytes, out: Floats) -> None:
    # The upper half of a float32.
    words = np.ascontiguousarray(raw).view("<u2").astype(np.uint32)
    out[:] = (words << 16).view(np.float32)


def decode_q4_0(raw: Bytes, out: Floats) -> None:
    # 2 scale f16 | 16 bytes: weight i low, weight i + 16 high. w = scale * (q - 8)
    quants = np.empty(out.shape, dtype=np.uint8)
    nibbles(raw[:, 2:], quants[:, :16], quants[:, 16:])
    np.subtract(quants, np.float32(8), out=out)
    out *= f16(raw[:, :2])


def decode_q4_1(raw: Bytes, out: Floats) -> None:
    # 2 scale f16 | 2 minimum f16 | 16 bytes as Q4_0. w = scale * q + minimum
    quants = np.empty(out.shape, dtype=np.uint8)
    nibbles(raw[:, 4:], quants[:, :16], quants[:, 16:])
    np.multiply(quants, f16(raw[:, :2]), out=out)
    out += f16(raw[:, 2:4])


def _q5_quants(high_bits: Bytes, packed: Bytes) -> Bytes:
    """(n, 4) fifth bits, weight i in bit i, and (n, 16) nibbles -> (n, 32) of 0..31."""
    quants = np.empty((len(packed), 32), dtype=np.uint8)
    nibbles(packed, quants[:, :16], quants[:, 16:])
    quants |= np.unpackbits(high_bits, axis=1, bitorder="little") << np.uint8(4)
    return quants


def decode_q5_0(raw: Bytes, out: Floats) -> None:
    # 2 scale f16 | 4 fifth bits | 16 nibbles. w = scale * (q - 16)
    np.subtract(_q5_quants(raw[:, 2:6], raw[:, 6:]), np.float32(16), out=out)
    out *= f16(raw[:, :2])


def decode_q5_1(raw: Bytes, out: Floats) -> None:
    # 2 scale f16 | 2 minimum f16 | 4 fifth bits | 16 nibbles. w = scale * q + minimum
    np.multiply(_q5_quants(raw[:, 4:8], raw[:, 8:]), f16(raw[:, :2]), out=out)
    out += f16(raw[:, 2:4])


def decode_q8_0(raw: Bytes, out: Floats) -> None:
    # 2 scale f16 | 32 int8. w = scale * q
    np.multiply(raw[:, 2:].view(np.int8), f16(raw[:, :2]), out=out)


def decode_iq4_nl(raw: Bytes, out: Floats) -> None:
    # 2 scale f16 | 16 bytes as Q4_0. w = scale * code
    quants = np.empty(out.shape, dtype=np.uint8)
    nibbles(raw[:, 2:], quants[:, :16], quants[:, 16:])
    np.multiply(IQ4_CODES[quants], f16(raw[:, :2]), out=out)


def decode_mxfp4(raw: Bytes, out: Floats) -> None:
    # 1 exponent | 16 bytes as Q4_0. w = 2 ** (exponent - 128) * code
    exponent = raw[:, :1].astype(np.uint32)
    # The two least scales are subnormal floats.
    bits = np.where(exponent < 2, np.uint32(0x00200000) << exponent, (exponent - 1) << 23)
    quants = np.empty(out.shape, dtype=np.uint8)
    nibbles(raw[:, 1:], quants[:, :16], quants[:, 16:])
    np.multiply(MXFP4_CODES[quants], bits.astype(np.uint32).view(np.float32), out=out)
