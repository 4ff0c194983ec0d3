"""Priorities: who is admitted, preempted and given tokens first; that nobody starves; that ranks are kept."""

from __future__ import annotations

import numpy as np
import pytest

from emberd.engine import Engine
from emberd.engine.blocks import BlockManager
from emberd.engine.prefix import BlockKeys
from emberd.engine.priority import AGING_SECONDS, Standing
from emberd.engine.scheduler import Scheduler, split_budget
from emberd.engine.sequence import Row, Sequence
from emberd.protocol import PRIORITIES, GenerateRequest, SamplingParams
from fakes import ScriptedRunner, lone_run

INTERACTIVE, NORMAL, BATCH = range(3)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def request(
    name: str, size: int, priority: int = NORMAL, max_tokens: int = 100, first: int = 0
) -> GenerateRequest:
    params = SamplingParams(max_tokens=max_tokens)
    return GenerateRequest(name, tuple(range(first, first + size)), params, priority=priority)


def make(clock: Clock, num_blocks: int = 100, **limits: int) -> Scheduler:
    limits = {"max_sequences": 8, "max_batch_tokens": 16} | limits
    return Scheduler(BlockManager(num_blocks, 4), **limits, clock=clock)


def add(scheduler: Scheduler, *args: object, **kwargs: object) -> Sequence:
    sequence = Sequence(request(*args, **kwargs), context_length=1000)  # type: ignore[arg-type]
    scheduler.add(sequence)
    return sequence


def answer(rows: list[Row]) -> None:
    for row in rows:
        if row.sample:
            row.sequence.num_pending_tokens -= 1
            row.sequence.append(7)


def names(sequences: list[Sequence]) -> str:
    return "".join(one.request_id for one in sequences)


def test_classes_are_admitted_in_order_and_each_by_arrival() -> None:
    scheduler = make(Clock(), max_sequences=1)
    for name, priority in zip("abcdef", (BATCH, NORMAL, INTERACTIVE) * 2, strict=True):
        add(scheduler, name, 4, priority)
    assert names(scheduler.waiting) == "cfbead"
    scheduler.schedule()
    assert (names(scheduler.running), names(scheduler.waiting)) == ("c", "fbead")


def test_who_has_waited_for_long_pushes_out_no_equal() -> None:
    """Replies of the default class go on, however many wait for their places."""
    clock = Clock()
    scheduler = make(clock, max_sequences=2)
    for name in "abcd":
        add(scheduler, name, 4, NORMAL)
    while clock.now < 2 * AGING_SECONDS:
        answer(scheduler.schedule())
        clock.now += 1
    assert (names(scheduler.running), names(scheduler.waiting)) == ("ab", "cd")
    assert not any(one.num_preemptions for one in scheduler.running)


def test_waiting_makes_a_class_better_and_never_puts_it_before_older_ones() -> None:
    clock = Clock()
    scheduler = make(clock, max_sequences=1)
    add(scheduler, "r", 4, INTERACTIVE)
    scheduler.schedule()
    add(scheduler, "a", 4, BATCH)
    clock.now = AGING_SECONDS - 1
    add(scheduler, "b", 4, NORMAL)
    scheduler.schedule()
    assert names(scheduler.waiting) == "ba"
    clock.now = AGING_SECONDS * 1.2
    scheduler.schedule()
    assert names(scheduler.waiting) == "ab"
    add(scheduler, "c", 4, INTERACTIVE)
    assert names(scheduler.waiting) == "cab"
    clock.now = AGING_SECONDS * 2.2
    scheduler.schedule()
    assert names(scheduler.waiting) == "abc"


def test_only_time_in_which_it_gets_nothing_counts() -> None:
    standing = Standing(BATCH, 5, now=0)
    standing.serve(AGING_SECONDS * 0.75)
    assert not standing.age(1e6)
    standing.starve(1e6)
    standing.starve(1e6 + 1)
    assert not standing.age(1e6 + AGING_SECONDS * 0.2)
    assert standing.age(1e6 + AGING_SECONDS * 0.3) and standing.rank == (NORMAL, 5)
    assert standing.age(1e9) and standing.rank == (INTERACTIVE, 5)
    assert not standing.age(1e10)


