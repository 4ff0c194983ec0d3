"""Which block holds which prefix: full blocks, found by a key that names every token up to their end.

A key is a chain of digests, so equal keys mean equal prefixes and one lookup a block finds the longest. The cache is
one worker's, so one model's. It counts no references: that is the BlockManager's.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from emberd.inspection import PrefixShape

Key = bytes


def block_key(before: Key, tokens: bytes) -> Key:
    """Of a full block, by the key of the block before it, or that of its salt, and its tokens (see BlockKeys)."""
    return hashlib.blake2b(before + tokens, digest_size=16).digest()


class BlockKeys:
    """The keys of a sequence's full blocks, made when they are asked for. `token_ids` is its live list."""

    __slots__ = ("_keys", "_root", "_token_ids", "block_size")

    def __init__(self, token_ids: list[int], block_size: int, salt: str) -> None:
        self._token_ids, self.block_size = token_ids, block_size
        self._root = hashlib.blake2b(salt.encode(), digest_size=16).digest()
        self._keys: list[Key] = []

    def like(self, token_ids: list[int], block_size: int) -> BlockKeys:
        """Those of another sequence with the same salt."""
        keys = BlockKeys(token_ids, block_size, "")
        keys._root = self._root
        return keys

    def first(self, count: int) -> list[Key]:
        """Those of the first `count` blocks, whose tokens are all known."""
        assert count * self.block_size <= len(self._token_ids)
        for place in range(len(self._keys), count):
            before = self._keys[-1] if self._keys else self._root
            self._keys.append(block_key(before, self.tokens(place)))
        return self._keys[:count]

    def before(self, place: int) -> Key:
        """The key of the block before `place`; before the first stands the salt's."""
        if place > len(self._keys):
            self.first(place)
        return self._keys[place - 1] if place else self._root

    def tokens(self, place: int) -> bytes:
        """The known tokens of the block at `place`, as int32; fewer than a block's at the sequence's end."""
        start = place * self.block_size
        return array("i", self._token_ids[start : start + self.block_size]).tobytes()


class Published(NamedTuple):
    """A block with its key and that of the block before it."""

    block: int
    key: Key
    parent: Key | None


class PrefixCache:
    """Blocks by key, and those that no sequence holds in the order in which they go.

    Whoever holds a block holds the one before it too, and lets go of the last first. So of idle blocks the oldest
    is always a leaf: what goes never leaves a block behind that can no longer be found. That is so where they are
    `chained`: behind a window, a block is found without those at the beginning.
    """

    def __init__(self, chained: bool = True) -> None:
        self._chained = chained
        self._block_of: dict[Key, int] = {}
        self._key_of: dict[
            int, tuple[Key, Key | None]
        ] = {}  # its own and that of the block before it
        self._idle: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._key_of

    def __len__(self) -> int:
        return len(self._key_of)

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def is_idle(self, block: int) -> bool:
        return block in self._idle

    def find(self, keys: Iterable[Key]) -> list[int]:
        """The blocks of the first keys, up to one that is not there."""
        found = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def get(self, key: Key) -> int | None:
        return self._block_of.get(key)

    def put(self, key: Key, parent: Key | None, block: int) -> None:
        assert key not in self._block_of and block not in self._key_of
        assert parent is None or parent in self._block_of or not self._chained
        self._block_of[key] = block
        self._key_of[block] = key, parent

    def rest(self, block: int) -> None:
        """Nobody holds `block` any more."""
        self._idle[block] = None

    def wake(self, block: int) -> None:
        """Somebody holds `block` again."""
        del self._idle[block]

    def evict(self) -> Published:
        """Forget the idle block that was let go first; it may be written again."""
        block, _ = self._idle.popitem(last=False)
        key, parent = self._key_of.pop(block)
        del self._block_of[key]
        return Published(block, key, parent)

    def drop(self, key: Key) -> int | None:
        """Forget a block that is not to be found any more, nor any behind it; None: it is not here."""
        block = self._block_of.pop(key, None)
        if block is not None:
            del self._key_of[block]
            self._idle.pop(block, None)
        return block

    def parents(self) -> dict[Key, Key | None]:
        """Of every key, that of the block before it."""
        return dict(self._key_of.values())

    def next_to_go(self, count: int) -> list[Published]:
        """The idle blocks that `evict` gives next, at most so many."""
        return [Published(block, *self._key_of[block]) for block in islice(self._idle, count)]

    def shape(self) -> PrefixShape:
        """Looks at every block."""
        parent_of = self.parents()
        depths: dict[Key, int] = {}
        for key in parent_of:
            path = []
            at: Key | None = key
            while at is not None and at in parent_of and at not in depths:
                path.append(at)
                at = parent_of[at]
            before = depths.get(at, 0) if at is not None else 0
            depths.update((one, before + place) for place, one in enumerate(reversed(path), 1))
        beginnings = sum(parent is None or parent not in parent_of for parent in parent_of.values())
        ends = len(parent_of) - len(parent_of.keys() & set(parent_of.values()))
        return PrefixShape(len(parent_of), beginnings, ends, max(depths.values(), default=0))

    def check_integrity(self) -> None:
        """AssertionError tells what is off."""
        assert self._block_of == {key: block for block, (key, _) in self._key_of.items()}, (
            "keys and blocks disagree"
        )
        assert self._idle.keys() <= self._key_of.keys(), "an idle block has no key"
        for block, (_, parent) in self._key_of.items():
            if parent is None or not self._chained:
                continue
            assert parent in self._block_of, f"block {block} can no longer be found"
            before = self._block_of[parent]
            assert block in self._idle or before not in self._idle, (
                f"block {block} is held and {before} before it is not"
            )
