"""attention_decode against paged_attention over the same f16 keys and values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from emberd.errors import DeviceError
from emberd.gguf.rope import Temperature, rope_tables
from emberd.reference import ops as reference
from emberd.runtime import decode_attention, ops
from emberd.runtime.activations import QuantizedActivations
from emberd.runtime.device import Device, Tensor
from emberd.runtime.kernel import Kernels, run_once
from linear_cases import check_quantized, poisoned, with_subgroups
from tolerance import check

pytestmark = pytest.mark.device

SHAPES = [(9, 3, 64), (14, 2, 64), (4, 1, 256), (3, 3, 80), (2, 1, 6)]
"""Heads, kv heads, head size: groups of 3, 7, 4, 1 and 2; wide and narrow words."""


@dataclass(frozen=True)
class Cache:
    """Random keys and values of several rows in scattered blocks; every slot of no row holds NaN."""

    k: NDArray[np.float32]
    v: NDArray[np.float32]
    block_tables: NDArray[np.int32]
    block_size: int

    @classmethod
    def filled(
        cls,
        rng: np.random.Generator,
        context_lens: NDArray[np.int32],
        kv_heads: int,
        head_dim: int,
        block_size: int = 16,
    ) -> Cache:
        blocks = -(-context_lens // block_size)
        num_blocks = int(blocks.sum()) + 3
        shuffled = rng.permutation(num_blocks).astype(np.int32)
        tables = np.full((len(context_lens), int(blocks.max()) + 2), -1, np.int32)
        shape = (num_blocks * block_size, kv_heads, head_dim)
        k, v = np.full((2, *shape), np.nan, np.float16)
        for row, (length, count) in enumerate(zip(context_lens, blocks, strict=True)):
            tables[row, :count], shuffled = shuffled[:count], shuffled[count:]
            positions = np.arange(length)
            slots = tables[row, positions // block_size] * block_size + positions % block_size
            k[slots], v[slots] = rng.standard_normal((2, length, kv_heads, head_dim)) * 2
        return cls(k.astype(np.float32), v.astype(np.float32), tables, block_size)

    def upload(self, device: Device) -> tuple[Tensor, Tensor]:
        k, v = (
            device.upload(np.ascontiguousarray(part.astype(np.float16)).view(np.uint32))
            for part in (self.k, self.v)
        )
        return k, v


@dataclass(frozen=True)
class NewTokens:
    """The newest token of every row as projected; `rotate` gives what attends and what is cached."""

    qkv: NDArray[np.float32]  # (rows, H + 2 KVH, hd)
    cos: NDArray[np.float32]
    sin: NDArray[np.float32]
    norms: NDArray[np.float32] | None  # (2, hd): of q and k
    pairing: ops.Pairing
    heads: int
    kv_heads: int

    @classmethod
    def drawn(
        cls,
        rng: np.random.Generator,
        rows: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        norms: bool,
    ) -> NewTokens:
        rope_dim = head_dim - head_dim % 4 if norms else head_dim
        cos, sin = rope_tables(rope_dim, 10000.0, 1.0, None, 400)
        return cls(
            rng.standard_normal((rows, heads + 2 * kv_heads, head_dim), np.float32),
            cos,
            sin,
            rng.standard_normal((2, head_dim), np.float32) if norms else None,
            "halves" if norms else "adjacent",
            heads,
            kv_heads,
        )

    def upload(self, device: Device, apart: bool) -> tuple[ops.Heads, ops.Rotation]:
        rows, _, head_dim = self.qkv.shape
        column = (self.heads + self.kv_heads) * head_dim
        flat = self.qkv.reshape(rows, -1)
        qk = device.upload(flat[:, :column] if apart else flat)
        heads = ops.Heads(
            qk, device.upload(flat[:, column:]) if apart else qk, 0 if apart else column
        )
        norms = [None, None] if self.norms is None else [device.upload(n) for n in self.norms]
        cos, sin = device.upload(self.cos), device.upload(self.sin)
        dims = 2 * self.cos.shape[1]
        return heads, ops.Rotation(cos, sin, dims, self.pairing, norms[0], norms[1], 1e-6)

    def rotate(
        self, positions: NDArray[np.int32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """q, k and v, the latter two as f16 holds them."""
        q, k = self.qkv[:, : self.heads], self.qkv[:, self.heads : -self.kv_heads]
        if self.norms is not None:
            q, k = (reference.rms_norm(x, w, 1e-6) for x, w in zip((q, k), self.norms, strict=True))
        q, k = (reference.rope(x, positions, self.cos, self.sin, self.pairing) for x in (q, k))
        return q, k.astype(np.float16), self.qkv[:, -self.kv_heads :].astype(np.float16)


def _decode(
    kernels: Kernels,
    rng: np.random.Generator,
    shape: tuple[int, int, int],
    *,
    window: int,
    splits: int,
    norms: bool = False,
    int8: bool = False,
    with_sinks: bool = False,
    temperature: Temperature | None = None,
    near: bool = False,
    alone: int = 0,
) -> None:
    """Contexts of one key, around the tile and around the window; rows past the count keep their poison. `alone`: one
    row with a context of that many tokens instead."""
    device = kernels.device
    heads, kv_heads, head_dim = shape
    lengths = np.array([alone] if alone else [1, 65, 127, 129, 300, 33], np.int32)
    rows = len(lengths)
    live = max(1, rows - 1)
    cache = Cache.filled(rng, lengths, kv_heads, head_dim)
    newest = lengths - 1
    slots = cache.block_tables[np.arange(rows), newest // cache.block_size] * cache.block_size
    slots += newest % cache.block_size
    cache.k[slots] = cache.v[slots] = np.nan  # the new keys are not there yet
    k, v = cache.upload(device)
    tokens = NewTokens.drawn(rng, rows, heads, kv_heads, head_dim, norms)
    projected, rotation = tokens.upload(device, apart=norms)
    rotation = replace(rotation, temperature=temperature)
    y: Tensor | QuantizedActivations = device.upload(
        np.full((rows + 2, heads, head_dim), np.nan, np.float32)
    )
    if int8:
        group, fine = int(rng.choice([16, 32])), bool(rng.integers(2))
        y = poisoned(device, rows + 2, heads * head_dim, group=group, fine=fine)
    partial = decode_attention.decode_partial_shape(
        rows=rows, num_heads=heads, head_dim=head_dim, splits=splits
    )
    scale = head_dim**-0.5
    sinks = rng.normal(0, 3, heads).astype(np.float32) if with_sinks else None
    dispatches = decode_attention.attention_decode(
        kernels,
        projected,
        k,
        v,
        device.upload(cache.block_tables),
        device.upload(lengths),
        rotation,
        device.upload(np.full(partial, np.nan, np.float32)),
        y,
        device.upload(np.array([live], np.uint32)),
        rows=rows,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=cache.block_size,
        window=window,
        scale=scale,
        splits=splits,
        near=near,
        sinks=None if sinks is None else device.upload(sinks),
    )
    run_once(device, dispatches)

    q, new_k, new_v = tokens.rotate(newest)
    if temperature is not None:
        q = q * temperature.factors(newest)[:, None, None]
    cached = []
    for tensor, before, new in ((k, cache.k, new_k), (v, cache.v, new_v)):
        after = device.read(tensor).view(np.float16).reshape(before.shape)
        check(after[slots[:live]], new[:live], "f16")
        others = np.setdiff1d(np.arange(len(before)), slots[:live])
        np.testing.assert_array_equal(after[others], before[others].astype(np.float16))
        cached.append(after.astype(np.float32))
    expected = reference.paged_attention(
        q[:live],
        *cached,
        cache.block_tables,
        np.arange(live + 1, dtype=np.int32),
        newest[:live],
        cache.block_size,
        window,
        scale,
        sinks=sinks,
    )
    if isinstance(y, Tensor):
        out = device.read(y)
        check(out[:live], expected, "float")
        assert np.isnan(out[live:]).all()
        return
    check_quantized(device, y, expected.reshape(live, -1))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("window", "splits"), [(0, 1), (0, 5), (40, 3), (200, 4)])
def test_attention_decode_matches_reference(
    kernels: Kernels,
    rng: np.random.Generator,
    shape: tuple[int, int, int],
    window: int,
    splits: int,
) -> None:
    _decode(kernels, rng, shape, window=window, splits=splits)


@pytest.mark.parametrize("shape", [(4, 1, 256), (14, 2, 64), (3, 3, 80), (2, 1, 6)])
def test_attention_decode_norms_heads_and_rotates_halves(
    kernels: Kernels, rng: np.random.Generator, shape: tuple[int, int, int]
) -> None:
    """Some dims stay unrotated; v comes from a tensor of its own."""
    _decode(kernels, rng, shape, window=0, splits=1, norms=True)


@pytest.mark.parametrize("shape", [(9, 3, 64), (4, 1, 256), (5, 1, 96)])
@pytest.mark.parametrize("splits", [1, 3])
def test_attention_decode_to_int8(
    kernels: Kernels, rng: np.random.Generator, shape: tuple[int, int, int], splits: int
) -> None:
    _decode(kernels, rng, shape, window=0, splits=splits, int8=True)


@pytest.mark.parametrize(("splits", "int8"), [(1, False), (3, True)])
def test_attention_decode_with_sinks_and_queries_that_grow(
    kernels: Kernels, rng: np.random.Generator, splits: int, int8: bool
) -> None:
    grows = Temperature(0.4, 50) if splits == 1 else None
    how = {"window": 40, "splits": splits, "int8": int8, "temperature": grows}
    _decode(kernels, rng, (6, 2, 32), with_sinks=True, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "how"),
    [
        ((4, 1, 144), {"splits": 1, "norms": True}),
        ((3, 1, 150), {"splits": 3, "window": 40}),
        ((2, 2, 192), {"splits": 1, "int8": True}),
        ((5, 1, 254), {"splits": 1, "norms": True}),
        ((6, 2, 320), {"splits": 1, "norms": True, "window": 200}),
        ((4, 2, 510), {"splits": 2, "norms": True, "with_sinks": True}),
        ((5, 1, 512), {"splits": 1, "norms": True, "with_sinks": True}),
        ((2, 1, 512), {"splits": 4, "window": 200}),
    ],
)
def test_attention_decode_of_large_heads(
    kernels: Kernels, rng: np.random.Generator, shape: tuple[int, int, int], how: dict[str, Any]
) -> None:
    _decode(kernels, rng, shape, **({"window": 0} | how))


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("shape", [(9, 3, 64), (14, 2, 32), (5, 1, 48)])
def test_attention_decode_by_subgroups(
    device: Device,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, int, int],
    norms: bool,
) -> None:
    """Groups of a whole subgroup and of half of one, heads that do not fill theirs, a tile and more than one, every
    number of subgroups that is joined in its own way."""
    kernels = Kernels(with_subgroups(device))
    subgroup, head_dim = kernels.device.subgroup_size or 0, shape[2]
    if head_dim > 8 * subgroup:
        pytest.skip(f"heads of {head_dim} dims need more lanes than {subgroup}")
    for together, subgroups, window, splits in (
        (4, 8, 0, 1),
        (4, 2, 0, 3),
        (4, 4, 40, 2),
        (1, 1, 0, 2),
        (1, 16, 40, 1),
        (1, 32, 0, 3),
    ):
        lanes = subgroups * subgroup
        monkeypatch.setattr(decode_attention, "_decode_lanes", lambda *_, lanes=lanes: lanes)
        monkeypatch.setattr(
            decode_attention, "heads_together", lambda *_, together=together: together
        )
        int8 = head_dim % 32 == 0 and bool(rng.integers(2))
        sinks = not norms and bool(rng.integers(2))
        grows = Temperature(0.4, 50) if rng.integers(2) else None
        how = {"window": window, "splits": splits, "int8": int8, "temperature": grows}
        _decode(kernels, rng, shape, norms=norms, with_sinks=sinks, **how)  # type: ignore[arg-type]
    monkeypatch.undo()
    few = Kernels(kernels.device)
    _decode(few, rng, shape, norms=norms, window=0, splits=1, near=True)
    assert [dict(kernel.key.includes)["together"] for kernel in few.all()] == ["heads_one"]
    assert {kernel.key.name for kernel in kernels.all()} == {
        "attention_decode_subgroups",
        "attention_decode_merge",
    }


@pytest.mark.parametrize(("length", "window"), [(1, 0), (34, 0), (300, 0), (300, 40)])
@pytest.mark.parametrize("shape", [(8, 2, 64), (3, 3, 32)])
def test_attention_decode_of_one_row_by_subgroups(
    device: Device, rng: np.random.Generator, shape: tuple[int, int, int], length: int, window: int
) -> None:
    """It has twice the lanes, and without a window finds its keys' blocks before it knows how many there are."""
    kernels = Kernels(with_subgroups(device))
    if shape[2] > 8 * (kernels.device.subgroup_size or 0):
        pytest.skip(f"heads of {shape[2]} dims need more lanes than a subgroup has")
    _decode(kernels, rng, shape, window=window, splits=1, int8=True, alone=length)
    alone = dict(kernels.all()[-1].key.constants)
    _decode(kernels, rng, shape, window=window, splits=1, int8=True)
    many = dict(kernels.all()[-1].key.constants)
    assert alone["WG"] == 2 * many["WG"]
    assert alone["WHOLE"] == (window == 0) and not many["WHOLE"]


def test_head_sizes_beyond_the_kernels_are_refused_with_the_limit(
    device: Device, kernels: Kernels
) -> None:
    with pytest.raises(DeviceError, match=r"514 dims .* up to 512"):
        ops.kv_include(device, 514)