@pytest.mark.parametrize("short", ["blocks", "places"])
def test_a_better_class_takes_the_place_of_the_worst_and_newest(short: str) -> None:
    limits = {"max_sequences": 3} if short == "places" else {"num_blocks": 12}
    scheduler = make(Clock(), max_batch_tokens=64, **limits)
    for place, (name, priority) in enumerate([("a", BATCH), ("b", NORMAL), ("c", BATCH)]):
        add(scheduler, name, 6, priority, first=place * 50)
    answer(scheduler.schedule())
    assert names(scheduler.running) == "bac"
    add(scheduler, "d", 7, NORMAL, first=300)
    rows = scheduler.schedule()
    assert names(scheduler.running) == "bda" and names(scheduler.waiting) == "c"
    assert {row.sequence.request_id for row in rows} == {"a", "b", "d"}
    scheduler.blocks.check_integrity([one.block_table for one in scheduler.running])
    answer(rows)
    add(scheduler, "e", 7, NORMAL, first=400)
    answer(scheduler.schedule())
    assert names(scheduler.running) == "bde" and names(scheduler.waiting) == "ac"
    add(scheduler, "f", 7, NORMAL, first=500)  # nobody is worse: it waits
    scheduler.schedule()
    assert names(scheduler.running) == "bde" and names(scheduler.waiting) == "fac"


def test_nobody_is_displaced_where_that_would_not_do() -> None:
    scheduler = make(Clock(), num_blocks=20, max_batch_tokens=64)
    add(scheduler, "a", 40, INTERACTIVE)
    add(scheduler, "b", 8, BATCH, first=100)
    answer(scheduler.schedule())
    assert names(scheduler.running) == "ab"
    add(scheduler, "c", 50, INTERACTIVE, first=200)  # 13 blocks, and a's 10 stay
    answer(scheduler.schedule())
    assert names(scheduler.running) == "ab" and names(scheduler.waiting) == "c"


def test_a_prompt_that_a_better_one_waits_for_is_computed_at_its_rank() -> None:
    scheduler = make(Clock(), num_blocks=200, max_batch_tokens=16)
    shared = [add(scheduler, "a", 160, BATCH)]
    add(scheduler, "x", 160, NORMAL, first=500)
    for one in shared:
        one.keys = None
    shared[0].keys = BlockKeys(shared[0].token_ids, 4, "")
    scheduler.schedule()
    assert names(scheduler.running) == "xa"
    better = add(scheduler, "b", 160, INTERACTIVE)
    better.keys = BlockKeys(better.token_ids, 4, "")
    scheduler.schedule()
    assert names(scheduler.running) == "ax" and names(scheduler.waiting) == "b"
    assert scheduler.schedule()[0].sequence.request_id == "a"


def keyed(scheduler: Scheduler, *args: object, **kwargs: object) -> Sequence:
    """One that takes part in the prefix cache."""
    sequence = add(scheduler, *args, **kwargs)
    sequence.keys = BlockKeys(sequence.token_ids, 4, "")
    return sequence


@pytest.mark.parametrize("places", [2, 8])
def test_a_lent_rank_is_lost_when_the_shared_part_is_done(places: int) -> None:
    """Also where there is no place for the one that waits."""
    clock = Clock()
    scheduler = make(clock, num_blocks=200, max_batch_tokens=16, max_sequences=places)
    batch = keyed(scheduler, "a", 160, BATCH)
    add(scheduler, "x", 400, NORMAL, first=500)
    answer(scheduler.schedule())
    assert names(scheduler.running) == "xa"
    better = keyed(scheduler, "b", 40, INTERACTIVE)  # the first 40 tokens of a
    while better in scheduler.waiting and names(scheduler.running) != "xa":
        answer(scheduler.schedule())
    ranks = []
    while better in scheduler.waiting:
        answer(scheduler.schedule())
        ranks.append(names(scheduler.running))
        assert len(ranks) < 20
    assert ranks[0] == "ax" and batch.standing.rank == (BATCH, 0)
    expected = "bx" if places == 2 else "bxa"
    assert names(scheduler.running) == expected and batch.num_computed_tokens < 60
    clock.now = AGING_SECONDS * 1.1
    scheduler.schedule()
    assert batch.standing.rank >= (NORMAL, 0), "it ages from its own class"


@pytest.mark.parametrize("how", ["the one that waits goes", "it is preempted", "it ends"])
def test_a_lent_rank_is_lost_with_either(how: str) -> None:
    scheduler = make(Clock(), num_blocks=200, max_batch_tokens=16)
    batch = keyed(scheduler, "a", 160, BATCH)
    add(scheduler, "x", 400, NORMAL, first=500)
    better = keyed(scheduler, "b", 160, INTERACTIVE)
    other = keyed(scheduler, "c", 160, NORMAL)
    scheduler.remove(better), scheduler.remove(other)
    answer(scheduler.schedule())
    scheduler.add(better), scheduler.add(other)
    answer(scheduler.schedule())
    assert names(scheduler.running) == "ax" and batch.standing.rank == better.standing.rank
    if how == "it ends":
        scheduler.remove(batch)
        answer(scheduler.schedule())
        assert names(scheduler.running) == "bx"
    elif how == "it is preempted":
        scheduler.preempt(batch)
        assert batch.standing.rank[0] == BATCH and names(scheduler.waiting) == "bca"
    else:
        scheduler.remove(better)
        answer(scheduler.schedule())
        assert names(scheduler.running) == "xa"
        assert batch.standing.rank == other.standing.rank, "the next one that waits lends its own"


