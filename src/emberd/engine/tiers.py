"""KV blocks below the pool: in main memory, then on disk. What leaves the pool goes down, and comes back when needed.

Blocks are known by their prefix keys, so a preempted sequence finds its own again as any other finds a prefix. Copies
go by the runner's queue, in order with the steps, a bounded number of bytes a step.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from collections.abc import Sequence as Sequences
from dataclasses import dataclass
from typing import NamedTuple

from emberd.protocol import BlockCopy, Bytes, Runner, TierCounts

from .blocks import BlockManager
from .disk_tier import DiskTier
from .prefix import Key, Published
from .ram_tier import RamTier
from .rates import Rates

_STEP_BYTES = 32 << 20
"""Bytes that may leave the pool in a step, come back in one beside replies, and be given to the disk in one."""

_FETCHED_BYTES = 4 << 30
"""Most bytes of a prefix that are read from the disk, before its sequence is admitted."""

_AHEAD = 256
"""Blocks next to leave the pool that are copied before they have to, while the pool fills up."""

_WAIT_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class _Landing:
    """Blocks on their way from the pool."""

    blocks: list[Published]
    copy: BlockCopy
    step: int
    to_disk: bool  # and to no other tier: they are in the pool still


class _Arrival(NamedTuple):
    """What a block of the pool is to hold."""

    owner: object
    block: int
    data: Bytes


class Tiers:
    """What is kept below the pool of a runner. Implements `blocks.Watcher`; the runner's thread alone calls it."""

    def __init__(
        self, runner: Runner, rates: Rates, ram_bytes: int = 0, disk: DiskTier | None = None
    ) -> None:
        self.rates = rates
        self.disk, self.ram = disk, RamTier(ram_bytes)
        self._runner = runner
        self._per_step = max(1, _STEP_BYTES // runner.block_bytes)
        ram_blocks = ram_bytes // runner.block_bytes
        self._ahead = min(_AHEAD, ram_blocks // 2)
        self._most_unsaved = runner.num_blocks + ram_blocks
        self._blocks: BlockManager | None = None
        self._step = 0
        self._looked = False  # that all that is next to leave is kept
        self._leaving: list[Published] = []  # to be copied before the next step
        self._landing: deque[_Landing] = deque()
        self._landing_keys: set[Key] = set()
        self._arriving: list[_Arrival] = []  # to be written before the next step
        self._awaited: OrderedDict[object, deque[_Arrival]] = OrderedDict()  # later, by owner
        self._room = runner.num_blocks  # for arrivals before the next step
        self._unsaved: OrderedDict[Key, Key | None] = OrderedDict()
        self._fetcher: object = None  # for whom blocks are read from the disk
        self._first_asked: object = None  # in this schedule, of those that need the disk
        self._fetched: dict[Key, Bytes] = {}
        self._num_promoted = self._num_spilled = self._num_lost = 0

    def attach(self, blocks: BlockManager) -> None:
        self._blocks, blocks.watcher = blocks, self

    @property
    def has_work(self) -> bool:
        """Whether `rest` has anything to do."""
        return bool(self._landing or (self.disk and (self.disk.busy or self._can_save)))

    @property
    def counts(self) -> TierCounts:
        disk = self.disk
        return TierCounts(
            ram_blocks=len(self.ram),
            ram_bytes=self.ram.nbytes,
            disk_blocks=disk.num_blocks if disk else 0,
            disk_bytes=disk.nbytes if disk else 0,
            promoted=self._num_promoted,
            spilled=self._num_spilled,
            lost=self._num_lost,
        )

    def published(self, key: Key, parent: Key | None) -> None:
        self._looked = False
        if self.disk is not None and key not in self.disk:
            self._unsaved[key] = parent
            if len(self._unsaved) > self._most_unsaved:
                self._unsaved.popitem(last=False)

    def evicted(self, published: Published) -> None:
        self._looked = False
        if self._is_kept(published.key):
            if published.key in self.ram:
                self.ram.use(published.key)
        elif len(self._leaving) < self._per_step:
            self._leaving.append(published)
        else:
            self._num_lost += 1

    def ready(self, owner: object, keys: Sequences[Key]) -> list[Key] | None:
        """The first of `keys` that are below and come back sooner than they are computed; None while the disk
        is read for them, for `owner` or for one that asked before it in this schedule."""
        wanted: list[Key] = []
        missing: list[Key] = []
        worth: dict[bool, int] = {}
        num_read = 0  # of `wanted`, those from the disk: read, being read and to be read
        most_missing = max(1, _FETCHED_BYTES // self._runner.block_bytes)
        if any(key in self._landing_keys for key in keys):
            self._land(everything=True)
        for key in keys:
            from_disk = key not in self.ram and key not in self._fetched
            if from_disk and (self.disk is None or key not in self.disk):
                break
            if from_disk not in worth:
                most = self.rates.worth_copying(from_disk=from_disk)
                worth[from_disk] = min(most, most_missing) if from_disk else most
            if (num_read if from_disk else len(wanted) - len(missing)) >= worth[from_disk]:
                break
            wanted.append(key)
            num_read += key not in self.ram
            if from_disk:
                missing.append(key)
        if not missing:
            return wanted
        assert self.disk is not None
        if self._first_asked is None:
            self._first_asked = owner
        if self._first_asked is owner:
            if self._fetcher is not owner:  # who came before may not be asked again: it stands back
                self._fetched.clear()
            self._fetcher = owner
            self.disk.fetch(missing)
        return None

    def promote(self, owner: object, keys: Sequences[Key], blocks: Sequences[int]) -> None:
        """Let `keys`, which `ready` has just given, be in these blocks from the next step on, or as soon as it does
        not await them any more."""
        awaited = deque[_Arrival]()
        for key, block in zip(reversed(keys), reversed(blocks), strict=True):
            data = self._fetched.get(key)
            if data is None:
                data = self.ram.get(key)
                self.ram.use(key)
            assert data is not None
            awaited.append(_Arrival(owner, block, data))
        self._num_promoted += len(keys)
        self._stop_fetching(owner)
        if awaited:
            self._awaited[owner] = awaited
            self._take_awaited()

    def let_arrive(self, beside_replies: bool) -> None:
        """At the beginning of a schedule: what is awaited comes up before the next step, beside replies a part."""
        self._room = self._per_step if beside_replies else self._runner.num_blocks
        self._take_awaited()

    def _take_awaited(self) -> None:
        while self._awaited:
            owner, awaited = next(iter(self._awaited.items()))
            while awaited and len(self._arriving) < self._room:
                self._arriving.append(awaited.popleft())
            if awaited:
                return
            del self._awaited[owner]

    def awaits(self, owner: object) -> bool:
        """Whether blocks of `owner` are not there before the next step."""
        return owner in self._awaited

    def arrives(self, owner: object) -> bool:
        """Whether blocks of `owner` are not written yet: they are by the next step, if it is not forgotten before."""
        return owner in self._awaited or any(one.owner is owner for one in self._arriving)

    def forget(self, owner: object) -> None:
        """`owner` needs nothing from below any more, and its blocks are given up."""
        self._awaited.pop(owner, None)
        if self._arriving:
            self._arriving = [one for one in self._arriving if one.owner is not owner]
        self._stop_fetching(owner)

    def _stop_fetching(self, owner: object) -> None:
        if self._fetcher is owner:
            self._fetcher = None
            self._fetched.clear()

    def parents(self) -> dict[Key, Key | None]:
        """Of every block below, the key of the one before it. Waits for the copies under way."""
        self._land(everything=True)
        below = self.ram.parents()
        return below if self.disk is None else self.disk.parents() | below

    def drop(self, keys: Iterable[Key]) -> None:
        """Keep nothing of these blocks, with which all behind them are told. Call it between two steps."""
        self._land(everything=True)
        for key in keys:
            self._unsaved.pop(key, None)
            self._fetched.pop(key, None)
            self.ram.drop(key)
            if self.disk is not None:
                self.disk.drop(key)

    def move(self) -> None:
        """Submit the copies that the last schedule asked for. Call it between a schedule and its submit."""
        self._step += 1
        self._first_asked = None
        self._land()
        self._look_ahead()
        if self._leaving:
            self._begin(self._leaving, to_disk=False)
            self._leaving = []
        if self._arriving:
            blocks = [arrival.block for arrival in self._arriving]
            started = time.perf_counter()
            self._runner.write_blocks(blocks, [arrival.data for arrival in self._arriving])
            nbytes = len(blocks) * self._runner.block_bytes
            self.rates.upload.note(nbytes, time.perf_counter() - started)
            self._arriving.clear()

    def poll(self) -> None:
        """Take what the disk's threads have done."""
        if self.disk is not None and self.disk.busy:
            found = self.disk.poll()
            if self._fetcher is not None:
                self._fetched |= found

    def rest(self) -> None:
        """Nothing is to be run: land copies, give the disk what it lacks, wait a moment for its threads."""
        self._land(everything=True)
        self._save()
        if self.disk is not None and self.disk.busy:
            self.disk.wait(_WAIT_SECONDS)
            self.poll()

    def close(self) -> None:
        if self.disk is not None:
            self.disk.close()
            with contextlib.suppress(OSError):  # it is measured again
                self.rates.save(self.disk.rates_path)

    def check_integrity(self) -> None:
        """AssertionError tells what is off."""
        assert not self._leaving and not self._arriving, "copies were asked for and not submitted"
        assert self.ram.nbytes <= max(0, self.ram.max_bytes)
        landing = {block.key for landing in self._landing for block in landing.blocks}
        assert landing == self._landing_keys, "copies under way are not known"
        assert self._fetcher is not None or not self._fetched, "blocks are kept for nobody"

    def _is_kept(self, key: Key) -> bool:
        """Whether a block of the pool can go without a copy."""
        if key in self.ram or key in self._landing_keys:
            return True
        return not self.ram.max_bytes and self.disk is not None and key in self.disk

    def _look_ahead(self) -> None:
        """Copy blocks that are next to leave, while few are unused."""
        room = self._per_step - len(self._leaving)
        blocks = self._blocks
        if self._looked or blocks is None or not self._ahead or room < 1:
            return
        if blocks.num_unused < blocks.num_blocks // 4:
            ahead = blocks.prefixes.next_to_go(self._ahead)
            found = [published for published in ahead if not self._is_kept(published.key)]
            self._leaving += found[:room]
            self._looked = len(found) <= room

    def _begin(self, blocks: list[Published], *, to_disk: bool) -> None:
        copy = self._runner.read_blocks([published.block for published in blocks])
        self._landing.append(_Landing(blocks, copy, self._step, to_disk))
        self._landing_keys.update(published.key for published in blocks)

    def _land(self, everything: bool = False) -> None:
        """Take copies that the device is done with: those submitted before the steps in flight."""
        last = self._step - self._runner.steps_in_flight
        while self._landing and (everything or self._landing[0].step <= last):
            landing = self._landing.popleft()
            self._landing_keys.difference_update(published.key for published in landing.blocks)
            for published, data in zip(landing.blocks, landing.copy.take(), strict=True):
                if landing.to_disk:
                    self._write_behind(published.key, published.parent, data)
                else:
                    self._put_down(published.key, published.parent, data)

    def _put_down(self, key: Key, parent: Key | None, data: Bytes) -> None:
        if key in self.ram:
            return
        self._num_spilled += 1
        if not self.ram.max_bytes:
            self._num_lost += not self._write(key, parent, data)
            return
        # A row of the copy of many would keep all of them.
        for gone in self.ram.put(key, parent, data.copy()):
            self._num_lost += not self._write(*gone)

    def _write(self, key: Key, parent: Key | None, data: Bytes) -> bool:
        """Whether the block is on disk, or on its way."""
        self._unsaved.pop(key, None)
        if self.disk is None:
            return False
        return key in self.disk or self.disk.write(key, parent, data)

    def _write_behind(self, key: Key, parent: Key | None, data: Bytes) -> None:
        """Write a block unless the one before it has no room: it could not be found."""
        if self.disk is not None and (parent is None or parent in self.disk):
            self._write(key, parent, data)

    @property
    def _can_save(self) -> bool:
        return bool(self._unsaved) and self.disk is not None and self.disk.has_room_to_write

    def _save(self) -> None:
        """Begin to bring published blocks to the disk, from the pool or from main memory."""
        if self.disk is None or self._blocks is None:
            return
        from_pool: list[Published] = []
        for _ in range(self._per_step):
            if not self._can_save:
                break
            key, parent = self._unsaved.popitem(last=False)
            block, data = self._blocks.prefixes.get(key), self.ram.get(key)
            if key in self.disk or key in self._landing_keys:
                continue
            if data is not None:
                self._write_behind(key, parent, data)
            elif block is not None:
                from_pool.append(Published(block, key, parent))
        if from_pool:
            self._begin(from_pool, to_disk=True)
