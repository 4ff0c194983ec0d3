"""The KV cache on the GPU: one K and one V tensor a layer, in f16 or q8_0, addressed by slot.

In q8_0 every 32 dims of a head are int8 with one f16 scale: a quarter of a word a dim, then a word for each two scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..gguf.spec import ModelSpec
from .device import Device, Tensor

BLOCK_SIZE = 32
"""KV positions a block. Long enough that a decode step rarely changes a block table."""

KVType = Literal["f16", "q8_0"]
KV_TYPES: tuple[KVType, ...] = ("f16", "q8_0")

_RUN = 32  # dims that share a scale


@dataclass(frozen=True, slots=True)
class KVCache:
    """`keys[l]`, `values[l]`: (num_slots, num_kv_heads, `head_words`) u32."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    num_blocks: int
    block_size: int = BLOCK_SIZE

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """All tensors, each with `num_blocks` blocks one behind the other."""
        return *self.keys, *self.values

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.parts)


def head_words(head_dim: int, kind: KVType) -> int:
    """Words of one head in one slot."""
    if kind == "f16":
        return head_dim // 2
    assert q8_refusal(head_dim) == "", head_dim
    return head_dim // 4 + -(-head_dim // (2 * _RUN))


def q8_refusal(head_dim: int) -> str:
    """Why heads of that size cannot be kept in q8_0; empty: they can."""
    if head_dim % _RUN == 0:
        return ""
    return f"a KV cache in q8_0 needs heads of a multiple of {_RUN} dims, and this model's have {head_dim}"


def kv_type_of(keys: Tensor, values: Tensor, num_kv_heads: int, head_dim: int) -> KVType:
    """The type that one layer's tensors (slots, KVH, words of a head) have."""
    assert keys.shape == values.shape and keys.shape[1] == num_kv_heads, (keys, values)
    if keys.shape[2] == head_words(head_dim, "f16"):
        return "f16"
    assert keys.shape[2] == head_words(head_dim, "q8_0"), keys
    return "q8_0"


def bytes_per_block(spec: ModelSpec, kind: KVType) -> int:
    """Bytes that one block takes over all layers, keys and values."""
    return 2 * spec.num_layers * _part_bytes(spec, kind)


def max_blocks_per_binding(max_binding_bytes: int, spec: ModelSpec, kind: KVType) -> int:
    """How many blocks one layer's keys may hold in one binding of that many bytes."""
    return max_binding_bytes // _part_bytes(spec, kind)


def _part_bytes(spec: ModelSpec, kind: KVType) -> int:
    """Of one block of one layer's keys."""
    return 4 * BLOCK_SIZE * spec.num_kv_heads * head_words(spec.head_dim, kind)


def allocate(device: Device, spec: ModelSpec, num_blocks: int, kind: KVType) -> KVCache:
    """DeviceError when a layer's part does not fit one binding."""
    shape = (num_blocks * BLOCK_SIZE, spec.num_kv_heads, head_words(spec.head_dim, kind))
    keys = tuple(device.empty(shape, "u32", f"keys of layer {i}") for i in range(spec.num_layers))
    values = tuple(
        device.empty(shape, "u32", f"values of layer {i}") for i in range(spec.num_layers)
    )
    return KVCache(keys, values, num_blocks)