def test_better_classes_read_their_prompts_first(rng: np.random.Generator) -> None:
    assert split_budget(20, [30, 50, 4, 6], [0, 2, 2, 1]) == [10, 0, 4, 6]
    for _ in range(200):
        count = int(rng.integers(1, 8))
        classes = sorted(rng.integers(0, 3, size=count).tolist())
        remaining = rng.integers(1, 40, size=count).tolist()
        budget = int(rng.integers(0, 60))
        shares = split_budget(budget, remaining, classes)
        assert sum(shares) == min(budget, sum(remaining))
        for place in range(1, count):  # who gets something leaves nobody before it short
            if shares[place]:
                better = [p for p in range(1, count) if classes[p] < classes[place]]
                assert all(shares[p] == remaining[p] for p in better)


def test_a_batch_request_ends_under_a_stream_of_interactive_ones() -> None:
    """More interactive work than fits, for ever: what arrived first gets its turn all the same."""
    clock = Clock()
    runner = ScriptedRunner(num_blocks=12, max_sequences=2, max_batch_tokens=12)
    engine = Engine(runner, clock=clock)
    engine.add(request("batch", 20, BATCH, max_tokens=10, first=500))
    ended = 0.0
    for step in range(1000):
        if step % 2 == 0:
            engine.add(request(f"i{step}", 16, INTERACTIVE, max_tokens=6, first=step % 400))
        message = engine.step()
        clock.now += AGING_SECONDS / 20
        if "batch" in {u.request_id for u in message.updates if u.finish_reason}:
            ended = clock.now
            break
    assert 0 < ended < 5 * AGING_SECONDS
    assert len([one for one in engine.status().sequences if one.state == "waiting"]) > 5


@pytest.mark.parametrize("steps_in_flight", [1, 3])
def test_ranks_are_kept_whatever_comes(rng: np.random.Generator, steps_in_flight: int) -> None:
    """Who is preempted ranks behind all who run on, but for those who asked for a better class; who is
    admitted, before all who go on waiting. Replies are those of a lone run, no block is lost, and all end."""
    num_preemptions = 0
    for _ in range(12):
        clock = Clock()
        runner = ScriptedRunner(
            num_blocks=int(rng.integers(6, 20)),
            block_size=int(rng.choice([2, 4])),
            max_sequences=int(rng.integers(1, 6)),
            max_batch_tokens=int(rng.integers(4, 30)),
            context_length=24,
            steps_in_flight=steps_in_flight,
        )
        engine = Engine(runner, clock=clock)
        scheduler = engine._scheduler
        requests, got, left = {}, {}, 14
        while left or engine.has_work:
            if left and rng.random() < 0.4:
                left -= 1
                size = int(rng.integers(1, engine.context_length))
                one = GenerateRequest(
                    f"r{left}",
                    tuple(rng.integers(0, 900, size=size).tolist()),
                    SamplingParams(max_tokens=int(rng.integers(1, 12))),
                    priority=int(rng.integers(len(PRIORITIES))),
                )
                engine.add(one)
                requests[one.request_id], got[one.request_id] = one, []
            before = list(scheduler.running)
            message = engine.step()
            engine.check_integrity()
            clock.now += float(rng.exponential(AGING_SECONDS / 10))
            ranks = [one.standing.rank for one in scheduler.running]
            assert ranks == sorted(ranks)
            assert scheduler.waiting == sorted(scheduler.waiting, key=lambda s: s.standing.rank)
            victims = [one for one in before if one in scheduler.waiting]
            num_preemptions += len(victims)
            stayed = [one for one in before if one in scheduler.running]
            assert all(
                v.standing.rank > s.standing.rank or v.priority > s.priority
                for v in victims
                for s in stayed
            )
            admitted = [one for one in scheduler.running if one not in before]
            assert all(
                a.standing.rank < w.standing.rank for a in admitted for w in scheduler.waiting
            )
            for update in message.updates:
                got[update.request_id] += update.token_ids
        for name, one in requests.items():
            assert tuple(got[name]) == lone_run(one, context_length=engine.context_length)[0]
    assert num_preemptions > 0
