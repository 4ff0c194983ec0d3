"""Rotation of queries and keys and their way into the KV cache, in a model's shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..gguf.dequant import dequantize
from ..gguf.reader import TensorInfo
from ..gguf.rope import Temperature, factors_for, layer_rope_tables
from ..gguf.spec import ModelFile
from ..reference import ops as reference
from ..runtime import ops
from ..runtime.kv_cache import BLOCK_SIZE, KVType, head_words
from .bench import F32, Workbench
from .check import Check
from .kv import KINDS, floats

TOKENS = 7
POSITIONS = 600

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
    twin, kind = RotationTwin.of_layer(model, index), bench.kv_type
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
                heads_on_device(bench, model, qkv),
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

    shape = f"{TOKENS}×{{}}×{head_dim} base {base:g}{suffix(kind)}"
    yield bench.compare("rope_kv_write q", "F32", shape.format(heads), "float", queries)
    for name, run in (("k", keys), ("v", values)):
        yield bench.compare(
            f"rope_kv_write {name}", kind.upper(), shape.format(kv_heads), KINDS[kind], run
        )


@dataclass(frozen=True, slots=True)
class RotationTwin:
    """A layer's norms of q and k and their rotation, in NumPy."""

    cos: F32
    sin: F32
    pairing: ops.Pairing
    q_norm: F32 | None
    k_norm: F32 | None
    eps: float
    temperature: Temperature | None

    @classmethod
    def of_layer(cls, model: ModelFile, index: int) -> RotationTwin:
        spec, layer = model.spec, model.tensors.layers[index]
        tensors = model.tensors
        factors = factors_for(spec, tensors.rope_factors, tensors.long_rope_factors, POSITIONS)
        cos, sin = layer_rope_tables(spec, index, vector(model, factors), POSITIONS)
        norms: tuple[F32 | None, F32 | None] = (None, None)
        if not spec.whole_qk_norm:
            norms = (vector(model, layer.q_norm), vector(model, layer.k_norm))
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


def heads_on_device(bench: Workbench, model: ModelFile, qkv: F32) -> ops.Heads:
    """Heads (T, H + 2 KVH, hd) on the device; v apart, as where it has a type of its own."""
    spec, flat = model.spec, qkv.reshape(len(qkv), -1)
    column = (spec.num_heads + spec.num_kv_heads) * spec.head_dim
    return ops.Heads(bench.put(flat[:, :column]), bench.put(flat[:, column:]), 0)


def suffix(kind: KVType) -> str:
    """Behind a case's shape."""
    return "" if kind == "f16" else f", KV in {kind}"


def vector(model: ModelFile, info: TensorInfo | None) -> F32 | None:
    if info is None:
        return None
    return dequantize(model.file.rows(info), info.type).reshape(-1)
