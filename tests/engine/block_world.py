"""Block manager, prefix cache and tiers, driven event by event beside a simple model.

The model: what a block holds is told by the tokens up to its end, so for each sequence, key, copy and file the right
bytes are known, and `World.check` holds everything that is there against them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from tier_doubles import SIZE, WIDTH, Disk, Files, Jobs, PoolRunner

from emberd.engine.blocks import BlockManager
from emberd.engine.prefix import BlockKeys, Key
from emberd.engine.rates import Rates
from emberd.engine.tiers import Tiers
from emberd.protocol import Bytes

Event = tuple[str, int]


def held(tokens: Sequence[int]) -> Bytes:
    """What the last block of so many tokens holds."""
    out = np.full(WIDTH, 255, np.uint8)
    out[: len(tokens) + 1] = [len(tokens), *tokens]
    return out


@dataclass(eq=False)
class Holder:
    """A sequence as the block manager sees it: tokens, keys, a table, and how far it is run and published."""

    tokens: list[int]
    max_length: int
    state: str = "waiting"  # running, ended
    table: list[int] = field(default_factory=list)
    num_run: int = 0
    num_published: int = 0

    def __post_init__(self) -> None:
        self.keys = BlockKeys(self.tokens, SIZE, "")

    def block(self, place: int, end: int) -> Bytes:
        return held(self.tokens[: min((place + 1) * SIZE, end)])


class World:
    """Sequences of given prompts, each of which arrives once and may grow to `max_length` tokens."""

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        max_length: int,
        num_blocks: int,
        ram_blocks: int,
        disk_blocks: int,
    ) -> None:
        self.runner = PoolRunner(num_blocks)
        self.blocks = BlockManager(num_blocks, SIZE)
        self.reads, self.writes, self.files = Jobs(), Jobs(), Files(WIDTH)
        self.disk_blocks = disk_blocks
        rates = Rates(SIZE, WIDTH)  # measures no prefill, so every copy pays
        disk = None
        if disk_blocks:
            size = disk_blocks * WIDTH
            disk = Disk(self.files, size, rates.fetch, self.reads, self.writes)  # type: ignore[arg-type]
        self.tiers = Tiers(self.runner, rates, ram_blocks * WIDTH, disk)  # type: ignore[arg-type]
        self.tiers.attach(self.blocks)
        self.holders = [Holder(list(prompt), max_length) for prompt in prompts]
        self._right: dict[Key, Bytes] = {}  # by key

    def events(self) -> Iterator[Event]:
        """What may happen now."""
        for number, holder in enumerate(self.holders):
            length = len(holder.tokens)
            if holder.state == "waiting":
                yield "admit", number
                yield "cancel", number
            elif holder.state == "running":
                yield "preempt", number
                yield "cancel", number
                if holder.num_run < length:
                    yield "run", number
                elif length < holder.max_length:
                    yield "append", number
                if holder.num_run // SIZE > holder.num_published:
                    yield "publish", number
        if self.tiers.has_work and not (self.tiers.disk and self.tiers.disk.busy):
            yield "rest", 0
        if self.reads.waiting:
            yield "read", 0
        if self.writes.waiting:
            yield "write", 0

    def do(self, event: Event) -> None:
        name, number = event
        getattr(self, f"_{name}")(*[self.holders[number]] if name not in NO_HOLDER else ())

    def _admit(self, holder: Holder) -> None:
        """A schedule that asks for this one alone, its copies included."""
        self._ask(holder)
        self.tiers.move()

    def _ask(self, holder: Holder) -> None:
        """As the scheduler admits."""
        num_full = (len(holder.tokens) - 1) // SIZE
        keys = holder.keys.first(num_full)
        prefix = self.blocks.find(keys)
        below = self.tiers.ready(holder, keys[len(prefix) :])
        if below is None:
            return
        needed = self.blocks.blocks_for(len(holder.tokens)) - len(prefix)
        needed += sum(map(self.blocks.prefixes.is_idle, prefix))
        if needed > self.blocks.num_free:
            return
        self.blocks.adopt(holder.table, prefix)
        self.blocks.grow(holder.table, len(holder.tokens))
        reused = len(prefix) + len(below)
        self.tiers.promote(holder, below, holder.table[len(prefix) : reused])
        holder.num_run, holder.num_published = reused * SIZE, len(prefix)
        holder.state = "running"
        self._publish(holder)

    def _run(self, holder: Holder) -> None:
        """A step writes all tokens that are not there."""
        others = {b for other in self.holders if other is not holder for b in other.table}
        first, holder.num_run = holder.num_run // SIZE, len(holder.tokens)
        for place in range(first, len(holder.table)):
            block = holder.table[place]
            assert block not in others and block not in self.blocks.prefixes, "it is shared"
            self.runner.pool[block] = holder.block(place, holder.num_run)

    def _publish(self, holder: Holder) -> None:
        keys = holder.keys.first(holder.num_run // SIZE)
        for place in range(holder.num_published, len(keys)):
            self._right[keys[place]] = holder.block(place, len(holder.tokens))
            self.blocks.publish(
                holder.table, place, keys[place], keys[place - 1] if place else None
            )
        holder.num_published = len(keys)

    def _append(self, holder: Holder) -> None:
        length = len(holder.tokens) + 1
        if self.blocks.num_missing(holder.table, length) <= self.blocks.num_free:
            holder.tokens.append(0)
            self.blocks.grow(holder.table, length)
            self.tiers.move()

    def _preempt(self, holder: Holder) -> None:
        self._leave(holder, "waiting")

    def _cancel(self, holder: Holder) -> None:
        if holder.state == "waiting":
            self.tiers.forget(holder)
        self._leave(holder, "ended")

    def _leave(self, holder: Holder, state: str) -> None:
        self.blocks.release(holder.table)
        holder.state, holder.num_run, holder.num_published = state, 0, 0

    def _rest(self) -> None:
        self.tiers.rest()

    def _read(self) -> None:
        job = self.reads.waiting[0][2]
        if any(name == f"write {job.split()[1]}" for _, _, name in self.writes.waiting):
            return  # a reader waits for the file
        self.reads.run_one()
        self.tiers.poll()

    def _write(self) -> None:
        self.writes.run_one()
        self.tiers.poll()

    def check(self) -> None:
        """AssertionError tells what is not as the model has it."""
        tables = [holder.table for holder in self.holders]
        self.blocks.check_integrity(tables)
        self.tiers.check_integrity()
        in_use = {block for table in tables for block in table}
        assert self.blocks.num_free == self.blocks.num_blocks - len(in_use)
        for holder in self.holders:
            for place in range(-(-holder.num_run // SIZE)):
                found = self.runner.pool[holder.table[place]]
                assert (found == holder.block(place, holder.num_run)).all(), "another's tokens"
        for key, right in self._right.items():
            block = self.blocks.prefixes.get(key)
            copies = [None if block is None else self.runner.pool[block], self.tiers.ram.get(key)]
            copies += [self.files.content.get(key), self.tiers._fetched.get(key)]
            for found in copies:
                assert found is None or (found == right).all(), "a copy holds another prefix"
        if not self.writes.waiting and self.tiers.disk is not None:
            assert len(self.files.content) == self.tiers.disk.num_blocks <= self.disk_blocks
            assert all(key in self.tiers.disk for key in self.files.content), "a file is forgotten"

    def finish(self) -> None:
        """From any state each that waits can run once it has the pool, all can end, and nothing is left behind."""
        for holder in self.holders:
            if holder.state == "running":
                self._cancel(holder)
        while waiting := [holder for holder in self.holders if holder.state == "waiting"]:
            for holder in waiting:
                self._ask(holder)
                if holder.state == "running":
                    self.tiers.move()
                    self.check()
                    self._cancel(holder)
                    break
            else:
                self.tiers.move()
                assert self.reads.waiting or self.writes.waiting, "they wait for ever"
                self._drain()
        for _ in range(100):
            self._drain()
            if not self.tiers.has_work:
                break
        self.check()
        assert not self.tiers.has_work and self.blocks.num_free == self.blocks.num_blocks

    def _drain(self) -> None:
        for jobs in (self.writes, self.reads):
            while jobs.waiting:
                jobs.run_one()
        self.tiers.poll()
        self.tiers.rest()

    def state(self) -> object:
        """All that what follows depends on; block ids by their first place, times by their order."""
        ids: dict[int, int] = {}
        idle, free = list(self.blocks.prefixes._idle), list(self.blocks._free)
        for block in (b for row in (*[h.table for h in self.holders], idle, free) for b in row):
            ids.setdefault(block, len(ids))
        tiers = self.tiers
        orders = [tiers.ram._order, *([tiers.disk._order] if tiers.disk else [])]
        keys = self.blocks.prefixes._key_of
        return (
            [
                (h.state, *h.tokens, -1, *(ids[b] for b in h.table), -1, h.num_run, h.num_published)
                for h in self.holders
            ],
            [(ids[block], keys[block][0]) for block in idle],
            sorted((ids[block], key) for block, (key, _) in keys.items()),
            [sorted(order._entries, key=lambda k, o=order: o._entries[k][1]) for order in orders],
            [(tiers._step - s.step, s.to_disk, [b.key for b in s.blocks]) for s in tiers._landing],
            list(tiers._unsaved),
            tiers._looked,
            [n for n, h in enumerate(self.holders) if h is tiers._fetcher],
            sorted(tiers._fetched),
            [name for _, _, name in (*self.reads.waiting, *self.writes.waiting)],
        )


NO_HOLDER = ("rest", "read", "write")
