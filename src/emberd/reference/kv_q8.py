"""Keys or values in q8_0: every 32 dims of a head are int8 with one f16 scale, as kernels keep them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

RUN = 32
"""Dims that share a scale."""


@dataclass(frozen=True, slots=True)
class Q8Array:
    """`q` (slots, KVH, hd) int8, `scales` (slots, KVH, hd / 32) f16. Written and read by slots, as float32."""

    q: NDArray[np.int8]
    scales: NDArray[np.float16]

    @classmethod
    def zeros(cls, num_slots: int, num_kv_heads: int, head_dim: int) -> Q8Array:
        assert head_dim % RUN == 0, head_dim
        shape = num_slots, num_kv_heads, head_dim
        return cls(np.zeros(shape, np.int8), np.zeros((*shape[:2], head_dim // RUN), np.float16))

    @classmethod
    def of(cls, x: F32) -> Q8Array:
        """x (slots, KVH, hd) rounded: q = round-half-even(x · (127 / amax)), scale = amax / 127 as f16."""
        runs = x.reshape(*x.shape[:-1], -1, RUN)
        amax = np.max(np.abs(runs), axis=-1)
        inverse = np.float32(127.0) / np.where(amax == 0, np.float32(1.0), amax)
        q = np.rint(runs * inverse[..., None]).astype(np.int8)
        return cls(q.reshape(x.shape), (amax / np.float32(127.0)).astype(np.float16))

    def __setitem__(self, slots: NDArray[np.integer], x: F32) -> None:
        made = Q8Array.of(x)
        self.q[slots], self.scales[slots] = made.q, made.scales

    def __getitem__(self, slots: Any) -> F32:
        q, scales = self.q[slots], self.scales[slots].astype(np.float32)
        runs: F32 = q.reshape(*scales.shape, RUN) * scales[..., None]
        return runs.reshape(q.shape)

    @property
    def nbytes(self) -> int:
        return self.q.nbytes + self.scales.nbytes
