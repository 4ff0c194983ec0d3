"""Decoders of quant blocks of 256 weights: types whose groups of 16 or 32 have scales of their own.

Each takes (n, bytes) quant blocks and fills (n, 256) float32.
"""

from __future__ import annotations

import numpy as np

from .decoders import IQ4_CODES, Bytes, Floats, f16, nibbles


def _pairs(packed: Bytes) -> Bytes:
    """(n, 64) -> (n, 8, 32) of 0..3: each run of 32 bytes holds four groups, by rising bits."""
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    pairs: Bytes = (packed.reshape(-1, 2, 1, 32) >> shifts) & np.uint8(3)
    return pairs.reshape(-1, 8, 32)


def decode_q2_k(raw: Bytes, out: Floats) -> None:
    # 16 scales low, minimums high | 64 pairs of bits | 2 scale f16 | 2 minimum f16. w = scale * q - minimum
    scales = f16(raw[:, 80:82]) * (raw[:, :16] & 15)
    minimums = f16(raw[:, 82:]) * (raw[:, :16] >> 4)
    groups = out.reshape(-1, 16, 16)
    np.multiply(_pairs(raw[:, 16:80]).reshape(-1, 16, 16), scales[:, :, None], out=groups)
    groups -= minimums[:, :, None]


def decode_q3_k(raw: Bytes, out: Floats) -> None:
    # 32 third bits, group g of 32 in bit g | 64 pairs of bits | 12 scales | 2 scale f16. w = scale * (q - 4)
    # Scale i of 16 has 4 bits in byte i % 8 and two more in byte 8 + i % 4, each by rising bits.
    low = (raw[:, None, 96:104] >> np.array([0, 4], dtype=np.uint8)[:, None]) & 15
    top = (raw[:, None, 104:108] >> np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]) & 3
    scales = (low.reshape(-1, 16) | (top.reshape(-1, 16) << 4)).astype(np.int8) - np.int8(32)
    quants = _pairs(raw[:, 32:96])
    shifts = np.arange(8, dtype=np.uint8)[None, :, None]
    quants |= ((raw[:, None, :32] >> shifts) & 1) << np.uint8(2)
    groups = out.reshape(-1, 16, 16)
    np.subtract(quants.reshape(-1, 16, 16), np.float32(4), out=groups)
    groups *= (f16(raw[:, 108:]) * scales)[:, :, None]


def _k_scales(raw: Bytes) -> tuple[Floats, Floats]:
    """Head of a Q4_K or Q5_K quant block -> (n, 8) scales and (n, 8) minimums of its 32-weight groups.

    2 scale f16 | 2 minimum f16 | 12 bytes with 6 bits of each group's scale and minimum: bytes 0-3 and
    4-7 hold groups 0-3 and, in their top two bits, the top of groups 4-7; bytes 8-11 the rest of these.
    """
    first, second, rest = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    scales = np.concatenate((first & 63, (rest & 15) | ((first >> 6) << 4)), axis=1)
    minimums = np.concatenate((second & 63, (rest >> 4) | ((second >> 6) << 4)), axis=1)
    factors = f16(raw[:, :4])
    return factors[:, :1] * scales, factors[:, 1:] * minimums


def _k_quants(packed: Bytes) -> Bytes:
    """(n, 128) -> (n, 4, 2, 32): each run of 32 bytes holds one group low and the next one high."""
    runs = packed.reshape(-1, 4, 32)
    quants = np.empty((len(runs), 4, 2, 32), dtype=np.uint8)
    nibbles(runs, quants[:, :, 0], quants[:, :, 1])
    return quants


def decode_q4_k(raw: Bytes, out: Floats) -> None:
    # 16 head (see _k_scales) | 128 nibbles. w = scale * q - minimum
    scales, minimums = _k_scales(raw)
    groups = out.reshape(-1, 8, 32)
    np.multiply(_k_quants(raw[:, 16:]).reshape(-1, 8, 32), scales[:, :, None], out=groups)
    groups -= minimums[:, :, None]


def decode_q5_k(raw: Bytes, out: Floats) -> None:
    # 16 head | 32 fifth bits, group g in bit g | 128 nibbles. w = scale * q - minimum
    scales, minimums = _k_scales(raw)
    quants = _k_quants(raw[:, 48:]).reshape(-1, 8, 32)
    shifts = np.arange(8, dtype=np.uint8)[None, :, None]
    quants |= ((raw[:, None, 16:48] >> shifts) & 1) << np.uint8(4)
    groups = out.reshape(-1, 8, 32)
    np.multiply(quants, scales[:, :, None], out=groups)
    groups -= minimums[:, :, None]


def decode_q6_k(raw: Bytes, out: Floats) -> None:
    # 128 low nibbles | 64 top pairs of bits | 16 int8 scales | 2 scale f16. w = scale * (q - 32)
    # Each half of 128 weights is four runs of 32: nibbles low, low, high, high; pairs by rising bits.
    low = raw[:, :128].reshape(-1, 2, 2, 32)
    top = raw[:, 128:192].reshape(-1, 2, 1, 32)
    quants = np.empty((len(raw), 2, 4, 32), dtype=np.uint8)
    nibbles(low, quants[:, :, :2], quants[:, :, 2:])
    quants |= ((top >> np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]) & 3) << np.uint8(4)
    scales = f16(raw[:, 208:]) * raw[:, 192:208].view(np.int8)
    groups = out.reshape(-1, 16, 16)
    np.subtract(quants.reshape(-1, 16, 16), np.float32(32), out=groups)
    groups *= scales[:, :, None]


def decode_q8_k(raw: Bytes, out: Floats) -> None:
    # 4 scale f32 | 256 int8 | 32 sums, which follow from these. w = scale * q
    scales = np.ascontiguousarray(raw[:, :4]).view("<f4")
    np.multiply(raw[:, 4:260].view(np.int8), scales, out=out)


def decode_iq4_xs(raw: Bytes, out: Floats) -> None:
    # 2 scale f16 | 2 top pairs of bits and 4 low nibbles of the scales of 8 groups | 128 nibbles, each
    # 16 bytes a group as Q4_0. w = scale * (group scale - 32) * code
    top = np.ascontiguousarray(raw[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16)
    low = np.empty((len(raw), 4, 2), dtype=np.uint8)
    nibbles(raw[:, 4:8], low[:, :, 0], low[:, :, 1])
    scales = (low.reshape(-1, 8) | ((top & 3).astype(np.uint8) << 4)).astype(np.int8) - np.int8(32)
    quants = np.empty((len(raw), 8, 2, 16), dtype=np.uint8)
    nibbles(raw[:, 8:].reshape(-1, 8, 16), quants[:, :, 0], quants[:, :, 1])
    groups = out.reshape(-1, 8, 32)
    factors = (f16(raw[:, :2]) * scales)[:, :, None]
    np.multiply(IQ4_CODES[quants.reshape(-1, 8, 32)], factors, out=groups)
