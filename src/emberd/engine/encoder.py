"""The engine of encoders: whole texts in, one vector each out, as many texts a step as its tokens allow.

Shaped like Engine, so that a worker serves either. Knows token ids only.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from emberd.errors import BadRequestError, ContextOverflowError
from emberd.inspection import BatchStatus, SequenceStatus
from emberd.protocol import (
    EmbedRequest,
    EncoderRunner,
    GenerateRequest,
    SequenceUpdate,
    StepMessage,
)

from .engine import check_token_ids
from .pooling import Pool
from .updates import pooled_update


class EncoderEngine:
    """Texts in order of arrival over one runner, which it does not own. Not safe for several threads."""

    def __init__(self, runner: EncoderRunner) -> None:
        self.context_length = min(runner.info().context_length, runner.max_batch_tokens)
        self._runner = runner
        self._waiting: deque[EmbedRequest] = deque()
        self._updates: list[SequenceUpdate] = []

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to run or to tell."""
        return bool(self._waiting or self._updates)

    def add(self, request: GenerateRequest | EmbedRequest) -> None:
        """Queue a text. Raises ContextOverflowError for one that is too long; BadRequestError for an
        empty one, negative ids, and a request to generate."""
        if not isinstance(request, EmbedRequest):
            raise BadRequestError("This model is an encoder; it cannot generate text.")
        check_token_ids(request.token_ids)
        if len(request.token_ids) > self.context_length:
            raise ContextOverflowError(len(request.token_ids), self.context_length, "input")
        self._waiting.append(request)

    def cancel(self, request_id: str) -> None:
        """Forget a text that has not been run; an unknown id has ended already."""
        kept = [request for request in self._waiting if request.request_id != request_id]
        if len(kept) < len(self._waiting):
            self._waiting = deque(kept)
            self._updates.append(SequenceUpdate(request_id, (), "cancelled"))

    def step(self) -> StepMessage:
        """Run the oldest texts, at most `max_batch_tokens` tokens of them."""
        batch = self._take()
        if batch:
            try:
                self._run(batch)
            except BaseException:
                self._waiting.extendleft(reversed(batch))  # for `fail` to answer
                raise
        return self._emit()

    def preempt(self, request_id: str | None) -> str | None:
        """Nothing runs between steps."""
        return None

    def status(self, whole: bool = True) -> BatchStatus:
        """The texts that wait; a text runs within one step, so none is seen running."""
        return BatchStatus(
            tuple(
                SequenceStatus(
                    request.request_id, "waiting", place, len(request.token_ids), 0, 0, 0, 0, 0
                )
                for place, request in enumerate(self._waiting)
            )
        )

    def fail(self, reason: str) -> StepMessage:
        """End every text with `reason`, after a step that raised; the engine is of no more use."""
        self._updates += [
            SequenceUpdate(request.request_id, (), "error", error=reason)
            for request in self._waiting
        ]
        self._waiting.clear()
        return self._emit()

    def _take(self) -> list[EmbedRequest]:
        batch: list[EmbedRequest] = []
        room = self._runner.max_batch_tokens
        while self._waiting and len(self._waiting[0].token_ids) <= room:
            batch.append(self._waiting.popleft())
            room -= len(batch[-1].token_ids)
        return batch

    def _run(self, batch: list[EmbedRequest]) -> None:
        lengths = [len(request.token_ids) for request in batch]
        query_start = np.cumsum([0, *lengths]).astype(np.int32)
        token_ids = np.concatenate([request.token_ids for request in batch]).astype(np.int32)
        hidden = self._runner.hidden_states(token_ids, query_start)  # (T, hidden)
        for request, start, end in zip(batch, query_start, query_start[1:], strict=False):
            pool = Pool(request.pooling, self._runner.dense)
            wanted = pool.places(end - start)
            pool.add(hidden[start + wanted.start : start + wanted.stop])
            self._updates.append(pooled_update(request.request_id, pool))

    def _emit(self) -> StepMessage:
        updates, self._updates = tuple(self._updates), []
        return StepMessage(updates, num_waiting=len(self._waiting))
