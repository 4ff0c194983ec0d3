"""Scheduler: order, budget, places, fairness, preemption. No runner is there at all."""

from __future__ import annotations

import numpy as np

from emberd.engine.blocks import BlockManager
from emberd.engine.scheduler import Scheduler, split_budget
from emberd.engine.sequence import Row, Sequence
from emberd.protocol import GenerateRequest, SamplingParams


def make_sequence(name: str, num_prompt_tokens: int, max_tokens: int = 100) -> Sequence:
    request = GenerateRequest(
        name, tuple(range(num_prompt_tokens)), SamplingParams(max_tokens=max_tokens)
    )
    return Sequence(request, context_length=1000)


def make_scheduler(
    num_blocks: int = 100, max_sequences: int = 8, max_batch_tokens: int = 16
) -> Scheduler:
    return Scheduler(BlockManager(num_blocks, 4), max_sequences, max_batch_tokens)


def answer(rows: list[Row]) -> None:
    """Every sampled token becomes known, as if the step had been collected."""
    for row in rows:
        if row.sample:
            row.sequence.num_pending_tokens -= 1
            row.sequence.append(7)


def summary(rows: list[Row]) -> list[tuple[str, int, int, bool]]:
    return [(row.sequence.request_id, row.start, row.count, row.sample) for row in rows]


def test_prefill_goes_in_chunks_and_samples_at_its_end() -> None:
    scheduler = make_scheduler(max_batch_tokens=16)
    scheduler.add(make_sequence("a", 35))
    for expected in ([("a", 0, 16, False)], [("a", 16, 16, False)], [("a", 32, 3, True)]):
        rows = scheduler.schedule()
        assert summary(rows) == expected
        answer(rows)
    assert summary(scheduler.schedule()) == [("a", 35, 1, True)]


def test_decode_comes_first_and_prefill_fills_the_budget() -> None:
    scheduler = make_scheduler(max_batch_tokens=16)
    scheduler.add(make_sequence("a", 4))
    answer(scheduler.schedule())
    scheduler.add(make_sequence("b", 40))
    assert summary(scheduler.schedule()) == [("a", 4, 1, True), ("b", 0, 15, False)]


def test_short_prompts_share_one_step() -> None:
    scheduler = make_scheduler(max_batch_tokens=16)
    for name in "abc":
        scheduler.add(make_sequence(name, 5))
    assert summary(scheduler.schedule()) == [(name, 0, 5, True) for name in "abc"]


def test_a_short_prompt_does_not_wait_for_a_long_prefill() -> None:
    """C11."""
    scheduler = make_scheduler(max_batch_tokens=16)
    scheduler.add(make_sequence("long", 200))
    answer(scheduler.schedule())
    scheduler.add(make_sequence("short", 6))
    assert summary(scheduler.schedule()) == [("long", 16, 10, False), ("short", 0, 6, True)]


def test_a_long_prefill_is_not_starved_by_short_prompts() -> None:
    scheduler = make_scheduler(max_batch_tokens=16)
    long = make_sequence("long", 80, max_tokens=1)
    scheduler.add(long)
    num_steps = 0
    while not long.num_pending_tokens and not long.finish_reason:
        scheduler.add(make_sequence(f"short {num_steps}", 12, max_tokens=1))
        rows = scheduler.schedule()
        answer(rows)
        for row in rows:
            if row.sequence.finish_reason:
                scheduler.remove(row.sequence)
        num_steps += 1
    assert num_steps <= 10  # half of 16 tokens a step at least


def test_budget_shares_add_up(rng: np.random.Generator) -> None:
    for _ in range(300):
        budget = int(rng.integers(0, 50))
        remaining = rng.integers(1, 40, size=int(rng.integers(0, 8))).tolist()
        shares = split_budget(budget, remaining, [1] * len(remaining))
        assert all(0 <= s <= r for s, r in zip(shares, remaining, strict=True))
        assert sum(shares) == min(budget, sum(remaining))
        if remaining:
            assert shares[0] >= min(remaining[0], (budget + 1) // 2)


def test_places_are_never_more_than_the_token_budget() -> None:
    scheduler = make_scheduler(max_sequences=8, max_batch_tokens=3)
    for name in "abcde":
        scheduler.add(make_sequence(name, 1))
    for _ in range(4):
        rows = scheduler.schedule()
        assert [row.sequence.request_id for row in rows] == ["a", "b", "c"]
        answer(rows)


def test_nothing_is_scheduled_past_max_tokens_while_a_token_is_pending() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence("a", 3, max_tokens=2))
    assert summary(scheduler.schedule()) == [("a", 0, 3, True)]
    assert summary(scheduler.schedule()) == [("a", 3, 1, True)]
    assert scheduler.schedule() == []


def test_the_newest_sequence_gives_way_and_returns_to_the_front() -> None:
    scheduler = make_scheduler(num_blocks=8, max_batch_tokens=32)
    sequences = [make_sequence(name, 8, max_tokens=16) for name in "ab"]
    for sequence in sequences:
        scheduler.add(sequence)
    answer(scheduler.schedule())
    late = make_sequence("c", 2)
    scheduler.add(late)
    while len(scheduler.running) == 2:
        answer(scheduler.schedule())
    assert [s.request_id for s in scheduler.running] == ["a"]
    assert [s.request_id for s in scheduler.waiting] == ["b", "c"]
    b = sequences[1]
    assert b.index is None and b.block_table == [] and b.num_computed_tokens == 0
    assert len(b.token_ids) > b.num_prompt_tokens  # what it generated is kept
    scheduler.blocks.check_integrity([s.block_table for s in scheduler.running])


def test_a_preempted_sequence_waits_for_its_pending_token() -> None:
    scheduler = make_scheduler(num_blocks=6, max_batch_tokens=32)
    a, b = make_sequence("a", 4, 12), make_sequence("b", 4, 12)
    scheduler.add(a)
    scheduler.add(b)
    last = scheduler.schedule()
    while b.index is not None:  # one step is in flight whenever the next is scheduled
        before, last = last, scheduler.schedule()
        if b.index is not None:
            answer(before)
    assert b.num_pending_tokens == 1
    scheduler.remove(a)
    assert scheduler.schedule() == [] and b.index is None
    answer([row for row in before if row.sequence is b])
    assert summary(scheduler.schedule()) == [("b", 0, len(b.token_ids), True)]


def test_admission_keeps_room_for_the_running_to_grow() -> None:
    scheduler = make_scheduler(num_blocks=6, max_batch_tokens=32)
    scheduler.add(make_sequence("a", 12))  # 3 blocks, will grow
    scheduler.schedule()
    scheduler.add(make_sequence("b", 4))
    scheduler.schedule()
    assert [s.request_id for s in scheduler.waiting] == ["b"]
    scheduler = make_scheduler(num_blocks=6, max_batch_tokens=32)
    scheduler.add(make_sequence("a", 12, max_tokens=1))  # cannot grow
    scheduler.schedule()
    scheduler.add(make_sequence("b", 4, max_tokens=1))
    scheduler.schedule()
    assert not scheduler.waiting
