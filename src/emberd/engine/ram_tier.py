"""The tier in main memory: KV blocks by key, within a number of bytes."""

from __future__ import annotations

from emberd.protocol import Bytes

from .leaf_order import LeafOrder
from .prefix import Key

Block = tuple[Key, "Key | None", Bytes]
"""Key, that of the block before, bytes."""


class RamTier:
    """Blocks in main memory, at most `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.nbytes = max_bytes, 0
        self._order = LeafOrder()
        self._data: dict[Key, Bytes] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._data

    def __len__(self) -> int:
        return len(self._data)

    def get(self, key: Key) -> Bytes | None:
        return self._data.get(key)

    def parent(self, key: Key) -> Key | None:
        return self._order.parent(key)

    def parents(self) -> dict[Key, Key | None]:
        """Of every key, that of the block before it."""
        return self._order.parents()

    def drop(self, key: Key) -> None:
        """Forget a block, if it is here."""
        data = self._data.pop(key, None)
        if data is not None:
            self._order.remove(key)
            self.nbytes -= data.nbytes

    def use(self, key: Key) -> None:
        """It is not the next to go."""
        self._order.use(key)

    def put(self, key: Key, parent: Key | None, data: Bytes) -> list[Block]:
        """Keep a block that is not here; the blocks that had to go for it, which may be itself."""
        self._order.add(key, parent)
        self._data[key] = data
        self.nbytes += data.nbytes
        gone = []
        while self.nbytes > self.max_bytes:
            last = self._order.first()
            gone.append((last, self._order.parent(last), self._data.pop(last)))
            self._order.remove(last)
            self.nbytes -= gone[-1][2].nbytes
        return gone
