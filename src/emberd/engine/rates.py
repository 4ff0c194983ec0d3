"""What is cheaper, computing a block again or copying it back: from rates that were measured on this worker."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median

_KEPT = 15
"""Measurements that count, the last ones. Their median: a step may have waited for a kernel to be compiled."""

_LEAST_TOKENS = 16

_TRIAL = 32
"""One in so many refusals is copied all the same, so that a rate that was poor once is measured again."""


class Rate:
    """Units a second."""

    def __init__(self) -> None:
        self._found: deque[float] = deque(maxlen=_KEPT)

    def note(self, amount: float, seconds: float) -> None:
        if amount > 0 and seconds > 0:
            self._found.append(amount / seconds)

    @property
    def value(self) -> float | None:
        """None until something was measured."""
        return median(self._found) if self._found else None


class StepClock:
    """How long steps take that overlap: from the end of the one before, or from the start where the device was idle."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started: deque[float] = deque()
        self._ended = 0.0

    def submit(self) -> None:
        self._started.append(self._clock())

    def collect(self) -> float:
        """Seconds of the oldest step, which has just ended."""
        began, self._ended = max(self._started.popleft(), self._ended), self._clock()
        return self._ended - began


class Rates:
    """Of prefill in tokens, of copies in bytes a second."""

    def __init__(self, block_size: int, block_bytes: int) -> None:
        self._block_size, self._block_bytes = block_size, block_bytes
        self.prefill = Rate()
        self.upload = Rate()  # host memory to the pool
        self.fetch = Rate()  # disk to host memory
        self._refusals = 0

    def note_step(self, chunks: list[int], seconds: float) -> None:
        """A step has run so many tokens of each row. Rows of a few tokens are no measure of prefill."""
        tokens = sum(chunks)
        if tokens >= _LEAST_TOKENS and 2 * sum(c for c in chunks if c >= _LEAST_TOKENS) > tokens:
            self.prefill.note(tokens, seconds)

    def copying_pays(self, *, from_disk: bool) -> bool:
        """Whether a block comes back sooner than it is computed. What was never measured is tried."""
        prefill = self.prefill.value
        copies = [self.upload, self.fetch] if from_disk else [self.upload]
        if prefill is None:
            return True
        known = [rate.value for rate in copies if rate.value is not None]
        if len(known) < len(copies):
            return True
        seconds = sum(self._block_bytes / value for value in known)
        if seconds < self._block_size / prefill:
            return True
        self._refusals += 1
        return self._refusals % _TRIAL == 0
