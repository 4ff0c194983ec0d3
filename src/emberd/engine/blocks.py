"""Who owns which KV block: a free list, a reference count for each block, and what prefixes blocks hold.

Pure Python over ints: it knows no arrays, no sequences and no device.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Protocol

from .prefix import Key, PrefixCache, Published

HOLE = -1
"""In a block table: a block behind the window, which was given up and is never read again."""


class Watcher(Protocol):
    """Is told of the prefix cache's blocks; see tiers.py."""

    def published(self, key: Key, parent: Key | None) -> None: ...

    def evicted(self, published: Published) -> None:
        """The block may be written over by the next step, not before."""


class BlockManager:
    """A pool of `num_blocks` blocks, each holding the KV of `block_size` tokens.

    A block table is a plain list of block ids in order, owned by its sequence and changed only here.
    A published block is never written again: tables that need the same prefix share it, and once
    nobody holds it, it stays to be found until its room is needed.

    With a `window` a token sees so many tokens, itself included, and a table may begin with holes.
    """

    def __init__(self, num_blocks: int, block_size: int, window: int = 0) -> None:
        assert num_blocks > 0 and block_size > 0 and window >= 0
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._window = window
        self._free: deque[int] = deque(range(num_blocks))
        self._references = [0] * num_blocks
        self.watcher: Watcher | None = None
        self.prefixes = PrefixCache(chained=not window)

    @property
    def num_free(self) -> int:
        """Blocks that no table holds, those of prefixes among them."""
        return len(self._free) + self.prefixes.num_idle

    @property
    def num_unused(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def num_shared(self) -> int:
        """Blocks that several tables hold."""
        return sum(count > 1 for count in self._references)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def num_missing(self, block_table: list[int], num_tokens: int) -> int:
        """Blocks that `block_table` lacks to hold `num_tokens` tokens."""
        return max(0, self.blocks_for(num_tokens) - len(block_table))

    def grow(self, block_table: list[int], num_tokens: int) -> None:
        """Append blocks to `block_table` until it holds `num_tokens` tokens.

        The caller has checked `num_missing` against `num_free`.
        """
        for _ in range(self.num_missing(block_table, num_tokens)):
            block = self._free.popleft() if self._free else self._evict()
            self._references[block] = 1
            block_table.append(block)

    def _evict(self) -> int:
        published = self.prefixes.evict()
        if self.watcher is not None:
            self.watcher.evicted(published)
        return published.block

    def find(self, keys: list[Key]) -> list[int]:
        """The published blocks of the longest beginning that can be gone on from, holes before what that sees."""
        if not self._window:
            return self.prefixes.find(keys)
        found = [self.prefixes.get(key) for key in keys]
        longest = run = 0  # blocks from the start; of these, the last that are there
        for length, block in enumerate(found, 1):
            run = 0 if block is None else run + 1
            if run >= length - self._num_behind(length * self.block_size):
                longest = length
        first = self._num_behind(longest * self.block_size)
        return [HOLE] * first + [block for block in found[first:longest] if block is not None]

    def adopt(self, block_table: list[int], prefix: list[int]) -> None:
        """Begin an empty `block_table` with the published blocks of a prefix, as `find` gives them."""
        assert not block_table
        for block in prefix:
            if block != HOLE:
                self._hold(block)
        block_table += prefix

    def free_behind(self, block_table: list[int], position: int) -> range:
        """Give up the blocks that no token from `position` on sees; the places that became holes."""
        end = first = min(self._num_behind(position), len(block_table))
        while first > 0 and block_table[first - 1] != HOLE:
            first -= 1
            self._let_go(block_table[first])
            block_table[first] = HOLE
        return range(first, end)

    def _num_behind(self, position: int) -> int:
        """Blocks from the start that the token at `position` does not see."""
        return max(0, position - self._window + 1) // self.block_size if self._window else 0

    def publish(self, block_table: list[int], place: int, key: Key, parent: Key | None) -> bool:
        """Let others find the block at `place`: it is full, and steps that are submitted fill it.

        The blocks before it are published. Where another block was published under `key`, that one takes its
        place in the table; True tells so.
        """
        block, there = block_table[place], self.prefixes.get(key)
        if there is None:
            self.prefixes.put(key, parent, block)
            if self.watcher is not None:
                self.watcher.published(key, parent)
            return False
        self._hold(there)
        block_table[place] = there
        self._let_go(block)
        return True

    def unpublish(self, keys: Iterable[Key]) -> None:
        """Let nobody find these blocks any more, with which all behind them are told. Tables that hold them keep
        them."""
        for key in keys:
            block = self.prefixes.drop(key)
            if block is not None and self._references[block] == 0:
                self._free.append(block)

    def release(self, block_table: list[int]) -> None:
        """Give up every block of `block_table` and empty it; the last one first, so that it is the first to go."""
        for block in reversed(block_table):
            if block != HOLE:
                self._let_go(block)
        block_table.clear()

    def num_gained(self, block_tables: list[list[int]], kept: list[int]) -> int:
        """Blocks that would be free if all these tables were released, those of `kept` not counted."""
        held = Counter(block for table in block_tables for block in table if block != HOLE)
        for block in kept:
            held.pop(block, None)
        return sum(self._references[block] == count for block, count in held.items())

    def _hold(self, block: int) -> None:
        assert block in self.prefixes, f"block {block} is not published and cannot be shared"
        if self._references[block] == 0:
            self.prefixes.wake(block)
        self._references[block] += 1

    def _let_go(self, block: int) -> None:
        assert self._references[block] > 0, f"block {block} was released twice"
        self._references[block] -= 1
        if self._references[block] > 0:
            return
        if block in self.prefixes:
            self.prefixes.rest(block)
        else:
            self._free.append(block)

    def check_integrity(self, block_tables: Iterable[list[int]]) -> None:
        """Recount everything against the live `block_tables`; AssertionError tells what is off."""
        counted = Counter(block for table in block_tables for block in table if block != HOLE)
        for block, references in enumerate(self._references):
            assert references == counted[block], (
                f"block {block} has {references} references, {counted[block]} tables hold it"
            )
        free = set(self._free)
        assert len(free) == len(self._free), "a block is in the free list twice"
        idle = {block for block in range(self.num_blocks) if self.prefixes.is_idle(block)}
        assert not free & idle, f"blocks {sorted(free & idle)} are free and hold a prefix"
        unowned = {block for block in range(self.num_blocks) if counted[block] == 0}
        assert free | idle == unowned, (
            f"free list and tables disagree about {sorted((free | idle) ^ unowned)}"
        )
        self.prefixes.check_integrity()
