"""Norms, activations, rotation, attention and sampling at the shapes of real models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emberd.gguf.rope import rope_tables
from emberd.protocol import Admission, SamplingParams
from emberd.reference import ops as reference
from emberd.reference.sampling import SamplerState, sample
from emberd.runtime import decode_attention, linear, ops
from emberd.runtime.kv_cache import BLOCK_SIZE
from emberd.runtime.sampler import Mode, Sampler
from emberd.verify.bench import Workbench, read_quantized
from emberd.verify.check import TOLERANCE, relative_error
from kernel_case import Case, ModelShape, copies_of

EPS = 1e-5

MAX_SLOTS = 1 << 16
"""KV positions that a case may hold."""


def op_cases(
    bench: Workbench, shape: ModelShape, tokens: Sequence[int], wanted: Callable[[str], bool]
) -> Iterator[Case]:
    """Every op of the forward pass that is no matrix product, if its name is wanted."""
    for count in tokens:
        if wanted("rms_norm_quantize"):
            yield _norm(bench, shape, count)
        if wanted("silu_mul_quantize"):
            yield _activation(bench, shape, count)
        if wanted("rope_kv_write"):
            yield _rope(bench, shape, count)
    if wanted("attention_decode"):
        for context in shape.contexts:
            for rows in (1, 8, 32):
                if rows * context <= MAX_SLOTS:
                    yield _decode(bench, shape, rows, context)
    if wanted("attention_prefill"):
        prompt = min(512, max(shape.contexts))
        for context in sorted({prompt, max(shape.contexts)}):
            yield _prefill(bench, shape, prompt, context)
    if wanted("sampler"):
        for rows in (1, 32):
            yield _sampling(bench, shape, rows, "greedy", SamplingParams(temperature=0))
            chosen = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, seed=7)
            yield _sampling(bench, shape, rows, "top-k top-p", chosen)


def _norm(bench: Workbench, shape: ModelShape, tokens: int) -> Case:
    width = shape.hidden
    x, weight = bench.normal(tokens, width), bench.normal(width)
    out = linear.activations(bench.device, tokens, width)
    step = linear.rms_norm_quantize(
        bench.kernels, bench.put(x), bench.put(weight), out, rows=tokens, width=width, eps=EPS
    )
    expected = bench.rounded(reference.rms_norm(x, weight, EPS))
    return Case(
        op="rms_norm_quantize",
        type="int8",
        shape=f"{shape.name} {tokens}×{width}",
        chains=[[step]],
        check=lambda: relative_error(read_quantized(bench, step, out), expected),
        tolerance=TOLERANCE["int8_round"],
        nbytes=5 * tokens * width,
    )


def _activation(bench: Workbench, shape: ModelShape, tokens: int) -> Case:
    width = shape.ffn
    gate_up = bench.normal(tokens, 2 * width)
    out = linear.activations(bench.device, tokens, width)
    step = linear.silu_mul_quantize(
        bench.kernels, bench.put(gate_up), out, rows=tokens, width=width, activation="silu"
    )
    product = reference.silu_mul(gate_up[:, :width], gate_up[:, width:])
    expected = bench.rounded(product)
    return Case(
        op="silu_mul_quantize",
        type="int8",
        shape=f"{shape.name} {tokens}×{width}",
        chains=[[step]],
        check=lambda: relative_error(read_quantized(bench, step, out), expected),
        tolerance=TOLERANCE["int8_round"],
        nbytes=9 * tokens * width,
    )


def _rope(bench: Workbench, shape: ModelShape, tokens: int) -> Case:
    heads, kv_heads, dim = shape.heads, shape.kv_heads, shape.head_dim
    qkv = bench.normal(tokens, heads + 2 * kv_heads, dim)
    positions = bench.rng.integers(0, 1000, tokens).astype(np.int32)
    cos, sin = rope_tables(dim, 10000.0, 1.0, None, 1000)
    slots = bench.rng.permutation(2 * tokens)[:tokens].astype(np.int32)
    q = bench.poisoned(tokens, heads, dim)
    k_cache, v_cache = (
        bench.device.empty((2 * tokens, kv_heads, dim // 2), "u32") for _ in range(2)
    )
    step = ops.rope_kv_write(
        bench.kernels,
        _heads(bench, shape, qkv),
        q,
        k_cache,
        v_cache,
        bench.ints(positions),
        bench.ints(slots),
        ops.Rotation(bench.put(cos), bench.put(sin), dim, "adjacent", None, None, EPS),
        bench.count(0),
        bench.count(tokens),
        rows=tokens,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
    )

    def check() -> float:
        out, keys, values = bench.run(step, q, k_cache, v_cache)
        rotated = reference.rope(qkv[:, : heads + kv_heads], positions, cos, sin, "adjacent")
        found = np.concatenate(
            [out, keys.view(np.float16)[slots], values.view(np.float16)[slots]], axis=1
        )
        return relative_error(found, np.concatenate([rotated, qkv[:, heads + kv_heads :]], axis=1))

    nbytes = tokens * dim * (8 * heads + 12 * kv_heads)
    return Case(
        op="rope_kv_write",
        type="F16",
        shape=f"{shape.name} {tokens} tokens",
        chains=[[step]],
        check=check,
        tolerance=TOLERANCE["f16"],
        nbytes=nbytes,
    )


def _heads(bench: Workbench, shape: ModelShape, qkv: NDArray[np.float32]) -> ops.Heads:
    """q, k and v heads (T, H + 2 KVH, hd) in one tensor."""
    flat = bench.put(qkv.reshape(len(qkv), -1))
    return ops.Heads(flat, flat, (shape.heads + shape.kv_heads) * shape.head_dim)


class _Paged:
    """A random KV cache; each row's blocks lie scattered. `contexts`: tokens of each row."""

    def __init__(self, bench: Workbench, shape: ModelShape, contexts: Sequence[int]) -> None:
        per_row = [-(-length // BLOCK_SIZE) for length in contexts]
        order = bench.rng.permutation(sum(per_row)).astype(np.int32)
        self.tables = np.full((len(contexts), max(per_row)), -1, np.int32)
        for row, (start, end) in enumerate(pairwise(np.cumsum([0, *per_row]))):
            self.tables[row, : end - start] = order[start:end]
        sizes = (sum(per_row) * BLOCK_SIZE, shape.kv_heads, shape.head_dim)
        self.keys, self.values = (bench.normal(*sizes).astype(np.float16) for _ in range(2))
        copies = copies_of(bench.device, 2 * self.keys.nbytes)
        self.caches = [
            (bench.put(self.keys.view(np.uint32)), bench.put(self.values.view(np.uint32)))
            for _ in range(copies)
        ]

    def attention(
        self, q: NDArray[np.float32], row: int, positions: NDArray[np.int32], scale: float
    ) -> NDArray[np.float32]:
        """The reference for some tokens of one row."""
        blocks = self.tables[row, : -(-(int(positions[-1]) + 1) // BLOCK_SIZE)]
        place = (blocks[:, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE)).reshape(-1)
        place = place[: int(positions[-1]) + 1]
        keys, values = (x[place].astype(np.float32) for x in (self.keys, self.values))
        return reference.attention(q, keys, values, positions, 0, scale)


def _decode(bench: Workbench, shape: ModelShape, rows: int, context: int) -> Case:
    """One new token a row: rotation, KV write, attention, result in int8. The new key lies in the cache already."""
    heads, kv_heads, dim = shape.heads, shape.kv_heads, shape.head_dim
    scale, newest = dim**-0.5, np.full(rows, context - 1, np.int32)
    paged = _Paged(bench, shape, [context] * rows)
    qkv = bench.normal(rows, heads + 2 * kv_heads, dim)
    slots = paged.tables[np.arange(rows), newest // BLOCK_SIZE] * BLOCK_SIZE + newest % BLOCK_SIZE
    cos, sin = rope_tables(dim, 10000.0, 1.0, None, context)
    paged.keys[slots] = reference.rope(qkv[:, heads:-kv_heads], newest, cos, sin, "adjacent")
    paged.values[slots] = qkv[:, -kv_heads:]
    y = linear.activations(bench.device, rows, heads * dim)
    splits = decode_attention.decode_splits(
        bench.device, rows=rows, num_kv_heads=kv_heads, context=context
    )
    partial = bench.poisoned(
        *decode_attention.decode_partial_shape(
            rows=rows, num_heads=heads, head_dim=dim, splits=splits
        )
    )
    tables, contexts = bench.ints(paged.tables), bench.ints([context] * rows)
    count, projected = bench.count(rows), _heads(bench, shape, qkv)
    rotation = ops.Rotation(bench.put(cos), bench.put(sin), dim, "adjacent", None, None, EPS)
    chains = [
        decode_attention.attention_decode(
            bench.kernels,
            projected,
            keys,
            values,
            tables,
            contexts,
            rotation,
            partial,
            y,
            count,
            rows=rows,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=dim,
            block_size=BLOCK_SIZE,
            window=0,
            scale=scale,
            splits=splits,
        )
        for keys, values in paged.caches
    ]

    def check() -> float:
        found = read_quantized(bench, chains[0], y)
        q = reference.rope(qkv[:, :heads], newest, cos, sin, "adjacent")
        checked = sorted({0, rows - 1})
        expected = [
            paged.attention(q[row : row + 1], row, newest[:1], scale).reshape(1, -1)
            for row in checked
        ]
        rounded = bench.rounded(np.concatenate(expected))
        return relative_error(found[checked], rounded)

    return Case(
        op="attention_decode",
        type="int8",
        shape=f"{shape.name} {rows} rows, context {context}",
        chains=chains,
        check=check,
        tolerance=TOLERANCE["int8_round"],
        nbytes=rows * context * kv_heads * dim * 4,
        ops=4 * rows * context * heads * dim,
    )


def _prefill(bench: Workbench, shape: ModelShape, tokens: int, context: int) -> Case:
    """The last `tokens` of one row's context."""
    heads, kv_heads, dim = shape.heads, shape.kv_heads, shape.head_dim
    scale, first = dim**-0.5, context - tokens
    paged = _Paged(bench, shape, [context])
    q = bench.normal(tokens, heads, dim)
    y = bench.poisoned(tokens, heads, dim)
    size = ops.prefill_tile_size(bench.device, num_heads=heads)
    tiles = [(0, at, min(size, tokens - at), first + at) for at in range(0, tokens, size)]
    keys, values = paged.caches[0]
    step = ops.attention_prefill(
        bench.kernels,
        bench.put(q),
        keys,
        values,
        bench.ints(paged.tables),
        bench.ints([context]),
        bench.ints(np.array(tiles)),
        bench.count(len(tiles)),
        y,
        max_tiles=len(tiles),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        block_size=BLOCK_SIZE,
        window=0,
        scale=scale,
        tile_size=size,
    )

    def check() -> float:
        out = bench.run(step, y)[0]
        checked = slice(max(0, tokens - 40), tokens)
        positions = np.arange(first, context, dtype=np.int32)[checked]
        return relative_error(out[checked], paged.attention(q[checked], 0, positions, scale))

    visible = tokens * first + tokens * (tokens + 1) // 2
    return Case(
        op="attention_prefill",
        type="F16",
        shape=f"{shape.name} {tokens} tokens, context {context}",
        chains=[[step]],
        check=check,
        tolerance=TOLERANCE["float"],
        nbytes=context * kv_heads * dim * 4 + 8 * tokens * heads * dim,
        ops=4 * visible * heads * dim,
    )


def _sampling(
    bench: Workbench, shape: ModelShape, rows: int, name: str, params: SamplingParams
) -> Case:
    logits = bench.normal(rows, shape.vocab) * np.float32(3)
    positions = bench.rng.integers(1, 1000, rows).astype(np.int32)
    sampler = Sampler(bench.device, bench.kernels, rows, shape.vocab)
    for index in range(rows):
        sampler.admit(Admission(index, params, (1, 2, 3), 3))
    out = bench.ints(np.full(rows, -2))
    chain = sampler.dispatches(
        bench.put(logits),
        bench.ints(np.arange(rows)),
        bench.ints(positions),
        out,
        bench.count(rows),
        rows=rows,
        mode=Mode.PLAIN,
    )

    def check() -> float:
        tokens: NDArray[Any] = bench.run(chain, out)[0]
        states = [SamplerState.start(params, (1, 2, 3), shape.vocab) for _ in range(rows)]
        return float(np.mean(tokens != sample(logits, states, positions)))

    return Case(
        op="sampler",
        type="F32",
        shape=f"{shape.name} {rows}×{shape.vocab} {name}",
        chains=[chain],
        check=check,
        tolerance=0.0,
        nbytes=4 * rows * shape.vocab,
    )
