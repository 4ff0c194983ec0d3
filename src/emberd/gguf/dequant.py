"""NumPy decoders of GGUF tensor data to float32: the numerical truth that every kernel is checked against.

Bit-equal to `gguf.quants.dequantize`, which is itself the decoder of the types that no kernel reads. A quant block
is a fixed number of weights packed with their scales. Knows no model and no file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from ..errors import ModelFileError
from . import decoders, decoders_k
from .decoders import Bytes, Floats

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


_DECODERS: dict[GGMLQuantizationType, Callable[[Bytes, Floats], None]] = {
    GGMLQuantizationType.F32: decoders.decode_f32,
    GGMLQuantizationType.F16: decoders.decode_f16,
    GGMLQuantizationType.BF16: decoders.decode_bf16,
    GGMLQuantizationType.Q4_0: decoders.decode_q4_0,
    GGMLQuantizationType.Q4_1: decoders.decode_q4_1,
    GGMLQuantizationType.Q5_0: decoders.decode_q5_0,
    GGMLQuantizationType.Q5_1: decoders.decode_q5_1,
    GGMLQuantizationType.Q8_0: decoders.decode_q8_0,
    GGMLQuantizationType.Q2_K: decoders_k.decode_q2_k,
    GGMLQuantizationType.Q3_K: decoders_k.decode_q3_k,
    GGMLQuantizationType.Q4_K: decoders_k.decode_q4_k,
    GGMLQuantizationType.Q5_K: decoders_k.decode_q5_k,
    GGMLQuantizationType.Q6_K: decoders_k.decode_q6_k,
    GGMLQuantizationType.Q8_K: decoders_k.decode_q8_k,
    GGMLQuantizationType.IQ4_NL: decoders.decode_iq4_nl,
    GGMLQuantizationType.IQ4_XS: decoders_k.decode_iq4_xs,
    GGMLQuantizationType.MXFP4: decoders.decode_mxfp4,
}

DECODED_TYPES = (
    GGMLQuantizationType.IQ1_S,
    GGMLQuantizationType.IQ1_M,
    GGMLQuantizationType.IQ2_XXS,
    GGMLQuantizationType.IQ2_XS,
    GGMLQuantizationType.IQ2_S,
    GGMLQuantizationType.IQ3_XXS,
    GGMLQuantizationType.IQ3_S,
    GGMLQuantizationType.TQ1_0,
    GGMLQuantizationType.TQ2_0,
)
"""Types that no kernel reads: `loaded.py` says what a GPU gets in their place."""


def _decode_by_the_package(type: GGMLQuantizationType, raw: Bytes, out: Floats) -> None:
    out[:] = quants.dequantize(raw, type)


_DECODERS |= {type: partial(_decode_by_the_package, type) for type in DECODED_TYPES}

QUANT_TYPES: dict[GGMLQuantizationType, QuantType] = {
    type: QuantType(*GGML_QUANT_SIZES[type], decode) for type, decode in _DECODERS.items()
}
