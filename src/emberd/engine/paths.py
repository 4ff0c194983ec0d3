"""Which tokens the prefix cache's blocks hold and whose they are, for those who ask why a prompt was not found.

A record beside the cache, which decides nothing: blocks are found by their keys (see prefix.py).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections import OrderedDict

from emberd.inspection import PrefixFinding

from .prefix import BlockKeys, Key, PrefixCache, block_key

_TOKEN_BYTES = array("i").itemsize

_TOLD_TOKENS = 12
"""Of the nearest path, behind the place where a prompt parts from it."""

_LOOKS = 8
"""Records that are looked at for one that can go, when one is made."""


class Paths:
    """Records of at most about `max_records` blocks: those of the cache, and others that went from it, the newest
    of them. About 0.4 KB each, with blocks of 32 tokens."""

    def __init__(self, prefixes: PrefixCache, max_records: int) -> None:
        self._prefixes, self._max_records = prefixes, max_records
        self._request_of: OrderedDict[tuple[Key, bytes], str] = OrderedDict()
        self._behind: dict[Key, list[bytes]] = {}  # tokens of blocks by the key before them, sorted

    def __len__(self) -> int:
        return len(self._request_of)

    def note(self, keys: BlockKeys, place: int, request_id: str) -> None:
        """The block of `keys` at `place` is published by that request."""
        self._note(keys.before(place), keys.tokens(place), request_id)

    def note_rest(self, keys: BlockKeys, place: int, request_id: str) -> None:
        """That request's sequence has ended, and all blocks before `place` are published: what it has behind them
        is nowhere kept."""
        rest = keys.tokens(place)[: (keys.block_size - 1) * _TOKEN_BYTES]
        if rest:
            self._note(keys.before(place), rest, request_id)

    def finding(self, keys: BlockKeys, num_tokens: int, num_cached_blocks: int) -> PrefixFinding:
        """How a prompt of so many tokens, of which so many blocks are found, goes along with those that were here
        before. Its blocks are not noted yet."""
        place, num_gone = num_cached_blocks, 0
        while (place + 1) * keys.block_size <= num_tokens:
            before, tokens = keys.before(place), keys.tokens(place)
            if (before, tokens) not in self._request_of:
                break
            num_gone += self._prefixes.get(block_key(before, tokens)) is None
            place += 1
        before, tokens = keys.before(place), keys.tokens(place)
        nearest = self._nearest(before, tokens)
        common = 0 if nearest is None else _num_common(nearest, tokens)
        num_known = place * keys.block_size + common
        if not num_known:
            return PrefixFinding(0, 0)
        if nearest is None or not tokens:
            request_id = self._request_of.get((keys.before(place - 1), keys.tokens(place - 1)))
            theirs = b""
        else:
            request_id = self._request_of[before, nearest]
            theirs = nearest[common * _TOKEN_BYTES :] if num_known < num_tokens else b""
        told = array("i", theirs)[:_TOLD_TOKENS].tolist()
        return PrefixFinding(num_known, num_gone * keys.block_size, request_id, tuple(told))

    def _note(self, before: Key, tokens: bytes, request_id: str) -> None:
        where = before, tokens
        if where not in self._request_of:
            insort(self._behind.setdefault(before, []), tokens)
        self._request_of[where] = request_id
        self._request_of.move_to_end(where)
        for _ in range(_LOOKS):
            if len(self._request_of) <= self._max_records:
                return
            oldest = next(iter(self._request_of))
            if self._prefixes.get(block_key(*oldest)) is None:
                self._forget(*oldest)
            else:
                self._request_of.move_to_end(oldest)

    def _forget(self, before: Key, tokens: bytes) -> None:
        del self._request_of[before, tokens]
        behind = self._behind[before]
        del behind[bisect_left(behind, tokens)]
        if not behind:
            del self._behind[before]

    def _nearest(self, before: Key, tokens: bytes) -> bytes | None:
        """Of the blocks behind `before`, the one that begins with most of `tokens`: in their order it stands next
        to where `tokens` would."""
        behind = self._behind.get(before, [])
        place = bisect_left(behind, tokens)
        beside = behind[max(0, place - 1) : place + 1]
        return max(
            beside,
            key=lambda other: (_num_common(other, tokens), len(other)),
            default=None,
        )


def _num_common(one: bytes, other: bytes) -> int:
    """Tokens that both begin with."""
    if other.startswith(one) or one.startswith(other):
        return min(len(one), len(other)) // _TOKEN_BYTES
    return next(at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b) // (
        _TOKEN_BYTES
    )
