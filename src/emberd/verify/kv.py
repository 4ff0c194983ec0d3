"""KV caches as they lie on a device, made from floats and read back, for checks of the kernels that use them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..reference.kv_q8 import RUN, Q8Array
from ..runtime.kv_cache import KVType

F32 = NDArray[np.float32]
Words = NDArray[np.uint32]

KINDS: dict[KVType, str] = {"f16": "f16", "q8_0": "kv_q8"}
"""Of tolerances: how near a cached value is to what was to be cached."""


def cached(x: F32, kind: KVType) -> tuple[F32, Words]:
    """What a cache keeps of x (slots, KVH, hd), as floats and as words (slots, KVH, words of a head)."""
    if kind == "f16":
        halves = x.astype(np.float16)
        return halves.astype(np.float32), halves.view(np.uint32)
    made = Q8Array.of(x)
    runs = made.scales.shape[2]
    scales = np.pad(made.scales, ((0, 0), (0, 0), (0, runs % 2)))
    words = np.concatenate([made.q.view(np.uint32), scales.view(np.uint32)], axis=2)
    return made[:], np.ascontiguousarray(words)


def floats(words: Words, kind: KVType, head_dim: int) -> F32:
    """What those words (slots, KVH, words of a head) stand for."""
    if kind == "f16":
        return words.view(np.float16).astype(np.float32)
    q, scales = words[..., : head_dim // 4], words[..., head_dim // 4 :]
    halves = np.ascontiguousarray(scales).view(np.float16)[..., : head_dim // RUN]
    return Q8Array(np.ascontiguousarray(q).view(np.int8), halves)[:]
