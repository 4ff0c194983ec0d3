"""A device of known step times in virtual time, and clients in a closed loop: what scheduling alone costs.

Import it as `from virtual import …`. Nothing sleeps; a run takes as long as the engine's own work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise

import numpy as np

from emberd.engine import Engine
from emberd.protocol import NORMAL, Batch, GenerateRequest, SamplingParams, StepOutput, WorkerInfo

Seconds = Callable[[int, int], float]  # of a step with so many rows of one token and other tokens


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class VirtualRunner:
    """protocol.Runner that takes `seconds` a step, one step behind the other, and always samples token 1."""

    block_size, block_bytes, kv_layout = 32, 1, "virtual"

    def __init__(
        self,
        clock: Clock,
        seconds: Seconds,
        *,
        max_sequences: int = 32,
        max_batch_tokens: int = 512,
        context_length: int = 512,
    ) -> None:
        self.max_sequences, self.max_batch_tokens = max_sequences, max_batch_tokens
        self.num_blocks = (max_sequences + 1) * context_length // self.block_size
        self.steps_in_flight = 3
        self.steps: list[tuple[int, int, float]] = []  # rows of one token, other tokens, seconds
        self._clock, self._seconds, self._context_length = clock, seconds, context_length
        self._ends: deque[tuple[float, int]] = deque()
        self._busy_until = 0.0

    def info(self) -> WorkerInfo:
        return WorkerInfo(
            device="virtual",
            device_kind="gpu",
            context_length=self._context_length,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            max_sequences=self.max_sequences,
            weight_bytes=0,
            kv_bytes=0,
            load_seconds=0.0,
        )

    def submit(self, batch: Batch) -> None:
        rows = batch.num_decode_rows
        seconds = self._seconds(rows, batch.num_tokens - rows)
        self.steps.append((rows, batch.num_tokens - rows, seconds))
        self._busy_until = max(self._busy_until, self._clock.now) + seconds
        self._ends.append((self._busy_until, batch.num_rows))

    def collect(self) -> StepOutput:
        end, num_rows = self._ends.popleft()
        self._clock.now = max(self._clock.now, end)
        return StepOutput(np.ones(num_rows, np.int32))


@dataclass
class Sent:
    at: float
    tokens: list[float] = field(default_factory=list)  # when each came

    @property
    def ttft(self) -> float:
        return self.tokens[0] - self.at

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in pairwise(self.tokens)]


class Loop:
    """Requests to an engine in virtual time; each that ends is followed by the next `pause` seconds later."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.engine, self.clock = engine, clock
        self.sent: dict[str, Sent] = {}
        self._numbers = count()
        self._due: list[tuple[float, int, int, int]] = []  # at, prompt tokens, new ones, class

    def send(
        self,
        prompt_tokens: int,
        new_tokens: int,
        at: float | None = None,
        priority: int = NORMAL,
    ) -> None:
        at = self.clock.now if at is None else at
        self._due.append((at, prompt_tokens, new_tokens, priority))
        self._due.sort()

    def step(self) -> set[str]:
        """One step of the engine, or a wait for who is due; gives who has ended."""
        if not self.engine.has_work and self._due:
            self.clock.now = max(self.clock.now, self._due[0][0])
        while self._due and self._due[0][0] <= self.clock.now:
            at, prompt_tokens, new_tokens, priority = self._due.pop(0)
            name = str(next(self._numbers))
            params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
            ids = (2,) * prompt_tokens
            self.engine.add(GenerateRequest(name, ids, params, cache_salt=None, priority=priority))
            self.sent[name] = Sent(at)
        ended = set()
        for update in self.engine.step().updates:
            self.sent[update.request_id].tokens += [self.clock.now] * len(update.token_ids)
            if update.finish_reason is not None:
                ended.add(update.request_id)
        return ended

    def closed(
        self, clients: int, requests: int, prompt_tokens: int, new_tokens: int, apart: float
    ) -> float:
        """`clients` that send `requests` in all, the first ones `apart` seconds after one another, later ones so
        long after an answer has ended. Gives the seconds that it took."""
        began = self.clock.now
        for place in range(clients):
            self.send(prompt_tokens, new_tokens, began + place * apart)
        left = requests - clients
        while self.engine.has_work or self._due:
            for place, _ in enumerate(sorted(self.step())):
                if left:
                    left -= 1
                    self.send(prompt_tokens, new_tokens, self.clock.now + (1 + place) * apart)
        return self.clock.now - began


def seconds_of(points: Sequence[tuple[int, float]]) -> Seconds:
    """Step times by tokens, straight lines between `points` and beyond the last."""
    tokens, times = zip(*points, strict=True)

    def seconds(rows: int, others: int) -> float:
        size = rows + others
        if size > tokens[-1]:
            return float(times[-1] * size / tokens[-1])
        return float(np.interp(size, tokens, times))

    return seconds
