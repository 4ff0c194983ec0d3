"""Random weights in every tensor type, made with the public `gguf` package alone."""

from __future__ import annotations

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

# Where a quant block has its f16 scale, and how far random weights spread where that is 1.
_SCALES = {
    "Q2_K": (80, 13.9),
    "Q3_K": (108, 43.3),
    "Q4_K": (0, 250.0),
    "Q5_K": (0, 510.0),
    "Q6_K": (208, 1360.0),
    "Q8_K": (0, 73.9),  # as float32
    "IQ1_S": (0, 7.19),
    "IQ1_M": (48, 7.2),  # in four pieces
    "IQ2_XXS": (0, 53.4),
    "IQ2_XS": (0, 55.8),
    "IQ2_S": (0, 56.4),
    "IQ3_XXS": (0, 143.0),
    "IQ3_S": (0, 140.0),
    "IQ4_NL": (0, 67.2),
    "IQ4_XS": (0, 1250.0),
    "TQ1_0": (52, 0.817),
    "TQ2_0": (64, 1.12),
}

# Weights are scale × group scale × q - minimum × group minimum. Both group factors have the same spread,
# so the ratio of the two is the mean of q; the minimum lies behind the scale.
_MINIMUMS = {"Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}


def random_rows(
    rng: np.random.Generator,
    rows: int,
    cols: int,
    kind: GGMLQuantizationType,
    *,
    std: float = 1.0,
) -> NDArray[np.uint8]:
    """(rows, bytes a row) of random weights around 0: quantised normal ones, or, for types that the package
    does not make, random quant blocks whose scales are chosen so that the weights spread by `std`.
    """
    if kind.name not in _SCALES:
        weights = rng.normal(0, std, (rows, cols)).astype(np.float32)
        return np.ascontiguousarray(gguf.quants.quantize(weights, kind)).view(np.uint8)
    weights_each, nbytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows * cols // weights_each, nbytes), dtype=np.uint8)
    at, spread = _SCALES[kind.name]
    scales = (std / spread * rng.uniform(0.75, 1.25, len(blocks))).astype(np.float16)
    if kind.name == "Q8_K":
        blocks[:, :4] = scales.astype(np.float32).view(np.uint8).reshape(-1, 4)
    elif kind.name == "IQ1_M":
        for piece in range(4):
            nibble = (scales.view(np.uint16) >> (4 * piece)) & 15
            blocks[:, at + 1 + 2 * piece] &= 15
            blocks[:, at + 1 + 2 * piece] |= (nibble << 4).astype(np.uint8)
    else:
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    if kind.name in _MINIMUMS:
        minimums = (scales.astype(np.float32) * _MINIMUMS[kind.name]).astype(np.float16)
        blocks[:, at + 2 : at + 4] = minimums.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)
