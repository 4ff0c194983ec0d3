"""Rotary angles as the metadata describes them. Shared by the reference and the runtime."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


def rope_tables(
    rope_dim: int, base: float, scale: float, factors: F32 | None, num_positions: int
) -> tuple[F32, F32]:
    """cos and sin (num_positions, rope_dim/2) of p / scale · base^(-2i/rope_dim) / factors[i].

    Angles are computed in float64: at position 9000 a float32 angle is already off by 5e-4.
    """
    frequency = float(base) ** (-np.arange(0, rope_dim, 2, dtype=np.float64) / rope_dim)
    if factors is not None:
        frequency = frequency / factors.astype(np.float64)
    angle = np.arange(num_positions, dtype=np.float64)[:, None] / scale * frequency
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
