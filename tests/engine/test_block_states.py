"""Blocks, prefixes and preemption under any order of events, each beside a simple model (hypothesis).

The first machine drives the block manager alone and keeps what a device would: for each block the tokens whose
keys and values it holds, all of them from the beginning. The second drives a whole engine.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tier_doubles import Jobs, memory_tiers

from emberd.engine import Engine
from emberd.engine.blocks import HOLE, BlockManager
from emberd.engine.prefix import BlockKeys
from emberd.protocol import GenerateRequest, SamplingParams
from fakes import ScriptedRunner, lone_run

SIZE = 2
text = st.lists(st.integers(0, 1), min_size=1, max_size=4 * SIZE)
which = st.integers(0, 9)


class Holder:
    """A sequence as the block manager sees it: tokens, keys, a table, and how far it is run and published."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.keys = BlockKeys(self.tokens, SIZE, "")
        self.table: list[int] = []
        self.num_run = 0
        self.num_published = 0

    def held(self, block_place: int, end: int) -> tuple[int, ...]:
        return tuple(self.tokens[: min((block_place + 1) * SIZE, end)])


class BlockStates(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(1, 7), window=st.sampled_from([0, 0, 1, 2, 3, 5]))
    def start(self, num_blocks: int, window: int) -> None:
        self.blocks = BlockManager(num_blocks, SIZE, window)
        self.window = window
        self.written: dict[int, tuple[int, ...]] = {}
        self.holders: list[Holder] = []
        self.parked: list[Holder] = []

    def pick(self, number: int) -> Holder:
        return self.holders[number % len(self.holders)]

    def admit(self, holder: Holder) -> bool:
        num_full = (len(holder.tokens) - 1) // SIZE
        prefix = self.blocks.find(holder.keys.first(num_full))
        for place, block in enumerate(prefix):
            if block == HOLE:
                assert (place + 1) * SIZE <= self.first_seen(len(prefix) * SIZE), "it is needed"
                continue
            assert self.written[block] == holder.held(place, len(holder.tokens)), "another prefix"
        needed = self.blocks.blocks_for(len(holder.tokens)) - len(prefix)
        needed += sum(map(self.blocks.prefixes.is_idle, prefix))
        if needed > self.blocks.num_free:
            return False
        self.blocks.adopt(holder.table, prefix)
        self.blocks.grow(holder.table, len(holder.tokens))
        holder.num_run, holder.num_published = len(prefix) * SIZE, len(prefix)
        self.holders.append(holder)
        return True

    def first_seen(self, position: int) -> int:
        return max(0, position - self.window + 1) if self.window else 0

    @rule(tokens=text)
    def arrive(self, tokens: list[int]) -> None:
        self.admit(Holder(tokens))

    @precondition(lambda self: self.holders)
    @rule(number=which, count=st.integers(1, 2 * SIZE))
    def run(self, number: int, count: int) -> None:
        """A step writes the next tokens of a sequence."""
        holder = self.pick(number)
        others = {b for other in self.holders if other is not holder for b in other.table}
        for position in range(holder.num_run, min(holder.num_run + count, len(holder.tokens))):
            block = holder.table[position // SIZE]
            assert block not in others and block not in self.blocks.prefixes, "it is shared"
            self.written[block] = tuple(holder.tokens[: position + 1])
            holder.num_run = position + 1

    @precondition(lambda self: self.holders)
    @rule(number=which)
    def publish(self, number: int) -> None:
        holder = self.pick(number)
        keys = holder.keys.first(holder.num_run // SIZE)
        for place in range(holder.num_published, len(keys)):
            before = keys[place - 1] if place else None
            self.blocks.publish(holder.table, place, keys[place], before)
        holder.num_published = len(keys)

    @precondition(lambda self: self.holders)
    @rule(number=which)
    def free_behind(self, number: int) -> None:
        """As the scheduler does, behind what is published."""
        holder = self.pick(number)
        if holder.num_published == holder.num_run // SIZE:
            self.blocks.free_behind(holder.table, min(holder.num_run, len(holder.tokens) - 1))

    @precondition(lambda self: self.holders)
    @rule(number=which, token=st.integers(0, 1))
    def append(self, number: int, token: int) -> None:
        """A sequence that is run to its end gets one more token."""
        holder = self.pick(number)
        length = len(holder.tokens) + 1
        missing = self.blocks.num_missing(holder.table, length)
        if holder.num_run == len(holder.tokens) and missing <= self.blocks.num_free:
            holder.tokens.append(token)
            self.blocks.grow(holder.table, length)

    @precondition(lambda self: self.holders)
    @rule(number=which, preempted=st.booleans())
    def leave(self, number: int, preempted: bool) -> None:
        holder = self.pick(number)
        self.holders.remove(holder)
        self.blocks.release(holder.table)
        if preempted:
            self.parked.append(holder)

    @precondition(lambda self: self.parked)
    @rule()
    def come_back(self) -> None:
        if self.admit(self.parked[0]):
            self.parked.pop(0)

    @invariant()
    def everything_adds_up(self) -> None:
        tables = [holder.table for holder in self.holders]
        self.blocks.check_integrity(tables)
        held = {block for table in tables for block in table} - {HOLE}
        assert self.blocks.num_free == self.blocks.num_blocks - len(held)

    @invariant()
    def every_sequence_reads_its_own_tokens(self) -> None:
        for holder in self.holders:
            first = self.first_seen(min(holder.num_run, len(holder.tokens) - 1)) // SIZE
            for place in range(first, -(-holder.num_run // SIZE)):
                found = self.written[holder.table[place]]
                assert found == holder.held(place, holder.num_run)

    def teardown(self) -> None:
        if hasattr(self, "blocks"):
            for holder in self.holders:
                self.blocks.release(holder.table)
            self.blocks.check_integrity([])
            assert self.blocks.num_free == self.blocks.num_blocks


class EngineStates(RuleBasedStateMachine):
    """The scripted runner holds every slot that is read, so also what came from the tiers, against the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs = Jobs()

    @initialize(
        num_blocks=st.integers(2, 9),
        max_sequences=st.integers(1, 4),
        max_batch_tokens=st.integers(1, 9),
        steps_in_flight=st.integers(1, 3),
        window=st.sampled_from([0, 0, 1, 3, 5]),
        ram=st.integers(0, 6),
        disk=st.sampled_from([0, 3, 20]),
    )
    def start(self, ram: int, disk: int, **runner: Any) -> None:
        self.runner = ScriptedRunner(block_size=SIZE, context_length=24, **runner)
        tiers = None
        if (ram or disk) and not self.runner.window:
            tiers = memory_tiers(self.runner, ram, disk, self.jobs)
        self.engine = Engine(self.runner, tiers)
        self.expected: dict[str, tuple[tuple[int, ...], str]] = {}
        self.got: dict[str, list[int]] = {}
        self.ended: dict[str, str] = {}

    @rule(tokens=text, max_tokens=st.integers(1, 6), salt=st.sampled_from(["", "", "x", None]))
    def arrive(self, tokens: list[int], max_tokens: int, salt: str | None) -> None:
        prompt = tuple(tokens[: self.engine.context_length - 1])
        name = f"r{len(self.expected)}"
        request = GenerateRequest(name, prompt, SamplingParams(max_tokens=max_tokens), None, salt)
        self.expected[name] = lone_run(request, context_length=self.engine.context_length)
        self.got[name] = []
        self.engine.add(request)

    @rule(number=which)
    def cancel(self, number: int) -> None:
        running = [name for name in self.expected if name not in self.ended]
        if running:
            self.engine.cancel(running[number % len(running)])

    @rule(count=st.integers(1, 3))
    def let_the_disk_work(self, count: int) -> None:
        for _ in range(min(count, len(self.jobs.waiting))):
            self.jobs.run_one()

    @rule()
    def step(self) -> None:
        for update in self.engine.step().updates:
            assert update.request_id not in self.ended
            self.got[update.request_id] += update.token_ids
            if update.finish_reason:
                self.ended[update.request_id] = update.finish_reason

    @invariant()
    def everything_adds_up(self) -> None:
        self.engine.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(100 * len(self.expected)):
            if not self.engine.has_work:
                break
            self.let_the_disk_work(9)
            self.step()
        assert not self.engine.has_work, "the engine does not get on"
        for name, (token_ids, reason) in self.expected.items():
            if self.ended[name] == "cancelled":
                assert tuple(self.got[name]) == token_ids[: len(self.got[name])]
            else:
                assert (tuple(self.got[name]), self.ended[name]) == (token_ids, reason)
        assert self.engine.step().num_free_blocks == self.runner.num_blocks


@pytest.mark.slow
class TestBlockStates(BlockStates.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=150, stateful_step_count=40, deadline=None, database=None)


@pytest.mark.slow
class TestEngineStates(EngineStates.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=100, stateful_step_count=30, deadline=None, database=None)
