"""BlockManager: what is taken comes back, counted and checked. No arrays, no device."""

from __future__ import annotations

import pytest

from emberd.engine.blocks import BlockManager


@pytest.mark.parametrize(("num_tokens", "expected"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2)])
def test_blocks_for_rounds_up(num_tokens: int, expected: int) -> None:
    assert BlockManager(8, 16).blocks_for(num_tokens) == expected


def test_grow_adds_only_what_is_missing() -> None:
    blocks = BlockManager(4, 4)
    table: list[int] = []
    blocks.grow(table, 5)
    first = list(table)
    assert len(first) == 2 and blocks.num_free == 2
    blocks.grow(table, 8)
    assert table == first
    blocks.grow(table, 9)
    assert table[:2] == first and len(set(table)) == 3
    blocks.check_integrity([table])


def published(blocks: BlockManager, keys: list[bytes]) -> list[int]:
    """A table whose blocks are published under `keys`."""
    table: list[int] = []
    blocks.grow(table, blocks.block_size * len(keys))
    for place, key in enumerate(keys):
        assert not blocks.publish(table, place, key, keys[place - 1] if place else None)
    return table


def test_shared_blocks_are_free_when_both_tables_are_released() -> None:
    blocks = BlockManager(4, 4)
    table = published(blocks, [b"a", b"ab"])
    twin: list[int] = []
    blocks.adopt(twin, blocks.prefixes.find([b"a", b"ab", b"abc"]))
    assert twin == table
    blocks.check_integrity([table, twin])
    blocks.release(table)
    assert table == [] and blocks.num_free == 2
    blocks.check_integrity([twin])
    blocks.release(twin)
    assert blocks.num_free == 4 and len(blocks.prefixes) == 2
    blocks.check_integrity([])


def test_released_prefixes_stay_until_their_room_is_needed_and_go_from_the_end() -> None:
    blocks = BlockManager(4, 4)
    old, new = published(blocks, [b"a", b"ab"]), published(blocks, [b"x", b"xy"])
    old_ids, new_ids = list(old), list(new)
    blocks.release(old)
    blocks.release(new)
    table: list[int] = []
    blocks.grow(table, 4)
    assert table == [old_ids[1]], "the last block of what was let go first"
    assert blocks.prefixes.find([b"a", b"ab"]) == old_ids[:1]
    assert blocks.prefixes.find([b"x", b"xy"]) == new_ids
    twin: list[int] = []
    blocks.adopt(twin, old_ids[:1])
    blocks.release(twin)  # used again: now the blocks of x are older
    blocks.grow(table, 12)
    assert table[1:] == [new_ids[1], new_ids[0]]
    assert blocks.prefixes.find([b"a"]) == old_ids[:1]
    blocks.check_integrity([table])


def test_a_block_of_a_prefix_that_is_there_already_is_given_up_for_that_one() -> None:
    blocks = BlockManager(4, 4)
    first = published(blocks, [b"a"])
    second: list[int] = []
    blocks.grow(second, 8)
    kept = second[1]
    assert blocks.publish(second, 0, b"a", None)
    assert second == [first[0], kept] and blocks.num_free == 2
    blocks.check_integrity([first, second])


def test_double_release_and_sharing_what_is_not_published_are_bugs() -> None:
    blocks = BlockManager(2, 4)
    table: list[int] = []
    blocks.grow(table, 4)
    stale = list(table)
    with pytest.raises(AssertionError, match="cannot be shared"):
        blocks.adopt([], stale)
    blocks.release(table)
    with pytest.raises(AssertionError, match="released twice"):
        blocks.release(list(stale))


def test_integrity_check_finds_a_leak_and_a_stolen_block() -> None:
    blocks = BlockManager(4, 4)
    table: list[int] = []
    blocks.grow(table, 8)
    with pytest.raises(AssertionError, match="1 references, 0 tables"):
        blocks.check_integrity([])
    with pytest.raises(AssertionError, match="1 references, 2 tables"):
        blocks.check_integrity([table, table[:1]])


def test_integrity_check_finds_a_prefix_that_lost_its_beginning() -> None:
    blocks = BlockManager(4, 4)
    table = published(blocks, [b"a", b"ab"])
    blocks.prefixes.rest(table[0])
    blocks.prefixes.evict()
    with pytest.raises(AssertionError, match="can no longer be found"):
        blocks.prefixes.check_integrity()
