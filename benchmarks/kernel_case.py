"""Case: one op at one shape, with its check against the reference and the work it must do.

Also the model shapes that cases are made for, and random quant blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from gguf import GGMLQuantizationType as GGMLType
from numpy.typing import NDArray

from emberd.gguf.dequant import quant_type
from emberd.runtime.device import Device
from emberd.runtime.kernel import Dispatch

COLD_BYTES = 256 << 20
"""Copies of an op's input take turns until they hold this much, so that no cache holds them all."""

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Case:
    """`chains` holds the op's dispatches once for each copy of its large input."""

    op: str
    type: str
    shape: str
    chains: Sequence[Sequence[Dispatch]]
    check: Callable[[], float]  # runs the first chain; the relative error against the reference
    tolerance: float
    nbytes: int  # that one run must read and write
    ops: int = 0  # multiplications and additions of one run
    integer: bool = False  # whether the ops are int8 ones
    variant: str = ""

    @property
    def kernels(self) -> str:
        return " + ".join(dict.fromkeys(d.kernel.label for d in self.chains[0]))


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes that decide the kernels' shapes."""

    name: str
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    contexts: tuple[int, ...] = (256, 4096, 16384)
    matrices: tuple[tuple[str, str, int, int], ...] = field(init=False)  # role, type, rows, columns

    def __post_init__(self) -> None:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        main, big = ("Q4_K", "Q6_K") if self.hidden % 256 == 0 else ("Q4_1", "Q8_0")
        roles = (
            ("qkv", main, q + 2 * kv, self.hidden),
            ("v", big, kv, self.hidden),
            ("o", main, self.hidden, q),
            ("gate_up", main, 2 * self.ffn, self.hidden),
            ("down", main, self.hidden, self.ffn),
            ("down", big, self.hidden, self.ffn),
            ("output", big, self.vocab, self.hidden),
        )
        object.__setattr__(self, "matrices", roles)


SHAPES = {
    shape.name: shape
    for shape in (
        ModelShape("tiny", 256, 512, 4, 2, 64, 512, contexts=(40, 200)),
        ModelShape("135m", 576, 1536, 9, 3, 64, 49152, contexts=(256, 2048)),
        ModelShape("1b", 2048, 8192, 32, 8, 64, 128256),
        ModelShape("3b", 3072, 8192, 24, 8, 128, 128256),
        ModelShape("8b", 4096, 14336, 32, 8, 128, 128256),
    )
}

_SCALE_BYTES = {
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
}
"""Where the f16 scale and minimum of a quant block are; of other types a scale is first."""


def random_weights(rng: np.random.Generator, rows: int, cols: int, kind: GGMLType) -> Bytes:
    """(rows, bytes a row) of random weights of a type; quant blocks with small random scales."""
    if kind in (GGMLType.F32, GGMLType.F16, GGMLType.BF16):
        values = rng.standard_normal((rows, cols), dtype=np.float32)
        if kind == GGMLType.F16:
            return values.astype(np.float16).view(np.uint8)
        words = values.view(np.uint16).reshape(rows, cols, 2)
        return (values if kind == GGMLType.F32 else words[..., 1].copy()).view(np.uint8)
    packing = quant_type(kind)
    count = rows * cols // packing.weights
    raw = np.frombuffer(rng.bytes(count * packing.nbytes), np.uint8).reshape(count, -1).copy()
    if kind == GGMLType.MXFP4:
        raw[:, 0] = rng.integers(116, 120, count)  # powers of two
        return raw.reshape(rows, -1)
    for at in _SCALE_BYTES.get(kind.name, (0,)):
        scales = rng.uniform(0.75e-3, 1.25e-3, count)
        stored = scales.astype(np.float32 if kind == GGMLType.Q8_K else np.float16)
        raw[:, at : at + stored.itemsize] = stored.view(np.uint8).reshape(count, -1)
    return raw.reshape(rows, -1)


def copies_of(device: Device, nbytes: int) -> int:
    """How many copies of an input of `nbytes` make a cold chain: one where there is no such cache."""
    return 1 if device.info.is_software else max(1, min(64, -(-COLD_BYTES // nbytes)))
