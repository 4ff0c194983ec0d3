"""Keys and values of all layers, kept in slots, and how many of them memory allows.

It knows sizes and slots; which sequence owns which block is the engine's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emberd.errors import ModelLoadError
from emberd.gguf.spec import ModelSpec
from emberd.hardware import DEFAULTS
from emberd.protocol import Bytes, WorkerOptions

from .ops import F32

BLOCK_SIZE = 16

DEFAULT_CONTEXT = DEFAULTS["cpu"].context
"""Tokens a sequence may hold where the options name no context length and the model allows more."""

MEMORY_SHARE = 0.25
"""Of free memory, what the cache may take where the options name no size."""

MEMORY_SHARE_FOR_CONTEXT = 0.8
"""Of free memory, what one sequence of a context length asked for by name may take."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KVCache:
    """One array of keys and one of values a layer, each (num_slots, KVH, hd) float32."""

    k: tuple[F32, ...]
    v: tuple[F32, ...]

    @classmethod
    def allocate(cls, spec: ModelSpec, num_slots: int) -> KVCache:
        """Empty arrays: the system gives memory only to slots that are written."""
        shape = (num_slots, spec.num_kv_heads, spec.head_dim)
        layers = range(spec.num_layers)
        return cls(
            tuple(np.empty(shape, dtype=np.float32) for _ in layers),
            tuple(np.empty(shape, dtype=np.float32) for _ in layers),
        )

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.k + self.v)

    def read(self, blocks: Sequence[int]) -> Bytes:
        """Copies of blocks (blocks, block_bytes): the parts of all layers one after the other."""
        return np.concatenate([part[list(blocks)] for part in self._parts()], axis=1)

    def write(self, blocks: Sequence[int], data: Bytes) -> None:
        start = 0
        for part in self._parts():
            end = start + part.shape[1]
            part[list(blocks)] = data[:, start:end]
            start = end

    def _parts(self) -> list[Bytes]:
        """Every array as bytes by block."""
        slot_arrays = self.k + self.v
        return [a.reshape(len(a) // BLOCK_SIZE, -1).view(np.uint8) for a in slot_arrays]


def token_bytes(spec: ModelSpec) -> int:
    """Bytes that one token takes in the cache."""
    return 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * 4


def plan_cache(spec: ModelSpec, options: WorkerOptions, free_bytes: int) -> tuple[int, int]:
    """(context length, number of blocks) for a model, its options and the memory that is free.

    The context is the one asked for (`DEFAULT_CONTEXT` where none is), at most the trained one, and
    is lowered to what the memory holds, with a warning. The pool holds at least one such sequence
    and at most `max_sequences` of them. Raises `ModelLoadError` where not even one block fits.
    """
    asked = options.context_length or DEFAULT_CONTEXT
    context = min(asked, spec.context_length)
    if options.context_length and context < asked:
        log.warning("context lowered from %d to the model's trained %d tokens", asked, context)

    size = token_bytes(spec)
    budget = options.kv_memory
    if budget is None:
        budget = int(free_bytes * MEMORY_SHARE)
        if options.context_length:
            one_sequence = (context + BLOCK_SIZE) * size
            budget = max(budget, min(one_sequence, int(free_bytes * MEMORY_SHARE_FOR_CONTEXT)))

    if options.kv_limit is not None:
        budget = min(budget, options.kv_limit)
    affordable = budget // (BLOCK_SIZE * size)
    if affordable < 1:
        raise ModelLoadError(
            f"the KV cache got {budget} bytes and one block of {BLOCK_SIZE} tokens needs "
            f"{BLOCK_SIZE * size}. Raise --kv-memory or free memory."
        )
    if affordable * BLOCK_SIZE < context:
        log.warning(
            "context lowered from %d to %d tokens, which is what %d MiB of KV memory hold",
            context,
            affordable * BLOCK_SIZE,
            budget >> 20,
        )
        context = affordable * BLOCK_SIZE
    blocks_each = -(-context // BLOCK_SIZE)
    return context, min(affordable, blocks_each * options.max_sequences)
