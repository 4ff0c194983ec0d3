"""Generation: the sequences of one request, from prompt ids to text, for every protocol alike.

Asks the worker for tokens, gives them to reading.py as they come, and cancels what its findings end.
Knows nothing of HTTP; whoever consumes it may be slow, late or gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..errors import BadRequestError, EmberdError, WorkerDiedError
from ..inspection import PrefixFinding
from ..models.loaded import LoadedModel
from ..protocol import GenerateRequest, SamplingParams, SequenceUpdate
from .events import Event, Finish, Piece, Progress, PromptLogprobs, Reply, Told, merged, pieces
from .explain import PromptStory
from .reading import Prompt, Reading

PROGRESS_SECONDS = 0.25
"""Between two looks at how far a prompt is."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sequence:
    index: int
    prompt: Prompt
    completion_ids: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0
    finding: PrefixFinding | None = None
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    num_reasoning_tokens: int = 0
    pending: list[Event] = field(default_factory=list)  # what nobody has taken yet
    finish: Finish | None = None
    delivered: bool = False  # its finish has been taken

    def take(self) -> list[Told]:
        events, self.pending = merged(self.pending), []
        self.delivered = self.delivered or (bool(events) and events[-1] is self.finish)
        return [Told(self.index, event) for event in events]


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts over all sequences; a prompt that several sequences share counts once."""

    num_prompt_tokens: int
    num_cached_tokens: int = 0
    num_completion_tokens: int = 0  # reasoning, and what a budget forced, among them
    num_reasoning_tokens: int = 0
    num_drafted_tokens: int = 0  # that were guessed
    num_accepted_tokens: int = 0  # of these, those that are in the reply


class Generation:
    """Sequences being generated. Starts at once; `close` ends what still runs, and may come at any time.

    `load_ns` is what the request waited for its model, kept for those who tell. `on_end` is called once,
    when no sequence runs any more.
    """

    def __init__(
        self,
        request_id: str,
        model: LoadedModel,
        prompts: Sequence[Prompt],
        num_prompt_tokens: int,
        load_ns: int,
        on_end: Callable[[Generation], None],
        *,
        progress: bool = False,
    ) -> None:
        self.request_id = request_id
        self.model = model
        self.load_ns = load_ns
        self._num_prompt_tokens = num_prompt_tokens
        self._on_end = on_end
        self._sequences = [_Sequence(index, prompt) for index, prompt in enumerate(prompts)]
        self._changed = asyncio.Event()
        self._error: EmberdError | None = None
        self._started_ns = time.perf_counter_ns()
        self._first_token_ns: int | None = None
        self._ended_ns: int | None = None
        self._running = {asyncio.ensure_future(self._run(sequence)) for sequence in self._sequences}
        for task in self._running:
            task.add_done_callback(self._sequence_ended)
        self._watcher = asyncio.ensure_future(self._watch()) if progress else None

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def unheld(self) -> tuple[str, ...]:
        """What was asked of calls and nothing holds the replies to."""
        return self._sequences[0].prompt.form.unheld

    async def __aiter__(self) -> AsyncIterator[Told]:
        """Events as they come, neighbours of one kind in one. Raises EmberdError after the last of them."""
        while not self.finished:
            for told in await self.take():
                yield told

    @property
    def finished(self) -> bool:
        """Every sequence's finish has been taken."""
        return all(sequence.delivered for sequence in self._sequences)

    async def take(self, timeout: float | None = None) -> list[Told]:
        """Waits for news; empty after `timeout` seconds without any. Raises as above."""
        timer = None
        if timeout is not None and not self._changed.is_set():
            timer = asyncio.get_running_loop().call_later(timeout, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._changed.clear()
        news = [told for sequence in self._sequences for told in sequence.take()]
        if self._error is not None:
            if not news:
                raise self._error
            self._changed.set()
        return news

    async def pieces(self) -> AsyncIterator[Piece]:
        """As iterating, with log-probabilities beside what they are of."""
        while not self.finished:
            for piece in pieces(await self.take()):
                yield piece

    async def whole(self) -> list[Reply]:
        """One reply a sequence. Raises EmberdError if any sequence failed."""
        replies = [Reply() for _ in self._sequences]
        async for sequence, event in self:
            replies[sequence].add(event)
        return replies

    def fail(self, error: EmberdError) -> None:
        """End everything that runs; whoever consumes gets the text so far, then `error`."""
        if self._error is None and not all(s.finish for s in self._sequences):
            self._error = error
        self.close()
        self._changed.set()

    def close(self) -> None:
        """Cancel what runs. Safe to call twice, and after the end."""
        for task in self._running:
            task.cancel()

    @property
    def usage(self) -> Usage:
        return Usage(
            self._num_prompt_tokens,
            sum(one.num_cached_tokens for one in self._sequences if not one.prompt.is_copy),
            sum(len(sequence.completion_ids) for sequence in self._sequences),
            sum(sequence.num_reasoning_tokens for sequence in self._sequences),
            sum(sequence.num_drafted_tokens for sequence in self._sequences),
            sum(min(one.num_accepted_tokens, len(one.completion_ids)) for one in self._sequences),
        )

    @property
    def endings(self) -> list[str]:
        """How each sequence ended: its finish reason, or error, or cancelled."""
        otherwise = "cancelled" if self._error is None else "error"
        return [one.finish.reason if one.finish else otherwise for one in self._sequences]

    @property
    def prompt_ns(self) -> int:
        """From the start to the first token, waiting included; never 0."""
        end = self._first_token_ns or self._ended_ns or time.perf_counter_ns()
        return max(1, end - self._started_ns)

    @property
    def decode_ns(self) -> int:
        """From the first token to the end; never 0."""
        end = self._ended_ns or time.perf_counter_ns()
        return max(1, end - (self._first_token_ns or end))

    @property
    def priority(self) -> int:
        """The class of its sequences, of PRIORITIES."""
        return self._sequences[0].prompt.priority

    @property
    def stories(self) -> tuple[PromptStory, ...]:
        """What was found of its prompts; of those that several sequences share, once."""
        return tuple(
            PromptStory.of(
                one.index,
                one.prompt.token_ids,
                one.num_cached_tokens,
                one.prompt.cache_salt is not None and one.prompt.prompt_logprobs is None,
                one.finding,
            )
            for one in self._sequences
            if not one.prompt.is_copy
        )

    def prompt_ids(self, index: int) -> tuple[int, ...]:
        return self._sequences[index].prompt.token_ids

    def completion_ids(self, index: int) -> list[int]:
        return self._sequences[index].completion_ids

    async def _run(self, sequence: _Sequence) -> None:
        """One sequence to its end: by one request to the worker, and by another one for each time that a
        thinking budget ends a span. That one goes on behind the forced tokens with the same seed, so it
        draws what the first would have drawn behind them, and costs one prefill."""
        reading = Reading(self.model, sequence.prompt)
        try:
            for number in itertools.count():
                await self._run_part(sequence, reading, number)
                if sequence.finish is not None:
                    return
                if _num_left(sequence) <= len(reading.closing_ids):
                    self._tell(sequence, reading, reading.end("length"))
                    return
                sequence.completion_ids += reading.closing_ids
                self._tell(sequence, reading, reading.force_close())
        except EmberdError as error:
            self.fail(error)
        except Exception:
            self.fail(EmberdError("internal error; the daemon's log tells more"))
            raise

    async def _run_part(self, sequence: _Sequence, reading: Reading, number: int) -> None:
        """Returns when the sequence has ended or its thinking budget is spent."""
        prompt = sequence.prompt
        params = dataclasses.replace(prompt.params, max_tokens=_num_left(sequence))
        if number:
            params = dataclasses.replace(params, grammar=prompt.form.grammar_behind_thinking)
        request = GenerateRequest(
            f"{self.request_id}-{sequence.index}" + (f"-{number}" if number else ""),
            (*prompt.token_ids, *sequence.completion_ids),
            params,
            prompt.prompt_logprobs if number == 0 else None,
            prompt.cache_salt,
            priority=prompt.priority,
        )
        async with contextlib.aclosing(self.model.worker.generate(request)) as updates:
            async for update in updates:
                self._note(sequence, update, first=number == 0)
                if update.prompt_logprobs:
                    self._tell(sequence, reading, [PromptLogprobs(update.prompt_logprobs)])
                num_shown = _num_shown(update, params)
                for place, token_id in enumerate(update.token_ids):
                    sequence.completion_ids.append(token_id)
                    logprobs = update.logprobs[place] if update.logprobs else None
                    if place < num_shown:
                        self._tell(sequence, reading, reading.push(token_id, logprobs))
                    elif prompt.tell_end and logprobs is not None:
                        reading.push_end(logprobs)
                    if sequence.finish is not None or reading.budget_spent:
                        return  # tokens behind this were made before the worker heard of it
                if update.finish_reason is not None:
                    self._tell(sequence, reading, reading.end(_reason(update, prompt)))
                    return
        raise WorkerDiedError("the worker ended this reply without a reason")

    async def _watch(self) -> None:
        """Tell how far the prompts are, whenever that has changed, until there is a token. That the worker has
        ended is told elsewhere."""
        last: dict[int, tuple[int, int | None]] = {}
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            try:
                status = await self.model.worker.inspect(whole=False)
            except WorkerDiedError:
                return
            if self._first_token_ns is not None:
                return
            found = {one.request_id: one for one in status.sequences}
            for sequence in self._sequences:
                one = found.get(f"{self.request_id}-{sequence.index}")
                if one is None or sequence.finish is not None:
                    continue
                computed = min(one.num_computed_tokens, one.num_prompt_tokens)
                if last.get(sequence.index) != (computed, one.position):
                    last[sequence.index] = computed, one.position
                    seconds = (time.perf_counter_ns() - self._started_ns) / 1e9
                    sequence.pending.append(
                        Progress(
                            one.num_prompt_tokens,
                            one.num_cached_tokens,
                            computed,
                            one.position,
                            seconds,
                        )
                    )
                    self._changed.set()

    def _tell(self, sequence: _Sequence, reading: Reading, events: list[Event]) -> None:
        sequence.num_reasoning_tokens = reading.num_reasoning_tokens
        if events:
            sequence.pending += events
            sequence.finish = reading.finish
            self._changed.set()

    def _note(self, sequence: _Sequence, update: SequenceUpdate, *, first: bool) -> None:
        if update.token_ids and self._first_token_ns is None:
            self._first_token_ns = time.perf_counter_ns()
        sequence.num_drafted_tokens += update.num_drafted
        sequence.num_accepted_tokens += update.num_accepted
        if first:
            sequence.num_cached_tokens = max(sequence.num_cached_tokens, update.num_cached_tokens)
            sequence.finding = sequence.finding or update.finding

    def _sequence_ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("a reply failed", exc_info=error)
        if not self._running:
            if self._watcher is not None:
                self._watcher.cancel()
            self._ended_ns = time.perf_counter_ns()
            self._on_end(self)


def _num_left(sequence: _Sequence) -> int:
    """Tokens that the sequence may still get."""
    return sequence.prompt.params.max_tokens - len(sequence.completion_ids)


def _num_shown(update: SequenceUpdate, params: SamplingParams) -> int:
    """How many of the tokens have text that belongs to the reply: the one that ended it has none."""
    ids = update.token_ids
    ended = update.finish_reason == "stop" and ids and ids[-1] in params.stop_token_ids
    return len(ids) - 1 if ended else len(ids)


def _reason(update: SequenceUpdate, prompt: Prompt) -> Literal["stop", "length"]:
    """Raises BadRequestError for a grammar that cannot be followed with this model's tokens."""
    if update.finish_reason in ("stop", "length"):
        return update.finish_reason
    if update.finish_reason == "refused":
        param = prompt.form.grammar_param
        raise BadRequestError(f"'{param}' cannot be enforced: {update.error}", param)
    raise WorkerDiedError(update.error or f"the worker ended this reply: {update.finish_reason}")
