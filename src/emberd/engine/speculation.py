"""Speculation: what a sequence is guessed to go on with, and whether guessing pays.

The last tokens are looked up in the sequence itself: where they stood before, it may go on as it did there. A guess
never changes what is sampled, so all that is decided here is time. It knows token ids and seconds; no blocks,
no runner.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emberd.protocol import SamplingParams, TokenIds

MIN_MATCH = 3
"""Tokens that must have stood before as they do now. Two match everywhere in prose, and lead nowhere."""

LONGEST_MIN_MATCH = 9
"""Each time that guesses did not pay, two tokens more must match, up to so many."""

MAX_MATCH = 16
"""Longer matches are not told apart; the latest of them counts."""

MAX_DRAFTED = 15
"""Guesses of one row. With its known token they fill the smallest step of several tokens that a GPU has."""

FIRST_DRAFTED, LEAST_DRAFTED = 8, 4
FIRST_REST, LONGEST_REST = 8, 64
"""Tokens that a sequence goes plainly on after guesses that did not pay: twice as many each time."""

FADE = 0.8
"""How much of the sums of `_Pace` is left when a step is added: about the last five steps count."""


def can_be_guessed(params: SamplingParams) -> bool:
    """Whether sequences with these parameters may have drafted tokens. Penalties of a place follow from the guesses
    before it, and log-probabilities are told of one place a sequence: the samplers do neither."""
    return params.num_logprobs is None and not params.has_penalties and params.max_drafted != 0


def look_up(tokens: NDArray[np.int32], count: int, least: int = MIN_MATCH) -> list[int]:
    """What followed where the last `least` tokens or more stood before: up to `count` tokens, [] without a match.

    Of several places the one with the longest match counts, and of equal ones the last.
    """
    end = len(tokens) - 1
    at = np.flatnonzero(tokens[:end] == tokens[end])
    for length in range(1, MAX_MATCH):
        longer = at[at >= length]
        longer = longer[tokens[longer - length] == tokens[end - length]]
        if not len(longer):
            if length < least:
                return []
            break
        at = longer
    first = int(at[-1]) + 1
    found: list[int] = tokens[first : first + count].tolist()
    period = end + 1 - first
    while len(found) < count:  # it repeats itself
        found.append(found[len(found) - period])
    return found


@dataclass(slots=True)
class _Pace:
    """Seconds a token, of late."""

    seconds: float = 0.0
    tokens: float = 0.0

    def add(self, seconds: float, tokens: int) -> None:
        self.seconds = FADE * self.seconds + seconds
        self.tokens = FADE * self.tokens + tokens

    def is_slower_than(self, other: _Pace) -> bool:
        return self.seconds * other.tokens > other.seconds * self.tokens


class Speculation:
    """Of one sequence. Its pace with guesses is measured against its pace without; while it is slower with them, it
    goes on without for a while, then tries again."""

    def __init__(self, most: int | None = None, expected: TokenIds = ()) -> None:
        """At most `most` guesses a step. They come from `expected` too."""
        self._most = MAX_DRAFTED if most is None else min(most, MAX_DRAFTED)
        self._tokens = array("i", expected)
        self._num_before = len(expected)  # of `_tokens`: those that are not the sequence's
        self._found: list[int] = []  # behind all of `_tokens`
        self._length = min(FIRST_DRAFTED, self._most)
        self._rest = self._next_rest = FIRST_REST
        self._least = MIN_MATCH
        self._plain, self._guessed = _Pace(), _Pace()
        self._waited = False  # its last token was waited for, to guess from it
        self._last: float | None = None  # when tokens came

    def wants(self, token_ids: TokenIds) -> bool:
        """Whether the next row is better run when its tokens are known. Told so, a sequence waits for them."""
        found = self._guess(token_ids)
        if self._waited and not found:
            self.pause()
        self._waited = bool(found)
        return self._waited

    def propose(self, token_ids: TokenIds, room: int) -> list[int]:
        """At most `room` guesses of what follows."""
        found = self._guess(token_ids)[: max(room, 0)]
        if self._waited and not found:
            self.pause()
        self._waited = False
        return found

    def took(self, now: float, num_tokens: int, num_drafted: int) -> None:
        """So many tokens came of one step that had so many guesses; `now` in seconds."""
        before, self._last = self._last, now
        if before is None:
            return
        elapsed = now - before
        if not num_drafted:
            self._plain.add(elapsed, num_tokens)
            self._rest = max(0, self._rest - num_tokens)
            return
        self._guessed.add(elapsed, num_tokens)
        if self._guessed.is_slower_than(self._plain):
            self.pause()
        else:
            self._next_rest, self._least = FIRST_REST, MIN_MATCH
        self._length = min(max(2 * num_tokens, LEAST_DRAFTED), self._most)

    def pause(self) -> None:
        """Guess nothing for a while, longer each time that guesses did not pay."""
        self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, LONGEST_REST)
        self._least = min(self._least + 2, LONGEST_MIN_MATCH)
        self._guessed = _Pace()

    def _guess(self, token_ids: TokenIds) -> list[int]:
        if self._rest:
            return []
        num_known = len(self._tokens) - self._num_before
        if len(token_ids) > num_known:
            self._tokens.extend(token_ids[num_known:])
            self._found = look_up(np.frombuffer(self._tokens, np.int32), self._length, self._least)
        return self._found
