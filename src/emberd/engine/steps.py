"""What was in the last steps, and how long they took."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from emberd.inspection import StepTimes

from .rates import StepClock

_KEPT = 512


@dataclass(slots=True)
class Mix:
    """What a step has in it: tokens of replies, one a row and its guesses, and tokens of prompts."""

    num_replies: int
    num_prompt_tokens: int
    seconds: float = 0.0  # once it is done


def _kind(mix: Mix) -> str:
    if not mix.num_prompt_tokens:
        return "replies"
    return "both" if mix.num_replies else "prompts"


class StepLog:
    """Steps in the order in which they are submitted, and the last of those that are done."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = StepClock(clock)
        self._in_flight: deque[Mix] = deque()
        self.done: deque[Mix] = deque(maxlen=_KEPT)
        self.num_done = 0

    def submit(self, mix: Mix) -> None:
        self._clock.submit()
        self._in_flight.append(mix)

    def collect(self) -> Mix:
        """The oldest step, which has just ended."""
        mix = self._in_flight.popleft()
        mix.seconds = self._clock.collect()
        self.done.append(mix)
        self.num_done += 1
        return mix

    def times(self) -> dict[str, StepTimes]:
        """The last of them by kind: those of replies alone, of prompts alone, of both."""
        by_kind: dict[str, list[Mix]] = {}
        for mix in self.done:
            by_kind.setdefault(_kind(mix), []).append(mix)
        return {kind: _times(found) for kind, found in sorted(by_kind.items())}


def _times(steps: list[Mix]) -> StepTimes:
    seconds = sorted(mix.seconds for mix in steps)
    return StepTimes(
        count=len(steps),
        p50=seconds[len(seconds) // 2],
        p95=seconds[int(len(seconds) * 0.95)],
        longest=seconds[-1],
        prompt_tokens=sum(mix.num_prompt_tokens for mix in steps),
        reply_rows=sum(mix.num_replies for mix in steps),
    )
