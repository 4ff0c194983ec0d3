"""A draft model: a smaller model of the same tokens, which runs ahead of sequences to guess how they go on.

It has a runner, blocks and places of its own, and keeps the KV of the sequences that it follows from step to step.
What it guesses changes no token. It knows token ids; whether guessing pays is speculation.py's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from emberd.protocol import GenerateRequest, Runner

from .batch import BatchBuilder
from .blocks import BlockManager
from .publishing import publish
from .sequence import Row, Sequence
from .speculation import FIRST_REST

REACH = 32
"""Tokens that a sequence may be ahead, to be guessed at once: they are run with the first guess."""

CATCH_UP = 128
"""Tokens that are run in one schedule for sequences that are further ahead; all replies wait for them."""


@dataclass(slots=True)
class _Follower:
    """A sequence as the draft model has it: its known tokens, of which some are computed."""

    own: Sequence
    fed: list[int] = field(default_factory=list)  # guesses behind its tokens that were run too

    def meet(self, token_ids: list[int]) -> list[int]:
        """Take what the sequence went on with, which is given. Guesses that were right are computed already; what the
        others wrote is written over."""
        new = token_ids[len(self.own.token_ids) :]
        right = 0
        while right < min(len(self.fed), len(new) - 1) and self.fed[right] == new[right]:
            right += 1
        self.own.num_computed_tokens += right
        self.own.token_ids += new
        if new:
            self.fed = []
        return new

    @property
    def num_uncomputed(self) -> int:
        return len(self.own.token_ids) - self.own.num_computed_tokens


class DraftModel:
    """Over one runner, which it does not own. Between two calls nothing of it is in flight."""

    def __init__(self, runner: Runner, num_tokens: int) -> None:
        """Token ids below `num_tokens` mean the same to both models."""
        self._runner, self._num_tokens = runner, num_tokens
        pool_tokens = runner.num_blocks * runner.block_size
        self._context_length = min(runner.info().context_length, pool_tokens)
        self.blocks = BlockManager(runner.num_blocks, runner.block_size)
        self._batches = BatchBuilder(
            runner.max_sequences, self.blocks.blocks_for(self._context_length), runner.block_size
        )
        num_places = min(runner.max_sequences, runner.max_batch_tokens)
        self._free_indices = list(range(num_places - 1, -1, -1))
        self._reach = min(REACH, runner.max_batch_tokens)
        self._followers: dict[str, _Follower] = {}  # the one used longest ago first
        self.first_rest = FIRST_REST
        """Tokens behind which a new sequence is first guessed: few while guesses pay, many while they do not."""
        self._wanting: set[str] = set()  # by the last `follow`: these are not dropped for others
        self._in_flight: deque[list[Row]] = deque()

    def follow(self, sequences: Iterable[Sequence]) -> None:
        """Run what those that want guesses are ahead by, a bounded part of it in all, and tell each whether it is near.
        One that would have half of its coming tokens before it is reached is followed no more."""
        wanting = [one for one in sequences if one.speculation and one.speculation.wants_draft]
        self._wanting = {one.request_id for one in wanting}
        most = budget = min(CATCH_UP, self._runner.max_batch_tokens)
        rows = []
        for sequence in wanting:
            assert sequence.speculation is not None
            follower = self._follower_of(sequence)
            if follower is None:
                continue
            publish(follower.own, self.blocks)
            ahead = follower.num_uncomputed - 1
            if ahead < self._reach:
                sequence.speculation.follow(True)
                continue
            if 2 * -(-ahead // most) > sequence.max_length - len(sequence.token_ids):
                self.forget(sequence)
                sequence.speculation.give_up_draft()
                continue
            sequence.speculation.follow(False)
            if count := min(ahead, budget):
                rows.append(self._row(follower, count, sample=False))
                budget -= count
        if rows:
            self._submit(rows)
            self._collect_all()

    def guess(self, asked: Seq[tuple[Sequence, int]]) -> list[list[int]]:
        """What each sequence may go on with: as many tokens as are asked for, or fewer. `follow` was told of them."""
        wanted: dict[str, tuple[_Follower, int]] = {}
        for sequence, count in asked:
            follower = self._followers.get(sequence.request_id)
            if follower is None:
                continue
            count = min(count, self._context_length - len(follower.own.token_ids))
            num_tokens = len(follower.own.token_ids) + count - 1
            if count > 0 and self._make_room(follower.own.block_table, num_tokens):
                wanted[sequence.request_id] = follower, count
        self._run(list(wanted.values()))
        found = []
        for sequence, _ in asked:
            follower, _ = wanted.get(sequence.request_id, (None, 0))
            found.append([] if follower is None else self._take_guesses(follower, sequence))
        return found

    def forget(self, sequence: Sequence) -> None:
        """The sequence runs no more. What was kept for it is free, and can be found by its prefix until it is used."""
        if sequence.speculation is not None and sequence.speculation.may_draft:
            self._learn(sequence.speculation.draft_rest)
        follower = self._followers.pop(sequence.request_id, None)
        if follower is not None:
            assert follower.own.index is not None
            follower.meet(sequence.token_ids)
            publish(follower.own, self.blocks)
            self._free_indices.append(follower.own.index)
            self.blocks.release(follower.own.block_table)

    def _learn(self, rest: int | None) -> None:
        """From a sequence that runs no more. Where it was not guessed at all, the next ones are a little sooner."""
        self.first_rest = max(FIRST_REST, self.first_rest // 2) if rest is None else rest

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        """Recount blocks and places; AssertionError tells what is off."""
        owns = [follower.own for follower in self._followers.values()]
        self.blocks.check_integrity([own.block_table for own in owns])
        assert self._followers.keys() <= {one.request_id for one in running}
        indices = [*self._free_indices, *(own.index for own in owns)]
        assert len(set(indices)) == len(indices), "a place is used twice"

    def _follower_of(self, sequence: Sequence) -> _Follower | None:
        """Its follower, which knows all its tokens and has blocks for them; None where that cannot be now."""
        assert sequence.speculation is not None
        follower = self._followers.pop(sequence.request_id, None)
        new = sequence.token_ids if follower is None else follower.meet(sequence.token_ids)
        if follower is None and self._has_place():
            follower = self._begin(sequence)
        if follower is not None:
            self._followers[sequence.request_id] = follower
        num_tokens = len(sequence.token_ids)
        if num_tokens >= self._context_length or max(new, default=0) >= self._num_tokens:
            sequence.speculation.give_up_draft()
        elif follower is not None and self._make_room(follower.own.block_table, num_tokens):
            return follower
        else:
            sequence.speculation.pause_draft()
        self.forget(sequence)
        return None

    def _begin(self, sequence: Sequence) -> _Follower:
        bias = [(one, more) for one, more in sequence.params.logit_bias if one < self._num_tokens]
        params = replace(sequence.params, grammar=None, expected=(), logit_bias=tuple(bias))
        request = GenerateRequest(sequence.request_id, tuple(sequence.token_ids), params)
        own = Sequence(request, self._context_length)
        prefix: list[int] = []
        if sequence.keys is not None:
            own.keys = sequence.keys.like(own.token_ids, self.blocks.block_size)
            num_full = (len(own.token_ids) - 1) // self.blocks.block_size
            prefix = self.blocks.find(own.keys.first(num_full))
            self.blocks.adopt(own.block_table, prefix)
        own.start(self._free_indices.pop(), len(prefix), self.blocks.block_size)
        return _Follower(own)

    def _has_place(self) -> bool:
        if not self._free_indices:
            self._drop_one()
        return bool(self._free_indices)

    def _drop_one(self) -> bool:
        """Let the one go that was used longest ago and wants no guesses now."""
        for name, follower in self._followers.items():
            if name not in self._wanting:
                self.forget(follower.own)
                return True
        return False

    def _make_room(self, block_table: list[int], num_tokens: int) -> bool:
        """Grow a table to so many tokens, if need be at the cost of those that want no guesses now."""
        missing = self.blocks.num_missing(block_table, num_tokens)
        while missing > self.blocks.num_free:
            if not self._drop_one():
                return False
        self.blocks.grow(block_table, num_tokens)
        return True

    def _run(self, wanted: list[tuple[_Follower, int]]) -> None:
        """A step for each guess, of all sequences together; the first runs what is not computed yet."""
        rows: list[Row] = []
        room = self._runner.max_batch_tokens
        for follower, _ in wanted:
            count = follower.num_uncomputed
            if count > room:
                self._submit(rows)
                rows, room = [], self._runner.max_batch_tokens
            rows.append(self._row(follower, count, sample=True))
            room -= count
        if rows:
            self._submit(rows)
        for place in range(1, max((count for _, count in wanted), default=0)):
            self._submit(
                [self._row(follower, 1, sample=True) for follower, count in wanted if count > place]
            )
        self._collect_all()

    def _row(self, follower: _Follower, count: int, sample: bool) -> Row:
        own = follower.own
        row = Row(own, own.num_computed_tokens, count, sample)
        own.num_computed_tokens += count
        return row

    def _submit(self, rows: list[Row]) -> None:
        if len(self._in_flight) == self._runner.steps_in_flight:
            self._collect()
        rows.sort(key=lambda row: row.count > 1)
        self._runner.submit(self._batches.build(rows))
        self._in_flight.append(rows)

    def _collect(self) -> None:
        rows = self._in_flight.popleft()
        sampled = self._runner.collect().token_ids.tolist()
        for row, token_id in zip(rows, sampled, strict=True):
            if row.sample:
                row.sequence.token_ids.append(token_id)

    def _collect_all(self) -> None:
        while self._in_flight:
            self._collect()

    def _take_guesses(self, follower: _Follower, sequence: Sequence) -> list[int]:
        """The tokens behind those that are known, which are its own no more."""
        own, num_known = follower.own, len(sequence.token_ids)
        guesses = own.token_ids[num_known:]
        del own.token_ids[num_known:]
        own.num_computed_tokens = num_known
        follower.fed = guesses[:-1]
        for place, token_id in enumerate(guesses):
            if not 0 <= token_id < self._num_tokens:  # below 0: its logits were not finite
                return guesses[:place]
        return guesses
