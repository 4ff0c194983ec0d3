"""Rotation with the KV write, and paged attention, in a model's shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..gguf.dequant import dequantize
from ..gguf.reader import TensorInfo
from ..gguf.rope import Temperature, factors_for, layer_rope_tables
from ..gguf.spec import ModelFile
from ..reference import ops as reference
from ..runtime import decode_attention, ops
from ..runtime.activations import QUANT_RUN, activations
from ..runtime.device import Tensor
from ..runtime.kv_cache import BLOCK_SIZE, KVType, head_words
from ..runtime.weights import FLOAT_TYPES
from .bench import F32, GROUP, Workbench, decoded, read_quantized
from .check import TOLERANCE, Check, relative_error
from .kv import KINDS, cached, floats

TOKENS = 7
POSITIONS = 600
CONTEXTS = (1, 70, 300)
WINDOW = 500
"""Longer windows are checked as this one: a kernel is told its window, so that contexts beyond it show all there is
to see. With the 40 positions beyond it, it lies within `POSITIONS`."""

Pair = tuple[NDArray[Any], NDArray[Any]]


def check_rope(bench: Workbench, model: ModelFile) -> Iterator[Check]:
    """rope_kv_write for every rope base and scale: q as f32, k and v as they lie in the cache."""
    kinds = {(layer.rope_base, layer.rope_scale): i for i, layer in enumerate(model.spec.layers)}
    for (base, scale), index in kinds.items():
        yield from _check_rope(bench, model, index, base, scale)


def _check_rope(
    bench: Workbench, model: ModelFile, index: int, base: float, scale: float
) -> Iterator[Check]:
    spec = model.spec
    heads, kv_heads, head_dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
    twin, kind = _Rotation.of_layer(model, index), bench.kv_type
    qkv = bench.normal(TOKENS, heads + 2 * kv_heads, head_dim)
    positions = bench.rng.integers(0, POSITIONS, TOKENS).astype(np.int32)
    slots = bench.rng.permutation(4 * BLOCK_SIZE)[:TOKENS].astype(np.int32)
    made: list[NDArray[Any]] = []

    def device() -> list[NDArray[Any]]:
        if not made:
            q = bench.poisoned(TOKENS, heads, head_dim)
            shape = (4 * BLOCK_SIZE, kv_heads, head_words(head_dim, kind))
            keys, values = bench.device.empty(shape, "u32"), bench.device.empty(shape, "u32")
            step = ops.rope_kv_write(
                bench.kernels,
                _heads(bench, model, qkv),
                q,
                keys,
                values,
                bench.ints(positions),
                bench.ints(slots),
                twin.upload(bench, model),
                bench.count(0),
                bench.count(TOKENS),
                rows=TOKENS,
                num_heads=heads,
                num_kv_heads=kv_heads,
                head_dim=head_dim,
            )
            made.extend(bench.run(step, q, keys, values))
        return made

    def queries() -> Pair:
        return device()[0], twin.queries(qkv[:, :heads], positions)

    def keys() -> Pair:
        expected = twin.keys(qkv[:, heads : heads + kv_heads], positions)
        return floats(device()[1], kind, head_dim)[slots], expected

    def values() -> Pair:
        return floats(device()[2], kind, head_dim)[slots], qkv[:, heads + kv_heads :]

    shape = f"{TOKENS}×{{}}×{head_dim} base {base:g}{_suffix(kind)}"
    yield bench.compare("rope_kv_write q", "F32", shape.format(heads), "float", queries)
    for name, run in (("k", keys), ("v", values)):
        yield bench.compare(
            f"rope_kv_write {name}", kind.upper(), shape.format(kv_heads), KINDS[kind], run
        )


@dataclass(frozen=True, slots=True)
class _Rotation:
    """A layer's norms of q and k and their rotation, in NumPy."""

    cos: F32
    sin: F32
    pairing: ops.Pairing
    q_norm: F32 | None
    k_norm: F32 | None
    eps: float
    temperature: Temperature | None

    @classmethod
    def of_layer(cls, model: ModelFile, index: int) -> _Rotation:
        spec, layer = model.spec, model.tensors.layers[index]
        tensors = model.tensors
        factors = factors_for(spec, tensors.rope_factors, tensors.long_rope_factors, POSITIONS)
        cos, sin = layer_rope_tables(spec, index, _vector(model, factors), POSITIONS)
        norms: tuple[F32 | None, F32 | None] = (None, None)
        if not spec.whole_qk_norm:
            norms = (_vector(model, layer.q_norm), _vector(model, layer.k_norm))
        return cls(cos, sin, spec.rope_pairing, *norms, spec.norm_eps, spec.temperature)

    def upload(self, bench: Workbench, model: ModelFile) -> ops.Rotation:
        return ops.Rotation(
            bench.put(self.cos),
            bench.put(self.sin),
            model.spec.rope_dim,
            self.pairing,
            None if self.q_norm is None else bench.put(self.q_norm),
            None if self.k_norm is None else bench.put(self.k_norm),
            self.eps,
            self.temperature,
        )

    def queries(self, x: F32, positions: NDArray[np.int32]) -> F32:
        q = self._rotated(x, self.q_norm, positions)
        if self.temperature is None:
            return q
        return q * self.temperature.factors(positions)[:, None, None]

    def keys(self, x: F32, positions: NDArray[np.int32]) -> F32:
        return self._rotated(x, self.k_norm, positions)

    def _rotated(self, x: F32, norm: F32 | None, positions: NDArray[np.int32]) -> F32:
        x = x if norm is None else reference.rms_norm(x, norm, self.eps)
        return reference.rope(x, positions, self.cos, self.sin, self.pairing)


