"""What a GPU is given of a tensor: the file's own quant blocks, or Q8_0 where no kernel reads its type."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import prod

import numpy as np
from gguf import GGMLQuantizationType, quants

from .decoders import Bytes, Floats
from .dequant import DECODED_TYPES, dequantize, row_nbytes
from .reader import TensorInfo


def loaded_type(type: GGMLQuantizationType, left_out: Collection[str] = ()) -> GGMLQuantizationType:
    """The type that kernels see: `type` itself, or Q8_0. `left_out` names types that no kernel reads here."""
    decoded = type in DECODED_TYPES or type.name in left_out
    return GGMLQuantizationType.Q8_0 if decoded else type


def loaded_rows(raw: Bytes, type: GGMLQuantizationType, left_out: Collection[str] = ()) -> Bytes:
    """(rows, bytes a row) of `type` -> the same rows in `loaded_type(type, left_out)`."""
    if loaded_type(type, left_out) == type:
        return raw
    # A scale that is no number leaves no number behind.
    with np.errstate(invalid="ignore", over="ignore"):
        return quants.quantize(dequantize(raw, type), GGMLQuantizationType.Q8_0)


def loaded_floats(raw: Bytes, type: GGMLQuantizationType, left_out: Collection[str] = ()) -> Floats:
    """The weights of these rows as kernels see them, (rows, cols) float32."""
    return dequantize(loaded_rows(raw, type, left_out), loaded_type(type, left_out))


def loaded_nbytes(info: TensorInfo) -> int:
    """Bytes of the tensor as kernels see it."""
    return prod(info.shape[:-1]) * row_nbytes(loaded_type(info.type), info.shape[-1])


def loading_note(infos: Iterable[TensorInfo]) -> str:
    """What users are told of types that no kernel reads; empty where there is none."""
    names = sorted({info.type.name for info in infos if info.type in DECODED_TYPES})
    if not names:
        return ""
    return f"tensors of type {', '.join(names)} become Q8_0 when they are loaded to a GPU"
