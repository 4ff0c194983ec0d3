"""What is cheaper, computing a block again or copying it back: from rates that were measured on this worker."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median

_KEPT = 15
"""Measurements that count, the last ones. Their median: a step may have waited for a kernel to be compiled."""

_LEAST_TOKENS = 16

_TRIAL = 32
"""After so many refusals a few blocks are copied all the same, so that a rate that was poor once is measured again."""

_FEW_BYTES = 16 << 20
"""Enough to measure a rate by."""

ALL = 1 << 40


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

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
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

    def worth_copying(self, *, from_disk: bool) -> int:
        """How many blocks to bring back rather than to compute: none, `ALL`, or a few, to see how fast it goes. What a
        disk does is not taken on trust."""
        few = max(1, _FEW_BYTES // self._block_bytes)
        copies = [self.upload, self.fetch] if from_disk else [self.upload]
        known = [rate.value for rate in copies if rate.value is not None]
        prefill = self.prefill.value
        if from_disk and self.fetch.value is None:
            return few
        seconds = sum(self._block_bytes / value for value in known)  # what is not known is tried
        if prefill is None or seconds < self._block_size / prefill:
            return ALL
        self._refusals += 1
        return 0 if self._refusals % _TRIAL else few

    def save(self, path: Path) -> None:
        """Keep what was measured for the next start. Raises OSError."""
        told = {name: rate.value for name, rate in self._named() if rate.value is not None}
        unfinished = path.with_suffix(f".{os.getpid()}.part")
        unfinished.write_text(json.dumps(told))
        unfinished.replace(path)

    def load(self, path: Path) -> None:
        """Begin with what was kept, as one measurement; with nothing where that cannot be read."""
        try:
            told = json.loads(path.read_text())
            for name, rate in self._named():
                rate.note(float(told.get(name, 0)), 1.0)
        except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            return

    def _named(self) -> tuple[tuple[str, Rate], ...]:
        return ("prefill", self.prefill), ("upload", self.upload), ("fetch", self.fetch)
