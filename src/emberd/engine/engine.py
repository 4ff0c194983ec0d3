"""The engine: requests in, one message of new tokens a step out.

Knows token ids only. A step is schedule, run, commit, emit; a runner that takes two steps at once
gets the next one before the tokens of the last are known.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq

import numpy as np

from emberd.errors import BadRequestError, ContextOverflowError
from emberd.inspection import BatchStatus
from emberd.protocol import (
    EmbedRequest,
    FinishReason,
    GenerateRequest,
    MaskArray,
    Runner,
    SequenceUpdate,
    StepMessage,
    StepOutput,
    TokenIds,
    TokenTable,
)

from .batch import BatchBuilder
from .blocks import BlockManager
from .distrust import distrust
from .draft_model import DraftModel
from .grammar import GrammarError, Grammars
from .pace import GPU_LEAST, Pace
from .prefix import BlockKeys
from .scheduler import Scheduler
from .sequence import Row, Sequence
from .speculation import FIRST_REST, Speculation, can_be_guessed
from .status import batch_status
from .steps import StepLog
from .tiers import Tiers
from .updates import NOT_FINITE, pooled_update, token_update


class Engine:
    """Batches sequences over one runner, which it does not own. Not safe for several threads."""

    def __init__(
        self,
        runner: Runner,
        tiers: Tiers | None = None,
        clock: Callable[[], float] = time.perf_counter,
        prompt_share: float = 1.0,
        speculate: bool = False,
        draft: DraftModel | None = None,
    ) -> None:
        """`prompt_share`: of the time that prompts get while replies run; 1: as much as they take.
        `speculate`: guess tokens from the text so far where that pays; `draft`: by that model, which is its owner's."""
        pool_tokens = runner.num_blocks * runner.block_size
        self.context_length = min(runner.info().context_length, pool_tokens)
        self._runner, self._clock = runner, clock
        self._speculate, self._draft = speculate, draft
        window = runner.info().window
        self._blocks = BlockManager(runner.num_blocks, runner.block_size, window)
        self._tiers = tiers
        if tiers is not None:
            tiers.attach(self._blocks)
        self._steps = StepLog(clock)
        self._pace = None
        if prompt_share < 1:
            least = 2 if runner.info().device_kind == "cpu" else GPU_LEAST
            self._pace = Pace(prompt_share, runner.max_batch_tokens, least)
        self._scheduler = Scheduler(
            self._blocks,
            runner.max_sequences,
            runner.max_batch_tokens,
            tiers,
            clock,
            self._pace,
            draft,
        )
        self._batches = BatchBuilder(
            runner.max_sequences, self._blocks.blocks_for(self.context_length), runner.block_size
        )
        self._sequences: dict[str, Sequence] = {}
        self._in_flight: deque[list[Row]] = deque()
        self._updates: list[SequenceUpdate] = []
        self._table: TokenTable | None = None
        self._grammars: Grammars | None = None

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to run, to collect or to tell."""
        resting = self._tiers is not None and self._tiers.has_work
        return bool(self._sequences or self._in_flight or self._updates or resting)

    def use_table(self, table: TokenTable) -> None:
        """The vocabulary that grammars are about; needed before the first request with one."""
        self._table, self._grammars = table, None

    def add(self, request: GenerateRequest | EmbedRequest) -> None:
        """Queue a request.

        Raises ContextOverflowError when the prompt leaves no room for a token to generate in the
        context, or in all blocks together; BadRequestError for an empty prompt, negative ids, an
        id in use or a grammar that is refused.
        """
        num_prompt_tokens = len(request.token_ids)
        if request.request_id in self._sequences:
            raise BadRequestError(f"The request id '{request.request_id}' is already running.")
        check_token_ids(request.token_ids)
        sequence = Sequence(request, self.context_length)
        runs = sequence.samples or sequence.reads
        if num_prompt_tokens + (not sequence.reads) > self.context_length:
            raise ContextOverflowError(num_prompt_tokens, self.context_length)
        if not runs:
            self._updates.append(SequenceUpdate(request.request_id, (), "length"))
            return
        if sequence.params.grammar is not None:
            sequence.matcher = self._all_grammars().matcher(sequence.params.grammar)
        guesses = self._speculate or self._draft is not None
        if guesses and sequence.samples and can_be_guessed(sequence.params):
            params = sequence.params
            sequence.speculation = Speculation(
                params.max_drafted,
                params.expected,
                looks_up=self._speculate,
                drafts=self._draft is not None,
                draft_rest=FIRST_REST if self._draft is None else self._draft.first_rest,
            )
        if isinstance(request, GenerateRequest) and request.cache_salt is not None:
            if sequence.scores is None:  # what is scored must be run
                size = self._blocks.block_size
                sequence.keys = BlockKeys(sequence.token_ids, size, request.cache_salt)
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
        if self._tiers is not None:
            self._tiers.poll()
        while len(self._in_flight) < self._runner.steps_in_flight:
            rows = self._scheduler.schedule()
            if self._tiers is not None:
                self._tiers.move()
            if not rows:
                break
            batch = self._batches.build(rows)
            self._steps.submit(self._scheduler.mix)
            self._runner.submit(batch)
            if batch.masked is not None:
                self._sample_masked(rows)
                return self._emit()
            self._in_flight.append(rows)
        if self._tiers is not None and not self._in_flight:
            self._tiers.rest()
        self._collect()
        return self._emit()

    def fail(self, reason: str) -> StepMessage:
        """End every sequence with `reason`, after a step that raised; the engine is of no more use."""
        self._updates += [
            SequenceUpdate(request_id, (), "error", error=reason) for request_id in self._sequences
        ]
        self._sequences.clear()
        return self._emit()

    def preempt(self, request_id: str | None) -> str | None:
        """Put a running sequence back to those that wait; None: the last by rank. Gives its id, None where it
        does not run."""
        running = self._scheduler.running
        found = [one for one in running if request_id in (None, one.request_id)]
        return self._scheduler.preempt(found[-1]).request_id if found else None

    def status(self, whole: bool = True) -> BatchStatus:
        """What waits and runs as it is now; `whole`: blocks and steps too."""
        draft = None if self._draft is None else self._draft.blocks
        return batch_status(self._scheduler, self._steps, whole, draft)

    def check_integrity(self) -> None:
        """Recount blocks against the sequences; AssertionError tells what is off."""
        scheduler = self._scheduler
        assert {*scheduler.running, *scheduler.waiting} == set(self._sequences.values())
        assert not any(sequence.block_table for sequence in scheduler.waiting)
        self._blocks.check_integrity(sequence.block_table for sequence in scheduler.running)
        if self._tiers is not None:
            self._tiers.check_integrity()
        if self._draft is not None:
            self._draft.check_integrity(scheduler.running)

    def close(self) -> None:
        """Finish what the tiers are writing. The runner is its owner's."""
        if self._tiers is not None:
            self._tiers.close()

    def _sample_masked(self, rows: list[Row]) -> None:
        """Bring a step that was submitted to its sampling: earlier ones are collected first, since masks
        follow from their tokens, while the device runs this one."""
        while self._in_flight:
            self._collect()
        masks = [mask for row in rows if row.masked for mask in self._masks(row)]
        width = max((len(mask) for mask in masks if mask is not None), default=1)
        anything = np.zeros(width, np.uint32)
        anything[0] = 1
        self._runner.sample(np.stack([anything if mask is None else mask for mask in masks]))
        self._in_flight.append(rows)

    def _masks(self, row: Row) -> Seq[MaskArray | None]:
        """Of each place that is sampled. None for a sequence that has ended, here at the latest: what is sampled
        will be dropped."""
        sequence = row.sequence
        assert sequence.matcher is not None
        if sequence.finish_reason is None:
            try:
                return sequence.matcher.masks_along(row.drafted)
            except GrammarError as error:
                self._fail(sequence, str(error), "refused")
        return [None] * (1 + len(row.drafted))

    def _collect(self) -> None:
        if self._in_flight:
            rows, output = self._in_flight.popleft(), self._runner.collect()
            step = self._steps.collect()
            if self._pace is not None:
                self._pace.note(step)
            if self._tiers is not None:
                self._tiers.rates.note_step([row.count for row in rows], step.seconds)
            self._commit(rows, output)

    def _commit(self, rows: list[Row], output: StepOutput) -> None:
        pooled = scored = verified = 0  # places of the output that were used
        token_ids = output.token_ids.tolist()
        behind = [] if output.behind_drafts is None else output.behind_drafts.tolist()
        now = self._clock()
        for place, row in enumerate(rows):
            if row.pooled_places:
                assert output.hidden is not None
                count = len(row.pooled_places)
                row.take_states(output.hidden[pooled : pooled + count])
                pooled += count
            if row.scored:
                assert output.scores is not None and row.sequence.scores is not None
                sound = np.isfinite(output.scores.chosen[scored : scored + len(row.scored)])
                row.sequence.scores.add(row.scored_ids, output.scores, scored)
                scored += len(row.scored)
                if not sound.all() and row.sequence.finish_reason is None:
                    self._fail(row.sequence, NOT_FINITE)
            if row.sample:
                sampled = behind[verified : verified + len(row.drafted)]
                verified += len(row.drafted)
                sampled = row.take_sampled([token_ids[place], *sampled])
                self._commit_tokens(row, sampled, place, output, now)
            elif not row.sequence.samples:
                self._finish_read(row)

    def _commit_tokens(
        self, row: Row, sampled: list[int], place: int, output: StepOutput, now: float
    ) -> None:
        """Tokens that a row gave: one, and one more for each right guess."""
        sequence = row.sequence
        sequence.num_pending_tokens -= 1
        if sequence.finish_reason is not None:
            return  # ended while this step was in flight: the extra tokens are dropped
        if sequence.speculation is not None:
            sequence.speculation.took(now, len(sampled), len(row.drafted))
        if sampled[-1] < 0:
            distrust(sequence, self._scheduler.running, self._blocks, self._tiers)
            self._fail(sequence, NOT_FINITE)
            return
        try:
            token_ids = sequence.append_all(sampled)
        except GrammarError as error:
            self._fail(sequence, f"the grammar cannot go on: {error}")
            return
        update = token_update(row, token_ids, len(sampled) - 1, place, output)
        sequence.num_drafted_tokens += update.num_drafted
        sequence.num_accepted_tokens += update.num_accepted
        self._updates.append(update)
        if sequence.finish_reason is not None:
            self._finish(sequence)

    def _finish_read(self, row: Row) -> None:
        """Answer for a prompt from which nothing is sampled, whose last token has been run."""
        sequence = row.sequence
        if not row.ends_prompt or sequence.finish_reason is not None:
            return
        if sequence.pool is not None:
            update = pooled_update(sequence.request_id, sequence.pool)
        else:
            scores = () if sequence.scores is None else sequence.scores.take()
            update = SequenceUpdate(sequence.request_id, (), "length", prompt_logprobs=scores)
        sequence.finish_reason = update.finish_reason
        self._updates.append(update)
        self._finish(sequence)

    def _fail(self, sequence: Sequence, reason: str, how: FinishReason = "error") -> None:
        sequence.finish_reason = how
        self._updates.append(SequenceUpdate(sequence.request_id, (), how, error=reason))
        self._finish(sequence)

    def _all_grammars(self) -> Grammars:
        if self._table is None:
            raise BadRequestError(
                "This model's vocabulary is not known to the engine; a grammar needs it."
            )
        if self._grammars is None:
            self._grammars = Grammars(self._table)
        return self._grammars

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
            tiers=None if self._tiers is None else self._tiers.counts,
        )


def check_token_ids(token_ids: TokenIds) -> None:
    """Raises BadRequestError for an empty prompt and for negative ids."""
    if len(token_ids) == 0:
        raise BadRequestError("The prompt is empty; at least one token is needed.")
    if min(token_ids) < 0:
        raise BadRequestError(f"Token id {min(token_ids)} is not in the vocabulary.")
