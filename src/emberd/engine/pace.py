"""How many prompt tokens a step takes beside replies, so that the gaps between their tokens stay small.

It learns from how long steps take, since that depends on device, model and contexts. Knows no sequences.
"""

from __future__ import annotations

import math

from .steps import Mix

GPU_LEAST = 16
"""Tokens of the smallest step with prompts that a GPU has a plan for; on the CPU fewer cost less."""

_FALL, _RISE = 0.5, 0.2
"""How fast an estimate follows what is seen: up more slowly, since outliers are long."""

_RETRY = 128
"""Steps after which it is forgotten how long a size took that was too long, so that it is tried again."""

_BEYOND = 2.0
"""Where even the smallest step with prompts is too long, larger ones may be so much longer: what makes it long is
mostly not the tokens, and to run few of them would not help."""

_REFRESH = 64
"""Steps with prompts until one without them shows again how long replies take alone."""


class Pace:
    """Prompts get at most `prompt_share` of the time while replies run; more where more prompts want it than
    replies run beside them.

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
        self._seen: set[tuple[int, int]] = set()
        self._refused: dict[tuple[int, int], int] = {}
        self._unrefreshed = 0

    def note(self, mix: Mix) -> None:
        """A step is done. The first of its size is not believed: what it needs was made in it."""
        if mix.num_replies == 0:
            return
        replies = _power(mix.num_replies)
        size = _power(mix.num_replies + mix.num_prompt_tokens) if mix.num_prompt_tokens else 0
        key = replies, size
        if key not in self._seen:
            self._seen.add(key)
        elif size:
            self._mixed[key] = _followed(self._mixed.get(key), mix.seconds)
        else:
            self._alone[replies] = _followed(self._alone.get(replies), mix.seconds)
            self._unrefreshed = 0

    def budget(self, num_replies: int, prompts_per_reply: float) -> int:
        """Prompt tokens for the next step, which has `num_replies` tokens of replies, one or more."""
        if math.isinf(self._ratio):
            return self._max_tokens
        replies = _power(num_replies)
        alone = self._alone.get(replies)
        if alone is None or self._unrefreshed >= _REFRESH:
            return 0
        self._unrefreshed += 1
        allowed = alone * (1 + self._ratio * max(1.0, prompts_per_reply))
        size = max(self._least, _power(num_replies + 1))
        smallest = self._mixed.get((replies, size), 0.0)
        bold = smallest > allowed
        if bold:
            allowed = smallest * _BEYOND
        while size < self._max_tokens:
            if self._expected(num_replies, size * 2, bold) > allowed:
                self._refuse((replies, size * 2))
                break
            size *= 2
        return min(size, self._max_tokens) - num_replies

    def _refuse(self, key: tuple[int, int]) -> None:
        self._refused[key] = self._refused.get(key, 0) + 1
        if self._refused[key] >= _RETRY:
            self._refused[key] = 0
            self._mixed.pop(key, None)

    def _expected(self, num_replies: int, size: int, bold: bool) -> float:
        """Seconds of a step. Where it is not known: as if each prompt token took what it does at half the size; to the
        bold, as if more of them took no longer."""
        replies = _power(num_replies)
        known = self._mixed.get((replies, size))
        if known is not None:
            return known
        half = self._mixed.get((replies, size // 2))
        if half is None or bold:
            return math.inf if half is None else half
        growth = (size - num_replies) / (size // 2 - num_replies)
        alone = self._alone[replies]
        return alone + max(0.0, half - alone) * growth


def _followed(known: float | None, seconds: float) -> float:
    if known is None:
        return seconds
    seconds = min(seconds, 2 * known)
    return known + (seconds - known) * (_FALL if seconds < known else _RISE)


def _power(count: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(0, count - 1).bit_length()
