"""Who runs in the next step: decode first, then prefill chunks, within a token budget.

It hands out blocks and places and returns rows; it never touches the runner and sees no token values.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from itertools import count, islice

from .blocks import BlockManager
from .draft_model import DraftModel
from .drafts import with_drafts
from .pace import Pace
from .paths import Paths
from .prefix import Key
from .priority import AGING_CHECKS, AGING_SECONDS, Rank, Standing
from .publishing import publish
from .sequence import Row, Sequence
from .steps import Mix
from .tiers import Tiers

_RECORDS = 2
"""How many records of prefixes are kept for each block (see paths.py)."""

RESERVE_BLOCKS = 2
"""Blocks kept back for each running sequence at admission, so that it can grow before it is in need."""


class Scheduler:
    """Waiting and running sequences, both by rank: class, then arrival (see priority.py).

    Admission is by rank, but a sequence lets others pass while a running one computes a prefix that it can use.
    Who is preempted is the last by rank: where a running one needs a block, and where one of a better class
    waits. So the first of all by rank is preempted by nobody and may take any block of the others: it
    always gets on. Who gets nothing ages, so each becomes the first.
    """

    def __init__(
        self,
        blocks: BlockManager,
        max_sequences: int,
        max_batch_tokens: int,
        tiers: Tiers | None = None,
        clock: Callable[[], float] = time.perf_counter,
        pace: Pace | None = None,
        draft: DraftModel | None = None,
    ) -> None:
        self._pace, self._draft = pace, draft
        self.mix = Mix(0, 0)  # of the step that was scheduled last
        self.blocks, self._tiers = blocks, tiers
        self._paths = Paths(blocks.prefixes, _RECORDS * blocks.num_blocks)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._waiter_of: dict[
            Sequence, Sequence
        ] = {}  # of running ones that stand no worse than it
        self._clock = clock
        self._arrivals = count()
        self._now = self._next_aging = 0.0
        self._max_batch_tokens = max_batch_tokens
        # Each running sequence must find room for its decode token in every step.
        num_places = min(max_sequences, max_batch_tokens)
        self._free_indices = list(range(num_places - 1, -1, -1))

    def add(self, sequence: Sequence) -> None:
        sequence.standing = Standing(sequence.priority, next(self._arrivals), self._clock())
        insort(self.waiting, sequence, key=_rank)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence that ended. Its blocks and place are free at once: steps in flight run
        before any later step that could reuse them."""
        for computer, waiter in list(self._waiter_of.items()):
            if sequence in (computer, waiter):
                self._stand_alone(computer)
        if sequence.index is None:
            self.waiting.remove(sequence)
            if self._tiers is not None:
                self._tiers.forget(sequence)
        else:
            self.running.remove(sequence)
            self._publish(sequence)
            if self._tiers is not None:
                self._tiers.forget(sequence)
            if sequence.keys is not None:
                place = sequence.num_published_blocks
                self._paths.note_rest(sequence.keys, place, sequence.request_id)
            self._release(sequence)

    def schedule(self) -> list[Row]:
        """The rows of the next step, those of one token first; empty when nothing can run now."""
        if self._tiers is not None:
            replies = (one.num_computed_tokens >= one.num_prompt_tokens for one in self.running)
            self._tiers.let_arrive(any(replies))
        for sequence in self.running:
            self._publish(sequence)
            self._free_behind(sequence)
        self._follow_no_longer()
        self._age()
        self._displace()
        if self._draft is not None:
            self._draft.follow(self.running)
        rows = self._decode_rows()
        self._admit()
        num_running = len(self.running)
        rows = with_drafts(rows, self.blocks, len(self._free_indices), num_running, self._draft)
        num_decode = sum(row.count for row in rows)
        prompts = self._prefill_rows(self._prompt_budget(rows, self._max_batch_tokens - num_decode))
        num_last = sum(row.start < row.sequence.num_prompt_tokens for row in rows)  # of prompts
        num_prompt_tokens = num_last + sum(row.count for row in prompts)
        self.mix = Mix(num_decode - num_last, num_prompt_tokens)
        rows += prompts
        rows.sort(key=lambda row: row.count > 1)
        return rows

    def _prompt_budget(self, rows: list[Row], most: int) -> int:
        """Prompt tokens beside `rows` of replies. Replies of a worse class than a prompt's are not spared."""
        if self._pace is None or not rows:
            return most
        prefilling = [one for one in self.running if one.is_prefilling and not self._awaits(one)]
        if not prefilling:
            return 0
        best = min(_rank(row.sequence)[0] for row in rows)
        better = sum(one.num_uncomputed_tokens for one in prefilling if _rank(one)[0] < best)
        num_decode = sum(row.count for row in rows)
        num_prompts = sum(_rank(one)[0] == best for one in prefilling)
        num_prompts += bisect_right(self.waiting, best, key=_class) - bisect_left(
            self.waiting, best, key=_class
        )
        num_replies = sum(_rank(row.sequence)[0] == best for row in rows)
        num_waiting = sum(one.num_uncomputed_tokens for one in prefilling)
        equals = [one for one in prefilling if _rank(one)[0] <= best] or prefilling
        longest = max(one.num_tokens - (one.num_cached_tokens or 0) for one in equals)
        budget = self._pace.budget(num_decode, num_prompts / num_replies, num_waiting, longest)
        return min(most, max(better, budget))

    def _age(self) -> None:
        """Let those who get nothing stand better in time."""
        self._now = now = self._clock()
        if now >= self._next_aging:
            self._next_aging = now + AGING_SECONDS / AGING_CHECKS
            if any([one.standing.age(now) for one in (*self.waiting, *self.running)]):
                self.waiting.sort(key=_rank)
                self.running.sort(key=_rank)

    def _displace(self) -> None:
        """Preempt sequences of worse classes than the first that waits, where that makes room for it. Having
        waited for long is no reason to push out an equal."""
        if not self.waiting or not self.running:
            return
        first = self.waiting[0]
        worse = [one for one in self.running if _yields(one, first)]
        if not worse or first.num_pending_tokens:
            return
        others = [one for one in self.running if not _yields(one, first)]
        prefix = self._find_prefix(first)
        if (computer := self._computer_of(first, len(prefix))) is not None:
            self._follow(computer, first)
            return
        if self._find_below(first, len(prefix)) is None:
            return
        missing = self._needed(first, prefix, others) - self.blocks.num_free
        tables = [one.block_table for one in worse]
        if missing > sum(map(len, tables)) or missing > self.blocks.num_gained(tables, prefix):
            return
        while worse and not (self._free_indices and self._fits(first)):
            self.preempt(worse.pop())

    def preempt(self, victim: Sequence) -> Sequence:
        """Put a running sequence back to those that wait; its blocks are free at once, as in `remove`."""
        self._stand_alone(victim)
        self.running.remove(victim)
        self._publish(victim)
        if self._tiers is not None:
            self._tiers.forget(victim)
        self._release(victim)
        victim.num_preemptions += 1
        victim.standing.starve(self._now)
        insort(self.waiting, victim, key=_rank)
        return victim

    def _decode_rows(self) -> list[Row]:
        rows = []
        for sequence in list(self.running):
            if sequence.index is None or sequence.num_uncomputed_tokens != 1:
                continue  # preempted just now; prefilling; or waiting for its last token
            if self._awaits(sequence):
                continue
            if self._make_room(sequence):
                self.blocks.grow(sequence.block_table, sequence.num_tokens)
                rows.append(sequence.take(1))
                sequence.standing.serve(self._now)
        return rows

    def _make_room(self, sequence: Sequence) -> bool:
        """Preempt the last by rank until `sequence` can grow; False if it had to go itself."""
        while self.blocks.num_missing(sequence.block_table, sequence.num_tokens) > (
            self.blocks.num_free
        ):
            if self.preempt(self.running[-1]) is sequence:
                return False
        return True

    def _admit(self) -> None:
        for sequence in list(islice(self.waiting, len(self._free_indices))):
            if sequence.num_pending_tokens:
                return  # preempted with a step in flight; its history is known once that is collected
            prefix = self._find_prefix(sequence)
            if (computer := self._computer_of(sequence, len(prefix))) is not None:
                self._follow(computer, sequence)
                continue
            below = self._find_below(sequence, len(prefix))
            if below is None:
                continue
            if self._needed(sequence, prefix, self.running) > self.blocks.num_free:
                return
            self.waiting.remove(sequence)
            self.blocks.adopt(sequence.block_table, prefix)
            self.blocks.grow(sequence.block_table, sequence.num_tokens)
            num_reused = len(prefix) + len(below)
            if sequence.keys is not None and sequence.num_cached_tokens is None:
                sequence.finding = self._paths.finding(
                    sequence.keys, sequence.num_prompt_tokens, num_reused
                )
            if self._tiers is not None:
                self._tiers.promote(sequence, below, sequence.block_table[len(prefix) : num_reused])
            sequence.start(self._free_indices.pop(), num_reused, self.blocks.block_size)
            sequence.num_published_blocks = len(prefix)
            insort(self.running, sequence, key=_rank)
            self._publish(sequence)

    def _fits(self, sequence: Sequence) -> bool:
        prefix = self._find_prefix(sequence)
        return self._needed(sequence, prefix, self.running) <= self.blocks.num_free

    def _needed(self, sequence: Sequence, prefix: list[int], others: list[Sequence]) -> int:
        """Blocks that must be free to admit a sequence that begins with `prefix`, while `others` run."""
        needed = self.blocks.blocks_for(sequence.num_tokens) - len(prefix)
        needed += sum(map(self.blocks.prefixes.is_idle, prefix))
        if others:
            needed += sum(map(self._reserve, [*others, sequence]))
        return needed

    def _awaits(self, sequence: Sequence) -> bool:
        """Whether blocks of its beginning are still on their way from a tier."""
        return self._tiers is not None and self._tiers.awaits(sequence)

    def _arrives(self, sequence: Sequence) -> bool:
        """Whether such blocks are not written yet, if they are by the next step."""
        return self._tiers is not None and self._tiers.arrives(sequence)

    def _publish(self, sequence: Sequence) -> None:
        if self._arrives(sequence):
            return  # preempted before the next step, it would leave others keys of what was never written
        for place in publish(sequence, self.blocks):
            assert sequence.keys is not None
            self._paths.note(sequence.keys, place, sequence.request_id)

    def _free_behind(self, sequence: Sequence) -> None:
        """Give up blocks behind the window of all tokens that are still to run, be they drafts that were dropped."""
        position = min(sequence.num_computed_tokens, len(sequence.token_ids) - 1)
        freed = self.blocks.free_behind(sequence.block_table, position)
        if freed:
            sequence.num_told_blocks = min(sequence.num_told_blocks, freed.start)

    def _find_prefix(self, sequence: Sequence) -> list[int]:
        """The published blocks that a sequence can begin with. Its last token is run in any case: what comes
        next follows from it."""
        if sequence.keys is None:
            return []
        num_full = (len(sequence.token_ids) - 1) // self.blocks.block_size
        return self.blocks.find(sequence.keys.first(num_full))

    def _find_below(self, sequence: Sequence, place: int) -> list[Key] | None:
        """The blocks from `place` on that come from the tiers; None while they are read."""
        if self._tiers is None or sequence.keys is None:
            return []
        num_full = (len(sequence.token_ids) - 1) // self.blocks.block_size
        return self._tiers.ready(sequence, sequence.keys.first(num_full)[place:])

    def _computer_of(self, sequence: Sequence, place: int) -> Sequence | None:
        """The running sequence that is about to publish the block that a waiting one needs at `place`."""
        size = self.blocks.block_size
        if sequence.keys is None or place >= (len(sequence.token_ids) - 1) // size:
            return None
        key = sequence.keys.first(place + 1)[place]
        for other in self.running:
            if (
                (other.is_prefilling or self._arrives(other))
                and other.keys is not None
                and other.num_published_blocks <= place < len(other.token_ids) // size
                and other.keys.first(place + 1)[place] == key
            ):
                return other
        return None

    def _follow(self, computer: Sequence, waiter: Sequence) -> None:
        """Let a running sequence stand no worse than one that waits for what it computes."""
        if computer.standing.follow(waiter.standing):
            self._waiter_of[computer] = waiter
            self.running.sort(key=_rank)

    def _follow_no_longer(self) -> None:
        """Take lent ranks back from those that nobody waits for any more."""
        for computer, waiter in list(self._waiter_of.items()):
            place = len(self._find_prefix(waiter)) if waiter.index is None else 0
            if waiter.index is not None or self._computer_of(waiter, place) is not computer:
                self._stand_alone(computer)

    def _stand_alone(self, computer: Sequence) -> None:
        if self._waiter_of.pop(computer, None) is not None and computer.standing.stand_alone():
            self.running.sort(key=_rank)

    def _reserve(self, sequence: Sequence) -> int:
        """Blocks that a sequence is soon to ask for. The KV of its last token is never written."""
        last = self.blocks.blocks_for(sequence.max_length - 1)
        return max(0, min(RESERVE_BLOCKS, last - self.blocks.blocks_for(sequence.num_tokens)))

    def _prefill_rows(self, budget: int) -> list[Row]:
        prefilling = [one for one in self.running if one.is_prefilling and not self._awaits(one)]
        shares = split_budget(
            budget, [s.num_uncomputed_tokens for s in prefilling], [_rank(s)[0] for s in prefilling]
        )
        for sequence, share in zip(prefilling, shares, strict=True):
            if share:
                sequence.standing.serve(self._now)
            else:
                sequence.standing.starve(self._now)
        return [s.take(share) for s, share in zip(prefilling, shares, strict=True) if share]

    def _release(self, sequence: Sequence) -> None:
        assert sequence.index is not None
        self._free_indices.append(sequence.index)
        sequence.index = None
        sequence.num_computed_tokens = sequence.num_published_blocks = 0
        self.blocks.release(sequence.block_table)
        if self._draft is not None:
            self._draft.forget(sequence)


def _rank(sequence: Sequence) -> Rank:
    return sequence.standing.rank


def _class(sequence: Sequence) -> int:
    return sequence.standing.rank[0]


def _yields(running: Sequence, waiting: Sequence) -> bool:
    """Whether one is of a worse class than another, as they stand and as they came."""
    return _class(running) > _class(waiting) and running.priority > waiting.priority


def split_budget(budget: int, remaining: list[int], classes: list[int]) -> list[int]:
    """Tokens each prefilling sequence gets of a step's `budget`; sequences come by rank.

    The first has half for certain, so a stream of short prompts cannot starve it. The rest goes to
    the others, better classes before worse ones and in a class the shortest remainder first, so a short prompt
    need not wait for a long one; and what they leave goes back to the first. Every sequence gets its turn,
    as each becomes the first.
    """
    if not remaining:
        return []
    shares = [0] * len(remaining)
    shares[0] = min(remaining[0], (budget + 1) // 2)
    left = budget - shares[0]
    order = sorted(range(1, len(remaining)), key=lambda place: (classes[place], remaining[place]))
    for place in order:
        shares[place] = min(remaining[place], left)
        left -= shares[place]
    shares[0] += min(remaining[0] - shares[0], left)
    return shares
