"""Who owns which KV block: a free list and a reference count for each block.

Pure Python over ints: it knows no arrays, no sequences' contents and no device.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable


class BlockManager:
    """A pool of `num_blocks` blocks, each holding the KV of `block_size` tokens.

    A block table is a plain list of block ids in order, owned by its sequence and changed only here.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        assert num_blocks > 0 and block_size > 0
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free: deque[int] = deque(range(num_blocks))
        self._references = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

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
            block = self._free.popleft()
            self._references[block] = 1
            block_table.append(block)

    def share(self, block_table: list[int]) -> list[int]:
        """A second table over the same blocks; each is free again when both are released."""
        for block in block_table:
            assert self._references[block] > 0, f"block {block} is free and cannot be shared"
            self._references[block] += 1
        return list(block_table)

    def release(self, block_table: list[int]) -> None:
        """Give up every block of `block_table` and empty it."""
        for block in block_table:
            assert self._references[block] > 0, f"block {block} was released twice"
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free.append(block)
        block_table.clear()

    def check_integrity(self, block_tables: Iterable[list[int]]) -> None:
        """Recount everything against the live `block_tables`; AssertionError tells what is off."""
        counted = Counter(block for table in block_tables for block in table)
        for block, references in enumerate(self._references):
            assert references == counted[block], (
                f"block {block} has {references} references, {counted[block]} tables hold it"
            )
        free = set(self._free)
        assert len(free) == len(self._free), "a block is in the free list twice"
        unowned = {block for block in range(self.num_blocks) if counted[block] == 0}
        assert free == unowned, f"free list and tables disagree about {sorted(free ^ unowned)}"
