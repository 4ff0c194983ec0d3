"""What was in the last steps, and how long they took."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from .rates import StepClock

_KEPT = 512


@dataclass(slots=True)
class Mix:
    """What a step has in it: tokens of replies, one a row and its guesses, and tokens of prompts."""

    num_replies: int
    num_prompt_tokens: int
    seconds: float = 0.0  # once it is done


class StepLog:
    """Steps in the order in which they are submitted, and the last of those that are done."""

    def __init__(self) -> None:
        self._clock = StepClock()
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
