"""The KV cache on the GPU: one K and one V tensor a layer, f16 pairs, addressed by slot."""

from __future__ import annotations

from dataclasses import dataclass

from ..gguf.spec import ModelSpec
from .device import Device, Tensor

BLOCK_SIZE = 32
"""KV positions a block. Long enough that a decode step rarely changes a block table."""


@dataclass(frozen=True, slots=True)
class KVCache:
    """`keys[l]`, `values[l]`: (num_slots, num_kv_heads, head_dim / 2) u32, two f16 in each."""

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


def bytes_per_block(spec: ModelSpec) -> int:
    """Bytes that one block takes over all layers, keys and values."""
    return 2 * spec.num_layers * BLOCK_SIZE * spec.num_kv_heads * spec.head_dim * 2


def max_blocks_per_binding(max_binding_bytes: int, spec: ModelSpec) -> int:
    """How many blocks one layer's keys may hold in one binding of that many bytes."""
    return max_binding_bytes // (BLOCK_SIZE * spec.num_kv_heads * spec.head_dim * 2)


def allocate(device: Device, spec: ModelSpec, num_blocks: int) -> KVCache:
    """DeviceError when a layer's part does not fit one binding."""
    shape = (num_blocks * BLOCK_SIZE, spec.num_kv_heads, spec.head_dim // 2)
    keys = tuple(device.empty(shape, "u32", f"keys of layer {i}") for i in range(spec.num_layers))
    values = tuple(
        device.empty(shape, "u32", f"values of layer {i}") for i in range(spec.num_layers)
    )
    return KVCache(keys, values, num_blocks)