def _heads(bench: Workbench, model: ModelFile, qkv: F32) -> ops.Heads:
    """Heads (T, H + 2 KVH, hd) on the device; v apart, as where it has a type of its own."""
    spec, flat = model.spec, qkv.reshape(len(qkv), -1)
    column = (spec.num_heads + spec.num_kv_heads) * spec.head_dim
    return ops.Heads(bench.put(flat[:, :column]), bench.put(flat[:, column:]), 0)


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


def _suffix(kind: KVType) -> str:
    """Behind a case's shape."""
    return "" if kind == "f16" else f", KV in {kind}"


def check_attention(bench: Workbench, model: ModelFile) -> Iterator[Check]:
    """Decode and prefill attention for every window among the layers up to `WINDOW`, over contexts longer than it."""
    spec, layers = model.spec, model.tensors.layers
    types = {layer.o.type in FLOAT_TYPES for layer in layers}
    forms = {"float" if is_float or spec.head_dim % QUANT_RUN else "int8" for is_float in types}
    windows = {min(layer.window, WINDOW): index for index, layer in enumerate(spec.layers)}
    for window, index in sorted(windows.items()):
        contexts = (*CONTEXTS, window + 40) if window else CONTEXTS
        sizes = {"rows": len(contexts), "num_kv_heads": spec.num_kv_heads}
        splits = {
            decode_attention.decode_splits(bench.device, context=n, **sizes)
            for n in (1, 1024, 1 << 20)
        }
        for count in sorted(splits):
            for form in sorted(forms | {"float"}):  # beside prefill rows it is always float
                yield _check_decode(bench, model, contexts, index, window, count, form)
        yield _check_prefill(bench, model, max(contexts), index, window)


def _check_decode(
    bench: Workbench,
    model: ModelFile,
    contexts: tuple[int, ...],
    index: int,
    window: int,
    splits: int,
    form: str,
) -> Check:
    """One new token a row: what attends, given that its key and value reach the cache too."""
    spec, rows = model.spec, len(contexts)
    heads, kv_heads, head_dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
    twin = _Rotation.of_layer(model, index)
    sinks, kind = _vector(model, model.tensors.layers[index].sinks), bench.kv_type

    def run() -> Pair:
        paged = _paged(bench, model, contexts)
        qkv = bench.normal(rows, heads + 2 * kv_heads, head_dim)
        newest = np.array(contexts, np.int32) - 1
        y: Any = bench.poisoned(rows, heads, head_dim)
        if form == "int8":
            y = activations(bench.device, rows, heads * head_dim, group=GROUP)
        partial = decode_attention.decode_partial_shape(
            rows=rows, num_heads=heads, head_dim=head_dim, splits=splits
        )
        steps = decode_attention.attention_decode(
            bench.kernels,
            _heads(bench, model, qkv),
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
            cap=spec.attention_cap,
            sinks=None if sinks is None else bench.put(sinks),
        )
        outputs = (paged.key_words, paged.value_words)
        if form == "int8":
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
        if form == "float":
            return found, expected
        return found, decoded(*reference.quantize_q8(expected.reshape(rows, -1), GROUP))

    shape = f"{rows} rows, context {max(contexts)}, window {window or 'all'}, {splits} splits"
    rounding = _float_kind(model) if form == "float" else "int8_round"
    label = kind.upper() if form == "float" else "int8"
    return bench.compare("attention_decode", label, shape + _suffix(kind), rounding, run)


def _check_prefill(
    bench: Workbench, model: ModelFile, context: int, index: int, window: int
) -> Check:
    """A chunk at the end of one row's context, after keys of earlier chunks."""
    spec = model.spec
    sinks = _vector(model, model.tensors.layers[index].sinks)
    tile_size = ops.prefill_tile_size(bench.device, num_heads=spec.num_heads)
    tokens = min(context, tile_size + 9)  # one whole tile and a ragged one
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
        )
        return bench.run(step, y)[0], expected

    shape = f"{tokens} tokens, context {context}, window {window or 'all'}{_suffix(bench.kv_type)}"
    return bench.compare("attention_prefill", bench.kv_type.upper(), shape, _float_kind(model), run)


def _float_kind(model: ModelFile) -> str:
    """Of the tolerance of attention in float."""
    return "capped" if model.spec.attention_cap else "float"


def _vector(model: ModelFile, info: TensorInfo | None) -> F32 | None:
    if info is None:
        return None
    return dequantize(model.file.rows(info), info.type).reshape(-1)
