"""Keys of prefix blocks in the order in which they go: the end of a prefix before its beginning, the oldest first."""

from __future__ import annotations

import heapq
from collections import Counter

from .prefix import Key


class LeafOrder:
    """A set of keys, each with the key of the block before it.

    `first` is a key that no other one here follows; of those the one that was added or used longest ago.
    """

    def __init__(self) -> None:
        self._entries: dict[Key, tuple[Key | None, int]] = {}  # the one before it, time of last use
        self._followers: Counter[Key] = Counter()
        self._leaves: list[tuple[int, Key]] = []  # a heap, stale entries among them
        self._time = 0

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def parent(self, key: Key) -> Key | None:
        return self._entries[key][0]

    def parents(self) -> dict[Key, Key | None]:
        """Of every key, that of the block before it."""
        return {key: parent for key, (parent, _) in self._entries.items()}

    def add(self, key: Key, parent: Key | None) -> None:
        assert key not in self._entries
        self._entries[key] = parent, 0
        if parent is not None:
            self._followers[parent] += 1
        self.use(key)

    def use(self, key: Key) -> None:
        self._time += 1
        self._entries[key] = self._entries[key][0], self._time
        self._offer(key)

    def remove(self, key: Key) -> None:
        parent, _ = self._entries.pop(key)
        if parent is None:
            return
        self._followers[parent] -= 1
        if not self._followers[parent]:
            del self._followers[parent]
            if parent in self._entries:
                self._offer(parent)

    def first(self) -> Key:
        """The key that goes next; there is one."""
        while not self._is_leaf(*self._leaves[0]):
            heapq.heappop(self._leaves)
        return self._leaves[0][1]

    def _offer(self, key: Key) -> None:
        if self._followers[key]:
            return
        if len(self._leaves) > 64 + 4 * len(self._entries):
            self._leaves = [entry for entry in self._leaves if self._is_leaf(*entry)]
            heapq.heapify(self._leaves)
        heapq.heappush(self._leaves, (self._entries[key][1], key))

    def _is_leaf(self, time: int, key: Key) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry[1] == time and not self._followers[key]
