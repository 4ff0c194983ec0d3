"""Speculation: what a sequence is guessed to go on with, and whether guessing pays.

The last tokens are looked up in the sequence itself: where they stood before, it may go on as it did there. Where
they did not, a draft model is asked, if there is one (draft_model.py). A guess never changes what is sampled, so all
that is decided here is time. It knows token ids and seconds; no blocks, no runner.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

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

FIRST_ASKED = 5
"""Guesses that a draft model is asked for at first. Each costs a step of its own there."""

LONGEST_DRAFT_REST = 256
"""A draft model that is tried again has to be run over all that came meanwhile."""

ASKED_TOKENS, PLAIN_TOKENS = 256, 4
"""After so many tokens with a draft model's guesses, so many come plainly: with a draft model nearly every step has
guesses, and what it is without them would not be known any more."""

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


@dataclass(slots=True)
class _Source:
    """Where guesses come from, and how they do: while they do not pay, the source rests."""

    length: int  # guesses wanted of it
    longest_rest: int = LONGEST_REST
    rest: int = FIRST_REST
    next_rest: int = FIRST_REST
    pace: _Pace = field(default_factory=_Pace)

    def took(self, elapsed: float, num_tokens: int, plain: _Pace) -> bool:
        """Whether the tokens of a step with its guesses came no slower than plain ones do."""
        self.pace.add(elapsed, num_tokens)
        if self.pace.is_slower_than(plain):
            return False
        self.next_rest = FIRST_REST
        return True

    def passed(self, num_tokens: int) -> None:
        """So many tokens came without it."""
        self.rest = max(0, self.rest - num_tokens)

    def pause(self) -> None:
        """Guess nothing for a while, longer each time that guesses did not pay."""
        self.rest, self.next_rest = self.next_rest, min(2 * self.next_rest, self.longest_rest)
        self.pace = _Pace()


class Speculation:
    """Of one sequence. Its pace with guesses of a source is measured against its pace without; while it is slower with
    them, it goes on without for a while, then tries again."""

    def __init__(
        self,
        most: int | None = None,
        expected: TokenIds = (),
        *,
        looks_up: bool = True,
        drafts: bool = False,
        draft_rest: int = FIRST_REST,
    ) -> None:
        """At most `most` guesses a step. `looks_up`: they come from the sequence, and from `expected`; `drafts`: from a
        draft model where those have none, behind the first `draft_rest` tokens."""
        self._most = MAX_DRAFTED if most is None else min(most, MAX_DRAFTED)
        self._tokens = array("i", expected)
        self._num_before = len(expected)  # of `_tokens`: those that are not the sequence's
        self._found: list[int] = []  # behind all of `_tokens`
        self._least = MIN_MATCH
        self._text = _Source(min(FIRST_DRAFTED, self._most)) if looks_up else None
        self._draft: _Source | None = None
        if drafts:
            length = min(FIRST_ASKED, self._most)
            self._draft = _Source(length, LONGEST_DRAFT_REST, draft_rest, draft_rest)
        self._was_asked = False
        self._used: _Source | None = None  # of the row that is run
        self._num_asked = (
            0  # tokens that came with the draft model's guesses, since some came plainly
        )
        self._plain = _Pace()
        self._waited = False  # its last token was waited for, to guess from it
        self._last: float | None = None  # when tokens came
        self._is_followed = False  # the draft model has run its tokens but for the last ones
        self._was_delayed = False  # the draft model was run over its tokens since some came

    def wants(self, token_ids: TokenIds) -> bool:
        """Whether the next row is better run when its tokens are known. Told so, a sequence waits for them."""
        found = self._guess(token_ids)
        if self._waited and not found:
            self._pause_text()
        self._waited = bool(found)
        return self._waited or (self.wants_draft and self._is_followed)

    def propose(self, token_ids: TokenIds, room: int) -> list[int]:
        """At most `room` guesses of what follows."""
        found = self._guess(token_ids)[: max(room, 0)]
        if self._waited and not found:
            self._pause_text()
        self._waited = False
        self._used = self._text if found else None
        return found

    @property
    def wants_draft(self) -> bool:
        """Whether a draft model is to run after the sequence."""
        return self._draft is not None and not self._draft.rest

    def follow(self, is_followed: bool) -> None:
        """The draft model has run all but the last tokens, or (False) was run over some of those before."""
        self._is_followed = is_followed
        self._was_delayed |= not is_followed

    def ask(self, room: int) -> int:
        """How many guesses the draft model is asked for, where `propose` had none: at most `room`."""
        if self._draft is None or not (self.wants_draft and self._is_followed):
            return 0
        self._used, self._was_asked = self._draft, True
        if room <= 0:
            self.pause()
        return max(0, min(self._draft.length, room))

    @property
    def may_draft(self) -> bool:
        """Whether a draft model was not given up."""
        return self._draft is not None

    @property
    def draft_rest(self) -> int | None:
        """How long a sequence like this one had better go on before a draft model is asked; None: it was not asked."""
        return self._draft.next_rest if self._draft is not None and self._was_asked else None

    def took(self, now: float, num_tokens: int, num_drafted: int) -> None:
        """So many tokens came of one step that had so many guesses; `now` in seconds."""
        before, self._last = self._last, now
        used, self._used = self._used, None
        was_delayed, self._was_delayed = self._was_delayed, False
        if before is None:
            return
        elapsed = now - before
        for source in (self._text, self._draft):
            if source is not None and not (num_drafted and source is used):
                source.passed(num_tokens)
        if not num_drafted:
            if not was_delayed:
                self._plain.add(elapsed, num_tokens)
        elif used is not None:
            self._judge(used, elapsed, num_tokens)

    def pause(self) -> None:
        """Guess nothing for a while from where guesses were just taken."""
        used, self._used = self._used, None
        if used is not None and used is self._text:
            self._pause_text()
        elif used is not None:
            used.pause()

    def pause_draft(self) -> None:
        """The draft model has no room for this sequence now."""
        if self._draft is not None:
            self._draft.pause()

    def give_up_draft(self) -> None:
        """The draft model cannot run this sequence."""
        self._draft = None

    def _judge(self, used: _Source, elapsed: float, num_tokens: int) -> None:
        pays = used.took(elapsed, num_tokens, self._plain)
        if used is self._text:
            used.length = min(max(2 * num_tokens, LEAST_DRAFTED), self._most)
            if pays:
                self._least = MIN_MATCH
            else:
                self._pause_text()
            return
        used.length = min(max(num_tokens + 2, LEAST_DRAFTED), self._most)
        self._num_asked += num_tokens
        if not pays:
            used.pause()
        elif self._num_asked >= ASKED_TOKENS:
            self._num_asked, used.rest = 0, PLAIN_TOKENS

    def _pause_text(self) -> None:
        if self._text is not None:
            self._text.pause()
            self._least = min(self._least + 2, LONGEST_MIN_MATCH)

    def _guess(self, token_ids: TokenIds) -> list[int]:
        if self._text is None or self._text.rest:
            return []
        num_known = len(self._tokens) - self._num_before
        if len(token_ids) > num_known:
            self._tokens.extend(token_ids[num_known:])
            self._found = look_up(
                np.frombuffer(self._tokens, np.int32), self._text.length, self._least
            )
        return self._found
