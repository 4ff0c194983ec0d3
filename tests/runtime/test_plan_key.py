"""Which plan a step runs: it holds the step, and a busy daemon meets only those that were made before."""

from __future__ import annotations

import numpy as np
import pytest

from batches import Row, make_batch
from emberd.protocol import Batch
from emberd.runtime.plan_key import Buckets, PlanKey
from emberd.runtime.sampler import Mode


def few_splits(rows: int, context: int) -> int:
    return 1 if context < 256 or rows > 8 else 4


def many_near(rows: int, context: int) -> bool:
    return rows > 16 and context <= 512


def step(decode_rows: int, chunks: list[int]) -> Batch:
    """So many decode rows at a short context, then these chunks of prompts."""
    lengths = [*[1] * decode_rows, *chunks]
    return make_batch(
        [Row(index, [7] * count, 20, [0] * 64) for index, count in enumerate(lengths)], 16
    )


@pytest.mark.parametrize(("max_tokens", "max_rows"), [(512, 32), (64, 8), (100, 6), (32, 32)])
def test_a_plan_holds_its_step_and_was_made_in_a_pause(
    rng: np.random.Generator, max_tokens: int, max_rows: int
) -> None:
    buckets = Buckets(max_tokens, max_rows, few_splits, many_near)
    prepared = {*buckets.first(4096), *buckets.likely()}
    for _ in range(300):
        decode_rows = int(rng.integers(0, max_rows + 1))
        chunks: list[int] = []
        while decode_rows + len(chunks) < max_rows and rng.random() < 0.6:
            room = max_tokens - decode_rows - sum(chunks)
            if room < 2:
                break
            chunks.append(int(rng.integers(2, room + 1)))
        if not decode_rows + len(chunks):
            continue
        batch = step(decode_rows, chunks)
        num_sampled = decode_rows + int(rng.integers(0, len(chunks) + 1))
        key = buckets.key(batch, num_sampled, Mode.PLAIN)
        assert batch.num_tokens <= key.tokens <= max_tokens
        assert decode_rows <= key.decode_rows <= min(max_rows, key.tokens)
        assert num_sampled <= key.sampled <= max_rows
        assert key.prefill == bool(chunks) and bool(key.decode_rows) == bool(decode_rows)
        assert key in prepared, key
        largest = buckets.largest(key)
        assert largest.holds(key) and key.holds(key)
        assert not key.holds(largest) or key._replace(splits=1) == largest._replace(splits=1)
        assert largest in {*buckets.holding_all()} <= {*buckets.likely()}
        others = [other for other in prepared if other.holds(key)]
        assert all(other.tokens >= batch.num_tokens for other in others)
        assert all(other.near <= key.near and other.prefill == key.prefill for other in others)


def test_what_only_some_requests_ask_for_is_another_plan() -> None:
    buckets = Buckets(512, 32, few_splits, many_near)
    plain, masked = (buckets.key(step(3, []), 3, mode) for mode in (Mode.PLAIN, Mode.MASKS))
    assert plain != masked and masked not in {*buckets.likely()}


def test_there_are_few_plans_each_once() -> None:
    keys = [*Buckets(512, 32, few_splits, many_near).likely()]
    assert len(keys) == len({*keys}) < 50


def test_many_short_contexts_have_a_plan_of_their_own_until_one_is_long() -> None:
    buckets = Buckets(512, 32, few_splits, many_near)

    def key(rows: int, context: int, chunks: list[int]) -> PlanKey:
        lengths = [(1, context) for _ in range(rows)] + [(count, 20) for count in chunks]
        batch = make_batch(
            [Row(i, [7] * count, before, [0] * 64) for i, (count, before) in enumerate(lengths)], 16
        )
        return buckets.key(batch, rows, Mode.PLAIN)

    short, long = key(20, 100, []), key(20, 700, [])
    assert short.near and not long.near and short._replace(near=False) == long
    assert {short, long} <= {*buckets.likely()}  # going on from one to the other waits for nothing
    assert not key(8, 100, []).near and not key(20, 100, [30]).near
