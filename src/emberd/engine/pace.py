"""How many prompt tokens a step takes beside replies, so that the gaps between their tokens stay small.

What is read within a moment is read at once: the places of replies that have ended are soon taken again. A long
prompt is read in pieces. It learns from how long steps take, since that depends on device, model and contexts. Knows
no sequences.
"""

from __future__ import annotations

import math

from .steps import Mix

GPU_PROMPT_SHARE = 0.5
"""Share of the time that prompts get on a GPU unless told otherwise."""

GPU_LEAST = 16
"""Tokens of the smallest step with prompts that a GPU has a plan for; on the CPU fewer cost less."""

_FALL, _RISE = 0.5, 0.2
"""How fast an estimate follows what is seen: up more slowly, since outliers are long."""

_FIRST_RETRY, _RETRY = 16, 512
"""Steps after which it is forgotten how long a size took that was too long, so that it is tried again: soon at first,
since a kernel may have been compiled in it."""

_CLOCK = 1e-6
"""Seconds that a step takes at least: clocks may show none, and shares of none are nothing."""

_UNDER_WAY = 4
"""Steps that may be submitted before one is done."""

_REFRESH = 64
"""Steps with prompts until one without them shows again how long replies take alone."""

MOMENT = 1.0
"""Seconds that prompts may take at once, beyond their share, where all of them are read by that. Replies that run
without prompts save them up again."""

LONGEST_GAP, LONGEST_GAPS = 0.15, 10
"""Seconds of a step in such a moment, and of one that is seldom; on a slow device the time of so many steps without
prompts."""

SELDOM = 50
"""Steps without prompts between two that are longer than a pace allows. What such a step does to the gaps, its own and
the next one, which waits for its arrays, stays outside of 95 % of them."""


