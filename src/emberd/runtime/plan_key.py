"""Which plan a step runs: sizes in buckets, so that few plans serve every step.

Tokens and decode rows come in powers of two, so at most half of a plan's are idle. A step with prefill takes so much
longer than its decode rows that these come in two sizes only there. It decides sizes, and knows no kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..protocol import Batch
from .sampler import Mode
from .scratch import bucket

MIN_PREFILL_TOKENS = 16

FEW_ROWS = 4
"""The smaller of the two sizes of decode and sampled rows in a step with prefill."""


class PlanKey(NamedTuple):
    """What a plan can run: up to this many tokens, decode rows and sampled rows."""

    tokens: int
    decode_rows: int
    sampled: int
    prefill: bool
    mode: Mode
    splits: int = 1  # workgroups that may share a decode row's context
    near: bool = False  # many decode rows alone, of short contexts

    def holds(self, other: PlanKey) -> bool:
        """Whether every step of the other's can be run, if slower."""
        return (
            (self.prefill, self.mode) == (other.prefill, other.mode)
            and self.tokens >= other.tokens
            and self.decode_rows >= other.decode_rows
            and self.sampled >= other.sampled
            and self.near <= other.near
        )


@dataclass(frozen=True, slots=True)
class Buckets:
    """The keys of steps with at most `max_tokens` tokens and `max_rows` rows."""

    max_tokens: int
    max_rows: int
    decode_splits: Callable[[int, int], int]  # of decode rows and their longest context
    decode_near: Callable[..., bool]  # of the same, as rows= and context=

    def key(self, batch: Batch, num_sampled: int, mode: Mode) -> PlanKey:
        """The smallest bucket that holds such a step."""
        prefill = batch.num_tokens > batch.num_decode_rows
        rows = self._rows(batch.num_decode_rows, prefill)
        sampled = self._rows(num_sampled, prefill)
        splits, near = 1, False
        if rows:
            context = int(batch.context_lens[: batch.num_decode_rows].max())
            splits = self.decode_splits(rows, context)
            near = not prefill and self.decode_near(rows=rows, context=context)
        return PlanKey(
            tokens=self._tokens(batch.num_tokens, max(rows, sampled)) if prefill else rows,
            decode_rows=rows,
            sampled=1 if num_sampled == 1 and not (prefill and rows) else sampled,
            prefill=prefill,
            mode=mode,
            splits=splits,
            near=near,
        )

    def first(self, context_length: int) -> Iterator[PlanKey]:
        """Of one sequence: its prefill, and its decode at any length."""
        yield PlanKey(self.max_tokens, 0, 1, True, Mode.PLAIN)
        lengths = {min(length, context_length) for length in (1, 1024, 1 << 30)}
        for splits in {self.decode_splits(1, length) for length in lengths}:
            yield PlanKey(1, 1, 1, False, Mode.PLAIN, splits)

    def largest(self, like: PlanKey) -> PlanKey:
        """The one that holds all with prompts in them, or all without, of the same mode."""
        tokens, rows = self.max_tokens if like.prefill else self.max_rows, self.max_rows
        splits = self.decode_splits(rows, 1)
        return PlanKey(tokens, rows, rows, like.prefill, like.mode, splits)

    def holding_all(self) -> Iterator[PlanKey]:
        """Which hold every step without what only some requests ask for."""
        for prefill in (True, False):
            yield self.largest(PlanKey(1, 1, 1, prefill, Mode.PLAIN))

    def likely(self) -> Iterator[PlanKey]:
        """Of many sequences, without what only some requests ask for: decode of every size at a short context,
        then prefill, with and without decode rows, the largest first."""
        for rows in dict.fromkeys([*_powers(self.max_rows), self.max_rows]):
            splits = self.decode_splits(rows, 1)
            if self.decode_near(rows=rows, context=1):
                yield PlanKey(rows, rows, rows, False, Mode.PLAIN, splits, near=True)
            yield PlanKey(rows, rows, rows, False, Mode.PLAIN, splits)
        few = min(FEW_ROWS, self.max_rows)
        pairs = [(0, 1), (0, 0), (few, few), (self.max_rows, self.max_rows)]
        pairs += [(0, few), (0, self.max_rows), (few, self.max_rows)]
        for tokens in (self.max_tokens, *reversed(_powers(self.max_tokens - 1))):
            for rows, sampled in dict.fromkeys(pairs):
                if tokens >= MIN_PREFILL_TOKENS and max(rows, sampled) <= tokens:
                    splits = self.decode_splits(rows, 1) if rows else 1
                    yield PlanKey(tokens, rows, sampled, True, Mode.PLAIN, splits)

    def _tokens(self, count: int, rows: int) -> int:
        return min(bucket(max(count, rows), MIN_PREFILL_TOKENS), self.max_tokens)

    def _rows(self, count: int, prefill: bool) -> int:
        if prefill and count:
            return min(FEW_ROWS if count <= FEW_ROWS else self.max_rows, self.max_rows)
        return min(bucket(count), self.max_rows)


def _powers(most: int) -> list[int]:
    """1, 2, 4 and so on up to `most`."""
    return [1 << n for n in range(most.bit_length())]
