"""Who runs in the next step: decode first, then prefill chunks, within a token budget.

It hands out blocks and places and returns rows; it never touches the runner and sees no token values.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from .blocks import BlockManager
from .prefix import Key
from .sequence import Row, Sequence
from .tiers import Tiers

RESERVE_BLOCKS = 2
"""Blocks kept back for each running sequence at admission, so that it can grow before it is in need."""


class Scheduler:
    """Queues of waiting and running sequences, both in order of arrival.

    Admission is first come, first served, but a sequence lets others pass while a running one computes
    a prefix that it can use. Who is preempted is the last one admitted, and returns to the front. The first
    one admitted is preempted by nobody and may take any block of the others, so it always gets on.
    """

    def __init__(
        self,
        blocks: BlockManager,
        max_sequences: int,
        max_batch_tokens: int,
        tiers: Tiers | None = None,
    ) -> None:
        self.blocks, self._tiers = blocks, tiers
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._max_batch_tokens = max_batch_tokens
        # Each running sequence must find room for its decode token in every step.
        num_places = min(max_sequences, max_batch_tokens)
        self._free_indices = list(range(num_places - 1, -1, -1))

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence that ended. Its blocks and place are free at once: steps in flight run
        before any later step that could reuse them."""
        if sequence.index is None:
            self.waiting.remove(sequence)
            if self._tiers is not None:
                self._tiers.forget(sequence)
        else:
            self.running.remove(sequence)
            self._publish(sequence)
            self._release(sequence)

    def schedule(self) -> list[Row]:
        """The rows of the next step, those of one token first; empty when nothing can run now."""
        for sequence in self.running:
            self._publish(sequence)
            self._free_behind(sequence)
        rows = self._decode_rows()
        self._admit()
        rows += self._prefill_rows(self._max_batch_tokens - len(rows))
        rows.sort(key=lambda row: row.count > 1)
        return rows

    def _decode_rows(self) -> list[Row]:
        rows = []
        for sequence in list(self.running):
            if sequence.index is None or sequence.num_uncomputed_tokens != 1:
                continue  # preempted just now; prefilling; or waiting for its last token
            if self._make_room(sequence):
                self.blocks.grow(sequence.block_table, sequence.num_tokens)
                rows.append(sequence.take(1))
        return rows

    def _make_room(self, sequence: Sequence) -> bool:
        """Preempt the newest sequences until `sequence` can grow; False if it had to go itself."""
        while self.blocks.num_missing(sequence.block_table, sequence.num_tokens) > (
            self.blocks.num_free
        ):
            victim = self.running.pop()
            self._release(victim)
            victim.num_preemptions += 1
            self.waiting.appendleft(victim)
            if victim is sequence:
                return False
        return True

    def _admit(self) -> None:
        for sequence in list(islice(self.waiting, len(self._free_indices))):
            if sequence.num_pending_tokens:
                return  # preempted with a step in flight; its history is known once that is collected
            prefix = self._find_prefix(sequence)
            if self._is_being_computed(sequence, len(prefix)):
                continue
            below = self._find_below(sequence, len(prefix))
            if below is None:
                continue
            needed = self.blocks.blocks_for(sequence.num_tokens) - len(prefix)
            needed += sum(map(self.blocks.prefixes.is_idle, prefix))
            if self.running:
                needed += sum(map(self._reserve, [*self.running, sequence]))
            if needed > self.blocks.num_free:
                return
            self.waiting.remove(sequence)
            self.blocks.adopt(sequence.block_table, prefix)
            self.blocks.grow(sequence.block_table, sequence.num_tokens)
            num_reused = len(prefix) + len(below)
            if self._tiers is not None:
                self._tiers.promote(sequence, below, sequence.block_table[len(prefix) : num_reused])
            sequence.start(self._free_indices.pop(), num_reused, self.blocks.block_size)
            sequence.num_published_blocks = len(prefix)
            self.running.append(sequence)
            self._publish(sequence)

    def _publish(self, sequence: Sequence) -> None:
        """Let others find the full blocks that submitted steps write: whatever reads them is submitted later."""
        if sequence.keys is None:
            return
        num_written = min(sequence.num_computed_tokens, len(sequence.token_ids))
        num_full = num_written // self.blocks.block_size
        if num_full == sequence.num_published_blocks:
            return
        keys = sequence.keys.first(num_full)
        for place in range(sequence.num_published_blocks, num_full):
            before = keys[place - 1] if place else None
            if self.blocks.publish(sequence.block_table, place, keys[place], before):
                sequence.num_told_blocks = min(sequence.num_told_blocks, place)
        sequence.num_published_blocks = num_full

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

    def _is_being_computed(self, sequence: Sequence, place: int) -> bool:
        """Whether a running sequence is about to publish the block that a waiting one needs at `place`."""
        size = self.blocks.block_size
        if sequence.keys is None or place >= (len(sequence.token_ids) - 1) // size:
            return False
        key = sequence.keys.first(place + 1)[place]
        return any(
            other.is_prefilling
            and other.keys is not None
            and other.num_published_blocks <= place < len(other.token_ids) // size
            and other.keys.first(place + 1)[place] == key
            for other in self.running
        )

    def _reserve(self, sequence: Sequence) -> int:
        """Blocks that a sequence is soon to ask for. The KV of its last token is never written."""
        last = self.blocks.blocks_for(sequence.max_length - 1)
        return max(0, min(RESERVE_BLOCKS, last - self.blocks.blocks_for(sequence.num_tokens)))

    def _prefill_rows(self, budget: int) -> list[Row]:
        prefilling = [sequence for sequence in self.running if sequence.is_prefilling]
        shares = split_budget(budget, [s.num_uncomputed_tokens for s in prefilling])
        return [s.take(share) for s, share in zip(prefilling, shares, strict=True) if share]

    def _release(self, sequence: Sequence) -> None:
        assert sequence.index is not None
        self._free_indices.append(sequence.index)
        sequence.index = None
        sequence.num_computed_tokens = sequence.num_published_blocks = 0
        self.blocks.release(sequence.block_table)


def split_budget(budget: int, remaining: list[int]) -> list[int]:
    """Tokens each prefilling sequence gets of a step's `budget`; `remaining` is oldest first.

    The oldest has half for certain, so a stream of short prompts cannot starve it. The rest goes to
    the others, shortest remainder first, so a short prompt need not wait for a long one; and what
    they leave goes back to the oldest. Every sequence gets its turn, as each becomes the oldest.
    """
    if not remaining:
        return []
    shares = [0] * len(remaining)
    shares[0] = min(remaining[0], (budget + 1) // 2)
    left = budget - shares[0]
    for place in sorted(range(1, len(remaining)), key=remaining.__getitem__):
        shares[place] = min(remaining[place], left)
        left -= shares[place]
    shares[0] += min(remaining[0] - shares[0], left)
    return shares