class Pace:
    """Prompts get at most `prompt_share` of the time while replies run, but for moments; more where more prompts want
    it than replies run beside them. They get it in steps that are little longer than those without them, or in large
    steps that are seldom, whichever reads more.

    Sizes of a step are powers of two of tokens, from `least` on: a GPU's plans come in those, and so few
    have to be known.
    """

    def __init__(self, prompt_share: float, max_tokens: int, least: int = GPU_LEAST) -> None:
        assert 0 < prompt_share <= 1
        self._ratio = math.inf if prompt_share == 1 else prompt_share / (1 - prompt_share)
        self._max_tokens = max_tokens
        self._least = least
        self._alone: dict[int, float] = {}  # seconds by replies
        self._mixed: dict[tuple[int, int], float] = {}  # by replies and tokens
        self._prompts: dict[int, float] = {}  # without replies, by tokens
        self._per_token = math.inf  # seconds beyond what replies take, the least seen
        self._saved = MOMENT  # seconds that prompts may take beyond their share
        self._rested = 0.0  # seconds of their share, since they had a step
        self._num_alone = SELDOM  # steps without them, since then
        self._seen: set[tuple[int, int]] = set()
        self._refused: dict[tuple[int, int], tuple[int, int]] = {}  # so often, of how many times
        self._unrefreshed = 0

    def note(self, mix: Mix) -> None:
        """A step is done. The first of its size is not believed: what it needs was made in it. One prompt token beside
        many replies tells nothing of what many take."""
        replies = _power(mix.num_replies) if mix.num_replies else 0
        size = self._size(mix.num_replies + mix.num_prompt_tokens) if mix.num_prompt_tokens else 0
        key, took = (replies, size), max(mix.seconds, _CLOCK)
        beyond = took - self._alone.get(replies, 0.0)
        if beyond > 0 and mix.num_prompt_tokens >= max(1, mix.num_replies):
            self._per_token = min(self._per_token, beyond / mix.num_prompt_tokens)
        if key not in self._seen:
            self._seen.add(key)
        elif not replies:
            self._prompts[size] = _followed(self._prompts.get(size), took)
        elif size:
            self._mixed[key] = _followed(self._mixed.get(key), took)
        else:
            alone = self._alone[replies] = _followed(self._alone.get(replies), took)
            self._saved = min(MOMENT, self._saved + alone * self._ratio)
            self._rested += alone * self._ratio
            self._num_alone += 1
            self._unrefreshed = 0

    def budget(
        self, num_replies: int, prompts_per_reply: float, num_waiting: int, longest: int
    ) -> int:
        """Prompt tokens for the next step, which has `num_replies` tokens of replies, one or more; `num_waiting` of
        prompts are left to be run, `longest` has the longest of them in all. `prompts_per_reply` is 0 for prompts of
        a worse class: there are no moments for them. What is given is taken to be used."""
        most = self._max_tokens - num_replies
        if math.isinf(self._ratio) or most <= 0:
            return max(0, most)
        alone = self._alone.get(_power(num_replies))
        if alone is None or self._unrefreshed >= _REFRESH:
            return 0
        self._unrefreshed += 1
        crowd = max(1.0, prompts_per_reply)
        allowed = alone * (1 + self._ratio * crowd)
        paced = self._largest(num_replies, allowed)
        tokens = min(most, paced - num_replies) if paced else 0
        if tokens < min(most, num_waiting):
            longest_step = max(allowed, LONGEST_GAP, LONGEST_GAPS * alone)
            size = self._largest(num_replies, longest_step) or self._smallest(num_replies)
            size = min(size, self._size(num_replies + num_waiting))
            larger, seconds = min(most, size - num_replies), self._expected(num_replies, size)
            cost = max(0.0, seconds - allowed)
            moment = prompts_per_reply > 0 and self._is_moment(
                cost, cost / larger, num_waiting, longest
            )
            rest = max(SELDOM / crowd, cost / (alone * self._ratio))  # steps without prompts
            if moment:
                self._saved -= cost
                tokens = larger
            elif not paced or larger / (seconds + rest * alone) > tokens / allowed:
                tokens = larger if rest <= self._num_alone and cost <= self._rested else 0
        if tokens:
            self._rested, self._num_alone = 0.0, 0
        return tokens

    def _is_moment(self, cost: float, per_token: float, num_waiting: int, longest: int) -> bool:
        """Whether what waits is read by what is saved. Of a long prompt the last part is no moment either."""
        return max(cost, per_token * num_waiting) <= self._saved and per_token * longest <= MOMENT

    def _smallest(self, num_replies: int) -> int:
        return self._size(num_replies + 1)

    def _size(self, num_tokens: int) -> int:
        """Tokens of the step that holds so many: where they are fewer than `least`, it takes as long as that."""
        return max(self._least, _power(num_tokens))

    def _largest(self, num_replies: int, allowed: float) -> int:
        """Tokens of the largest step that takes no longer than `allowed` seconds; 0 where the smallest takes longer."""
        replies, size = _power(num_replies), self._smallest(num_replies)
        seconds = self._mixed.get((replies, size))
        # Where nothing is known, one is enough to see how long it takes.
        if seconds is None and math.isinf(self._per_token) and self._num_alone < _UNDER_WAY:
            return 0
        if seconds is not None and seconds > allowed:
            self._refuse((replies, size))
            return 0
        while size < self._max_tokens:
            if self._expected(num_replies, size * 2) > allowed:
                self._refuse((replies, size * 2))
                break
            size *= 2
        return size

    def _refuse(self, key: tuple[int, int]) -> None:
        count, most = self._refused.get(key, (0, _FIRST_RETRY))
        if count + 1 < most:
            self._refused[key] = count + 1, most
        else:
            self._refused[key] = 0, min(2 * most, _RETRY)
            self._mixed.pop(key, None)

    def _expected(self, num_replies: int, size: int) -> float:
        """Seconds of a step. Where it is not known: as long as replies and prompts take by themselves, or as if each
        prompt token took what it does at half or a quarter of the size, or the least it ever took, whichever is
        shorter: the others may hold an outlier."""
        replies = _power(num_replies)
        known = self._mixed.get((replies, size))
        if known is not None:
            return known
        alone = self._alone[replies]
        expected = alone + min(
            self._prompts.get(size, math.inf), self._per_token * (size - num_replies)
        )
        for smaller in (size // 2, size // 4):
            seconds = self._mixed.get((replies, smaller))
            if seconds is not None and smaller > num_replies:
                growth = (size - num_replies) / (smaller - num_replies)
                return min(expected, alone + max(0.0, seconds - alone) * growth)
        return expected


def _followed(known: float | None, seconds: float) -> float:
    if known is None:
        return seconds
    seconds = min(seconds, 2 * known)
    return known + (seconds - known) * (_FALL if seconds < known else _RISE)


def _power(count: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(0, count - 1).bit_length()
