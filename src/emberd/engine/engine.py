"""The engine: requests in, one message of new tokens a step out.

Knows token ids only. A step is schedule, run, commit, emit; a runner that takes two steps at once
gets the next one before the tokens of the last are known.
"""

from __future__ import annotations

from collections import deque

from emberd.errors import BadRequestError, ContextOverflowError
from emberd.protocol import (
    EmbedRequest,
    GenerateRequest,
    Runner,
    SequenceUpdate,
    StepMessage,
    StepOutput,
    TokenIds,
)

from .batch import BatchBuilder
from .blocks import BlockManager
from .scheduler import Scheduler
from .sequence import Row, Sequence


class Engine:
    """Batches sequences over one runner, which it does not own. Not safe for several threads."""

    def __init__(self, runner: Runner) -> None:
        pool_tokens = runner.num_blocks * runner.block_size
        self.context_length = min(runner.info().context_length, pool_tokens)
        self._runner = runner
        self._blocks = BlockManager(runner.num_blocks, runner.block_size)
        self._scheduler = Scheduler(self._blocks, runner.max_sequences, runner.max_batch_tokens)
        self._batches = BatchBuilder(
            runner.max_sequences, self._blocks.blocks_for(self.context_length), runner.block_size
        )
        self._sequences: dict[str, Sequence] = {}
        self._in_flight: deque[list[Row]] = deque()
        self._updates: list[SequenceUpdate] = []

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to run, to collect or to tell."""
        return bool(self._sequences or self._in_flight or self._updates)

    def add(self, request: GenerateRequest | EmbedRequest) -> None:
        """Queue a request.

        Raises ContextOverflowError when the prompt leaves no room for a token to generate in the
        context, or in all blocks together; BadRequestError for an empty prompt, negative ids or an
        id in use.
        """
        num_prompt_tokens = len(request.token_ids)
        if request.request_id in self._sequences:
            raise BadRequestError(f"The request id '{request.request_id}' is already running.")
        check_token_ids(request.token_ids)
        num_generated = 0 if isinstance(request, EmbedRequest) else 1
        if num_prompt_tokens + num_generated > self.context_length:
            raise ContextOverflowError(num_prompt_tokens, self.context_length)
        sequence = Sequence(request, self.context_length)
        if sequence.max_length <= num_prompt_tokens:
            self._updates.append(SequenceUpdate(request.request_id, (), "length"))
            return
        self._sequences[request.request_id] = sequence
        self._scheduler.add(sequence)

    def cancel(self, request_id: str) -> None:
        """End a sequence now; its blocks are free on return. An unknown id has ended already."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            sequence.finish_reason = "cancelled"
            self._finish(sequence)
            self._updates.append(SequenceUpdate(request_id, (), "cancelled"))

    def step(self) -> StepMessage:
        """Submit what the runner takes, collect the oldest step, tell what is new."""
        while len(self._in_flight) < self._runner.steps_in_flight:
            rows = self._scheduler.schedule()
            if not rows:
                break
            self._runner.submit(self._batches.build(rows))
            self._in_flight.append(rows)
        if self._in_flight:
            self._commit(self._in_flight.popleft(), self._runner.collect())
        return self._emit()

    def fail(self, reason: str) -> StepMessage:
        """End every sequence with `reason`, after a step that raised; the engine is of no more use."""
        self._updates += [
            SequenceUpdate(request_id, (), "error", error=reason) for request_id in self._sequences
        ]
        self._sequences.clear()
        return self._emit()

    def check_integrity(self) -> None:
        """Recount blocks against the sequences; AssertionError tells what is off."""
        scheduler = self._scheduler
        assert {*scheduler.running, *scheduler.waiting} == set(self._sequences.values())
        assert not any(sequence.block_table for sequence in scheduler.waiting)
        self._blocks.check_integrity(sequence.block_table for sequence in scheduler.running)

    def _commit(self, rows: list[Row], output: StepOutput) -> None:
        states = output.hidden
        for row, token_id in zip(rows, output.token_ids.tolist(), strict=True):
            if row.pooled_places:
                assert states is not None
                count = len(row.pooled_places)
                row.take_states(states[:count])
                states = states[count:]
            if row.sequence.pool is not None:
                self._finish_pooled(row)
            if not row.sample:
                continue
            sequence = row.sequence
            sequence.num_pending_tokens -= 1
            if sequence.finish_reason is not None:
                continue  # ended while this step was in flight: the extra token is dropped
            sequence.append(token_id)
            self._updates.append(
                SequenceUpdate(sequence.request_id, (token_id,), sequence.finish_reason)
            )
            if sequence.finish_reason is not None:
                self._finish(sequence)

    def _finish_pooled(self, row: Row) -> None:
        """Answer for a text whose last token has been run."""
        sequence = row.sequence
        assert sequence.pool is not None
        ends = row.start + row.count == sequence.num_prompt_tokens
        if ends and sequence.finish_reason is None:
            sequence.finish_reason = "stop"
            vector = sequence.pool.vector()
            self._updates.append(SequenceUpdate(sequence.request_id, (), "stop", embedding=vector))
            self._finish(sequence)

    def _finish(self, sequence: Sequence) -> None:
        del self._sequences[sequence.request_id]
        self._scheduler.remove(sequence)

    def _emit(self) -> StepMessage:
        updates, self._updates = tuple(self._updates), []
        return StepMessage(
            updates,
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            num_free_blocks=self._blocks.num_free,
        )


def check_token_ids(token_ids: TokenIds) -> None:
    """Raises BadRequestError for an empty prompt and for negative ids."""
    if len(token_ids) == 0:
        raise BadRequestError("The prompt is empty; at least one token is needed.")
    if min(token_ids) < 0:
        raise BadRequestError(f"Token id {min(token_ids)} is not in the vocabulary.")
