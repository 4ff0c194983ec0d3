"""Rotary angles as the metadata describes them. Shared by the reference and the runtime."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .model import ModelSpec

F32 = NDArray[np.float32]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Yarn:
    """Fast dims keep their frequency, slow ones are scaled, those between are mixed (Peng et al. 2023)."""

    original_context: int
    beta_fast: float  # turns within the original context from which on a dim is fast
    beta_slow: float
    mix: float  # 1: as described, 0: all dims are scaled

    def kept(self, rope_dim: int, base: float) -> NDArray[np.float64]:
        """(rope_dim / 2,) share of each pair's own frequency."""

        def dim(turns: float) -> float:
            span = self.original_context / (turns * 2 * math.pi)
            return rope_dim * math.log(span) / (2 * math.log(base))

        low = max(0, math.floor(dim(self.beta_fast)))
        high = min(rope_dim - 1, math.ceil(dim(self.beta_slow)))
        ramp = (np.arange(rope_dim // 2) - low) / max(0.001, high - low)
        share: NDArray[np.float64] = (1 - np.clip(ramp, 0, 1)) * self.mix
        return share


@dataclass(frozen=True, slots=True)
class Temperature:
    """Queries grow with their position: times 1 + scale · ln(1 + floor(position / length))."""

    scale: float
    length: int

    def factors(self, positions: NDArray[np.int32]) -> F32:
        """One factor a position, same shape."""
        grown = 1 + self.scale * np.log1p((positions // self.length).astype(np.float64))
        return grown.astype(np.float32)


def factors_for(spec: ModelSpec, short: T | None, long: T | None, num_positions: int) -> T | None:
    """Which rope factors count where that many positions are served: one set for a whole life of a model."""
    return long if long is not None and num_positions > spec.rope_original_context else short


def kv_layout(spec: ModelSpec, kind: str, block_bytes: int, num_positions: int) -> str:
    """All that a block's bytes depend on beside the file's tensors and the tokens. `kind`: of device and cache."""
    factors = factors_for(spec, "short", "long", num_positions)
    return f"{kind}, {block_bytes} bytes a block, {factors} rope factors, {spec}"


def layer_rope_tables(
    spec: ModelSpec, index: int, factors: F32 | None, num_positions: int
) -> tuple[F32, F32]:
    """`rope_tables` of one layer. In a model with YaRN, layers without a scale have nothing of it."""
    layer = spec.layers[index]
    plain = spec.yarn is not None and layer.rope_scale == 1
    return rope_tables(
        spec.rope_dim,
        layer.rope_base,
        layer.rope_scale,
        factors,
        num_positions,
        None if plain else spec.yarn,
        1.0 if plain else spec.rope_magnitude,
    )


def rope_tables(
    rope_dim: int,
    base: float,
    scale: float,
    factors: F32 | None,
    num_positions: int,
    yarn: Yarn | None = None,
    magnitude: float = 1.0,
) -> tuple[F32, F32]:
    """cos and sin (num_positions, rope_dim/2) of p / scale · base^(-2i/rope_dim) / factors[i], times `magnitude`.

    A base of 0 stands for no rotation. With `yarn`, part of a frequency escapes the scale.
    Angles are computed in float64: at position 9000 a float32 angle is already off by 5e-4.
    """
    if base == 0:
        shape = (num_positions, rope_dim // 2)
        return np.ones(shape, np.float32), np.zeros(shape, np.float32)
    frequency = float(base) ** (-np.arange(0, rope_dim, 2, dtype=np.float64) / rope_dim)
    if factors is not None:
        frequency = frequency / factors.astype(np.float64)
    kept = 0.0 if yarn is None else yarn.kept(rope_dim, base)
    frequency = frequency * ((1 - kept) / scale + kept)
    angle = np.arange(num_positions, dtype=np.float64)[:, None] * frequency
    cos, sin = np.cos(angle) * magnitude, np.sin(angle) * magnitude
    return cos.astype(np.float32), sin.astype(np.float32)
