"""KV blocks to host memory and back, in the order of the queue: behind the steps submitted before, ahead of later ones.

On the host a block is one run of bytes, the parts of all layers one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import wgpu

from ..protocol import Bytes
from .device import Device, Tensor

_STAGING = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
_UPLOAD = wgpu.BufferUsage.COPY_SRC

_BUFFER_BYTES = 64 << 20
"""Bytes copied through one buffer: any device takes that many, and host and device need not hold all twice."""


class BlockCopies:
    """Copies blocks of tensors that each hold the same number of blocks, one behind the other."""

    def __init__(self, device: Device, parts: Sequence[Tensor], num_blocks: int) -> None:
        self._device, self._parts = device, parts
        self._sizes = [part.nbytes // num_blocks for part in parts]  # bytes a block
        self.block_bytes = sum(self._sizes)
        self._at_once = max(1, _BUFFER_BYTES // self.block_bytes)

    def read(self, blocks: Sequence[int]) -> GpuBlockCopies:
        """Submit the copy; what was submitted before must have reached the queue."""
        starts = range(0, len(blocks), self._at_once)
        return GpuBlockCopies([self._read(blocks[at : at + self._at_once]) for at in starts])

    def write(self, blocks: Sequence[int], data: Sequence[Bytes]) -> None:
        """Submit the copy of `data`, (block_bytes,) for each block; it may be reused on return."""
        assert len(data) == len(blocks)
        for at in range(0, len(blocks), self._at_once):
            self._write(blocks[at : at + self._at_once], data[at : at + self._at_once])

    def _read(self, blocks: Sequence[int]) -> _BufferCopy:
        staging = self._device.wgpu.create_buffer(
            size=len(blocks) * self.block_bytes, usage=_STAGING
        )
        order = np.argsort(blocks, kind="stable")
        self._submit(np.asarray(blocks)[order], staging, read=True)
        return _BufferCopy(staging, order, self._sizes)

    def _write(self, blocks: Sequence[int], data: Sequence[Bytes]) -> None:
        order = np.argsort(blocks, kind="stable")
        rows = [data[place] for place in order]
        upload = self._device.wgpu.create_buffer(
            size=len(blocks) * self.block_bytes, usage=_UPLOAD, mapped_at_creation=True
        )
        edge = base = 0
        for size in self._sizes:
            part = np.concatenate([row[edge : edge + size] for row in rows])
            upload.write_mapped(part, base)
            edge, base = edge + size, base + part.nbytes
        upload.unmap()
        self._submit(np.asarray(blocks)[order], upload, read=False)

    def _submit(self, blocks: Any, host: Any, *, read: bool) -> None:
        """Copies between the parts and `host`, where they lie one after the other, each with all `blocks`."""
        encoder = self._device.wgpu.create_command_encoder()
        base = 0
        for part, size in zip(self._parts, self._sizes, strict=True):
            for place, block, count in _runs(blocks):
                ends = (
                    (part.buffer, part.offset + block * size),
                    (host, base + place * size),
                )
                (source, at), (target, to) = ends if read else ends[::-1]
                encoder.copy_buffer_to_buffer(source, at, target, to, count * size)
            base += len(blocks) * size
        self._device.wgpu.queue.submit([encoder.finish()])


class GpuBlockCopies:
    """A copy on its way, through one buffer or several. Implements `protocol.BlockCopy`."""

    def __init__(self, copies: Sequence[_BufferCopy]) -> None:
        self._copies = copies

    def take(self) -> Bytes:
        found = [copy.take() for copy in self._copies]
        return found[0] if len(found) == 1 else np.concatenate(found)


class _BufferCopy:
    """Blocks in a buffer that the host will read."""

    def __init__(self, staging: Any, order: Any, sizes: Sequence[int]) -> None:
        self._staging, self._order, self._sizes = staging, order, sizes

    def take(self) -> Bytes:
        count = len(self._order)
        self._staging.map_sync("READ")
        flat = np.frombuffer(self._staging.read_mapped(copy=False), np.uint8)
        out = np.empty((count, sum(self._sizes)), np.uint8)
        edge = 0
        for size in self._sizes:
            part = flat[count * edge : count * (edge + size)]
            out[self._order, edge : edge + size] = part.reshape(count, size)
            edge += size
        del flat, part
        self._staging.unmap()
        self._staging.destroy()
        return out


def _runs(blocks: Any) -> Iterator[tuple[int, int, int]]:
    """(place, first block, count) of neighbours in ascending `blocks`."""
    starts = np.flatnonzero(np.diff(blocks, prepend=blocks[0] - 2) != 1)
    for start, end in zip(starts, [*starts[1:], len(blocks)], strict=True):
        yield int(start), int(blocks[start]), int(end - start)
