"""BlockManager: what is taken comes back, counted and checked. No arrays, no device."""

from __future__ import annotations

import numpy as np
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


def test_shared_blocks_are_free_when_both_tables_are_released() -> None:
    blocks = BlockManager(4, 4)
    table: list[int] = []
    blocks.grow(table, 8)
    twin = blocks.share(table)
    blocks.check_integrity([table, twin])
    blocks.release(table)
    assert table == [] and blocks.num_free == 2
    blocks.check_integrity([twin])
    blocks.release(twin)
    assert blocks.num_free == 4
    blocks.check_integrity([])


def test_double_release_and_sharing_a_free_block_are_bugs() -> None:
    blocks = BlockManager(2, 4)
    table: list[int] = []
    blocks.grow(table, 4)
    stale = list(table)
    blocks.release(table)
    with pytest.raises(AssertionError, match="released twice"):
        blocks.release(list(stale))
    with pytest.raises(AssertionError, match="cannot be shared"):
        blocks.share(stale)


def test_integrity_check_finds_a_leak_and_a_stolen_block() -> None:
    blocks = BlockManager(4, 4)
    table: list[int] = []
    blocks.grow(table, 8)
    with pytest.raises(AssertionError, match="1 references, 0 tables"):
        blocks.check_integrity([])
    with pytest.raises(AssertionError, match="1 references, 2 tables"):
        blocks.check_integrity([table, table[:1]])


def test_random_use_keeps_the_pool_whole(rng: np.random.Generator) -> None:
    blocks = BlockManager(32, 4)
    tables: list[list[int]] = []
    for _ in range(2000):
        action = rng.integers(4)
        if action == 0 or not tables:
            tables.append([])
        table = tables[int(rng.integers(len(tables)))]
        if action == 1:
            tables.append(blocks.share(table))
        elif action == 2:
            blocks.release(table)
            tables = [kept for kept in tables if kept is not table]
        else:
            num_tokens = int(rng.integers(1, 40))
            if blocks.num_missing(table, num_tokens) <= blocks.num_free:
                blocks.grow(table, num_tokens)
        blocks.check_integrity(tables)
    for table in tables:
        blocks.release(table)
    assert blocks.num_free == 32
