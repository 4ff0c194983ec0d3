"""Paged attention in a model's shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..gguf.spec import ModelFile
from ..reference import ops as reference
from ..runtime import decode_attention, ops
from ..runtime.device import Tensor
from ..runtime.kv_cache import BLOCK_SIZE
from ..runtime.weights import FLOAT_TYPES
from .bench import F32, Workbench, read_quantized
from .check import TOLERANCE, Check, relative_error
from .kv import KINDS, cached, floats
from .rope import POSITIONS, RotationTwin, heads_on_device, suffix, vector
from .steps import USUAL, DecodeShape, Steps

CONTEXTS = (300, 1, 70)
WINDOW = 500
"""Longer windows are checked as this one: a kernel is told its window, so that contexts beyond it show all there is
to see. With the 40 positions beyond it, it lies within `POSITIONS`."""

Pair = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Paged:
    """A random KV cache in which each row's blocks lie scattered."""

    keys: F32  # (slots, KVH, hd), values that the cache holds
    values: F32
    key_words: Tensor
    value_words: Tensor
    block_tables: NDArray[np.int32]


def _paged(bench: Workbench, model: ModelFile, contexts: tuple[int, ...]) -> Paged:
    spec = model.spec
    per_row = [-(-length // BLOCK_SIZE) for length in contexts]
    order = bench.rng.permutation(sum(per_row)).astype(np.int32)
    tables = np.full((len(contexts), max(per_row) + 1), -1, np.int32)
    for row, (start, end) in enumerate(pairwise(np.cumsum([0, *per_row]))):
        tables[row, : end - start] = order[start:end]
    shape = (sum(per_row) * BLOCK_SIZE, spec.num_kv_heads, spec.head_dim)
    (keys, k_words), (values, v_words) = (
        cached(bench.normal(*shape), bench.kv_type) for _ in range(2)
    )
    return Paged(keys, values, bench.put(k_words), bench.put(v_words), tables)


def check_attention(bench: Workbench, model: ModelFile, steps: Steps = USUAL) -> Iterator[Check]:
    """Decode attention of those steps' rows, which whole texts have none of, and prefill attention, for every window
    among the layers."""
    if model.spec.causal:
        yield from check_decode_attention(bench, model, steps)
    for window, index in _windows(model).items():
        context = max(window + 40 if window else 0, *CONTEXTS)
        yield _check_prefill(bench, model, context, index, window)


def check_decode_attention(
    bench: Workbench, model: ModelFile, steps: Steps = USUAL
) -> Iterator[Check]:
    """Every kernel of it for every window among the layers up to `WINDOW`, over contexts longer than it."""
    shapes: dict[DecodeShape, None] = {}
    for quantizes in {layer.o.type not in FLOAT_TYPES for layer in model.tensors.layers}:
        shapes |= dict.fromkeys(steps.decode_shapes(bench.device, model.spec, quantizes))
    for window, index in _windows(model).items():
        for shape in shapes:
            yield _check_decode(bench, model, index, window, shape)


def _windows(model: ModelFile) -> dict[int, int]:
    """A layer of each window."""
    windows = {min(layer.window, WINDOW): index for index, layer in enumerate(model.spec.layers)}
    return dict(sorted(windows.items()))


def _contexts(rows: int, window: int) -> tuple[int, ...]:
    """Of so many rows: the longest, then others that tell much, then short ones."""
    telling = (max(window + 40, *CONTEXTS) if window else POSITIONS - 10, *CONTEXTS)
    return (*telling, *(1 + row % BLOCK_SIZE for row in range(len(telling), rows)))[:rows]


def _check_decode(
    bench: Workbench, model: ModelFile, index: int, window: int, shape: DecodeShape
) -> Check:
    """One new token a row: what attends, given that its key and value reach the cache too."""
    spec, rows, splits, group = model.spec, shape.rows, shape.splits, shape.run
    contexts = _contexts(rows, window)
    heads, kv_heads, head_dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
    twin = RotationTwin.of_layer(model, index)
    sinks, kind = vector(model, model.tensors.layers[index].sinks), bench.kv_type

    def run() -> Pair:
        paged = _paged(bench, model, contexts)
        qkv = bench.normal(rows, heads + 2 * kv_heads, head_dim)
        newest = np.array(contexts, np.int32) - 1
        y: Any = bench.poisoned(rows, heads, head_dim)
        if group is not None:
            y = bench.activations(rows, heads * head_dim, group=group)
        partial = decode_attention.decode_partial_shape(
            rows=rows, num_heads=heads, head_dim=head_dim, splits=splits
        )
        steps = decode_attention.attention_decode(
            bench.kernels,
            heads_on_device(bench, model, qkv),
            paged.key_words,
            paged.value_words,
            bench.ints(paged.block_tables),
            bench.ints(contexts),
            twin.upload(bench, model),
            bench.poisoned(*partial),
            y,
            bench.count(rows),
            rows=rows,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            block_size=BLOCK_SIZE,
            window=window,
            scale=spec.attention_scale,
            splits=splits,
            near=shape.near,
            cap=spec.attention_cap,
            sinks=None if sinks is None else bench.put(sinks),
        )
        outputs = (paged.key_words, paged.value_words)
        if group is not None:
            found = read_quantized(bench, steps, y)
            keys, values = bench.run([], *outputs)
        else:
            found, keys, values = bench.run(steps, y, *outputs)
        slots = paged.block_tables[np.arange(rows), newest // BLOCK_SIZE] * BLOCK_SIZE
        slots += newest % BLOCK_SIZE
        caches: list[F32] = []
        for words, before, new in (
            (keys, paged.keys, twin.keys(qkv[:, heads:-kv_heads], newest)),
            (values, paged.values, qkv[:, -kv_heads:]),
        ):
            cache = floats(words, kind, head_dim).reshape(before.shape)
            if relative_error(cache[slots], new) > TOLERANCE[KINDS[kind]]:
                raise ValueError("new keys or values are wrong in the cache")
            caches.append(cache)
        expected = reference.paged_attention(
            twin.queries(qkv[:, :heads], newest),
            caches[0],
            caches[1],
            paged.block_tables,
            np.arange(rows + 1, dtype=np.int32),
            newest,
            BLOCK_SIZE,
            window,
            spec.attention_scale,
            spec.attention_cap,
            sinks,
        )
        if group is None:
            return found, expected
        return found, bench.rounded(expected.reshape(rows, -1), group)

    label = f"{rows} rows, context {max(contexts)}, window {window or 'all'}, {splits} splits"
    label += ("" if group is None else f", runs of {group}") + suffix(kind)
    rounding = _float_kind(model) if group is None else "int8_round"
    of = kind.upper() if group is None else "int8"
    return bench.compare("attention_decode", of, label, rounding, run)


def _check_prefill(
    bench: Workbench, model: ModelFile, context: int, index: int, window: int
) -> Check:
    """A chunk at the end of one row's context, after keys of earlier chunks; the whole where it sees what follows."""
    spec = model.spec
    ahead = spec.layers[index].ahead
    if window:
        ahead = min(ahead, window - 1)  # as much as its window was shortened
    sinks = vector(model, model.tensors.layers[index].sinks)
    tile_size = ops.prefill_tile_size(bench.device, num_heads=spec.num_heads)
    tokens = context if ahead else min(context, tile_size + 9)  # one whole tile and a ragged one
    first = context - tokens
    tiles = np.array(
        [
            (0, start, min(tile_size, tokens - start), first + start)
            for start in range(0, tokens, tile_size)
        ],
        np.int32,
    )

    def run() -> Pair:
        paged = _paged(bench, model, (context,))
        q = bench.normal(tokens, spec.num_heads, spec.head_dim)
        y = bench.poisoned(*q.shape)
        step = ops.attention_prefill(
            bench.kernels,
            bench.put(q),
            paged.key_words,
            paged.value_words,
            bench.ints(paged.block_tables),
            bench.ints([context]),
            bench.ints(tiles),
            bench.count(len(tiles)),
            y,
            max_tiles=len(tiles),
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            block_size=BLOCK_SIZE,
            window=window,
            scale=spec.attention_scale,
            tile_size=tile_size,
            cap=spec.attention_cap,
            sinks=None if sinks is None else bench.put(sinks),
            ahead=ahead,
        )
        expected = reference.paged_attention(
            q,
            paged.keys,
            paged.values,
            paged.block_tables,
            np.array([0, tokens], np.int32),
            np.arange(first, context, dtype=np.int32),
            BLOCK_SIZE,
            window,
            spec.attention_scale,
            spec.attention_cap,
            sinks,
            ahead,
        )
        return bench.run(step, y)[0], expected

    shape = f"{tokens} tokens, context {context}, window {window or 'all'}{suffix(bench.kv_type)}"
    return bench.compare("attention_prefill", bench.kv_type.upper(), shape, _float_kind(model), run)


def _float_kind(model: ModelFile) -> str:
    """Of the tolerance of attention in float."""
    return "capped" if model.spec.attention_cap else "float"
