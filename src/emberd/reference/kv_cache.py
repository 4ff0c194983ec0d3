"""Keys and values of all layers, kept in slots, and how many of them memory allows.

It knows sizes and slots; which sequence owns which block is the engine's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from emberd.errors import ModelLoadError
from emberd.gguf.spec import ModelSpec
from emberd.hardware import DEFAULTS
from emberd.protocol import Bytes, WorkerOptions

from .kv_q8 import RUN, Q8Array
from .ops import KVArray

BLOCK_SIZE = 16

KVType = Literal["f32", "q8_0"]

DEFAULT_CONTEXT = DEFAULTS["cpu"].context
"""Tokens a sequence may hold where the options name no context length and the model allows more."""

MEMORY_SHARE = 0.25
"""Of free memory, what the cache may take where the options name no size."""

MEMORY_SHARE_FOR_CONTEXT = 0.8
"""Of free memory, what one sequence of a context length asked for by name may take."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KVCache:
    """One array of keys and one of values a layer, each (num_slots, KVH, hd) float32 or in q8_0."""

    k: tuple[KVArray, ...]
    v: tuple[KVArray, ...]

    @classmethod
    def allocate(cls, spec: ModelSpec, num_slots: int, kind: KVType = "f32") -> KVCache:
        """Empty arrays, or zeros, which are as free: the system gives memory only to slots that are written."""
        shape = (num_slots, spec.num_kv_heads, spec.head_dim)

        def empty() -> KVArray:
            return Q8Array.zeros(*shape) if kind == "q8_0" else np.empty(shape, np.float32)

        layers = range(spec.num_layers)
        return cls(tuple(empty() for _ in layers), tuple(empty() for _ in layers))

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
        arrays: list[NDArray[Any]] = []
        for array in self.k + self.v:
            arrays += [array.q, array.scales] if isinstance(array, Q8Array) else [array]
        return [a.reshape(len(a) // BLOCK_SIZE, -1).view(np.uint8) for a in arrays]


def token_bytes(spec: ModelSpec, kind: KVType = "f32") -> int:
    """Bytes that one token takes in the cache."""
    head = spec.head_dim + spec.head_dim // RUN * 2 if kind == "q8_0" else 4 * spec.head_dim
    return 2 * spec.num_layers * spec.num_kv_heads * head


def kv_types(spec: ModelSpec) -> tuple[KVType, ...]:
    """Those that the model's cache can have."""
    return ("f32", "q8_0") if spec.head_dim % RUN == 0 else ("f32",)


def cache_kind(spec: ModelSpec, options: WorkerOptions, free_bytes: int) -> KVType:
    """The type that the settings ask for, f32 standing for f16; of `auto` q8_0 where the context fits in that only.

    Raises `ModelLoadError` where q8_0 is asked for and heads have another size.
    """
    if options.kv_type == "q8_0" and "q8_0" not in kv_types(spec):
        raise ModelLoadError(
            f"a KV cache in q8_0 needs heads of a multiple of {RUN} dims, and this model's have {spec.head_dim}; "
            "use --kv-type f16"
        )
    if options.kv_type != "auto" or "q8_0" not in kv_types(spec):
        return "q8_0" if options.kv_type == "q8_0" else "f32"
    budget = _budget(spec, options, free_bytes, "f32")
    fits = budget // (BLOCK_SIZE * token_bytes(spec)) * BLOCK_SIZE >= _context(spec, options)
    return "f32" if fits else "q8_0"


def _context(spec: ModelSpec, options: WorkerOptions) -> int:
    return min(options.context_length or DEFAULT_CONTEXT, spec.context_length)


def _budget(spec: ModelSpec, options: WorkerOptions, free_bytes: int, kind: KVType) -> int:
    """Bytes that the cache may take: of what a draft leaves, its share."""
    share = options.kv_share
    free_bytes = max(0, int((free_bytes - options.beside) * share))
    budget = None if options.kv_memory is None else int(options.kv_memory * share)
    if budget is None:
        budget = int(free_bytes * MEMORY_SHARE)
        if options.context_length:
            one_sequence = (_context(spec, options) + BLOCK_SIZE) * token_bytes(spec, kind)
            budget = max(budget, min(one_sequence, int(free_bytes * MEMORY_SHARE_FOR_CONTEXT)))
    return budget if options.kv_limit is None else min(budget, int(options.kv_limit * share))


def plan_cache(
    spec: ModelSpec, options: WorkerOptions, free_bytes: int, kind: KVType = "f32"
) -> tuple[int, int]:
    """(context length, number of blocks) for a model, its options and the memory that is free.

    The context is the one asked for (`DEFAULT_CONTEXT` where none is), at most the trained one, and
    is lowered to what the memory holds, with a warning. The pool holds at least one such sequence
    and at most `max_sequences` of them. Raises `ModelLoadError` where not even one block fits.
    """
    asked, context = options.context_length, _context(spec, options)
    if asked and context < asked:
        log.warning("context lowered from %d to the model's trained %d tokens", asked, context)
    size = token_bytes(spec, kind)
    budget = _budget(spec, options, free_bytes, kind)
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
