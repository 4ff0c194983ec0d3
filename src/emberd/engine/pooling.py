"""Pooling: the states of a text's tokens become one vector, whatever chunks they come in."""

from __future__ import annotations

import numpy as np

from emberd.protocol import FloatArray, Pooling


class Pool:
    """The vector of one text. Sums are float64, so that the order of chunks does not show."""

    def __init__(self, pooling: Pooling, dense: FloatArray | None = None) -> None:
        """`dense` (out, hidden): what the vector is multiplied by in the end."""
        self._pooling, self._dense = pooling, dense
        self.clear()

    def places(self, num_tokens: int) -> range:
        """The positions of a text of `num_tokens` tokens whose states are wanted."""
        if self._pooling == "mean":
            return range(num_tokens)
        return range(1) if self._pooling == "cls" else range(num_tokens - 1, num_tokens)

    def clear(self) -> None:
        self._sum: np.ndarray[tuple[int, ...], np.dtype[np.float64]] | None = None
        self._count = 0

    def add(self, states: FloatArray) -> None:
        """States (n, hidden) of the next n wanted positions."""
        if len(states):
            total = states.sum(axis=0, dtype=np.float64)
            self._sum = total if self._sum is None else self._sum + total
            self._count += len(states)

    def vector(self) -> bytes | None:
        """The mean of what was added, times `dense`, as little-endian float32; None where that is not finite."""
        assert self._sum is not None
        with np.errstate(over="ignore", invalid="ignore"):
            mean = self._sum / self._count
            vector = mean.astype("<f4")
            if self._dense is not None:
                vector = (self._dense @ vector).astype("<f4", copy=False)
        return vector.tobytes() if np.isfinite(vector).all() else None
