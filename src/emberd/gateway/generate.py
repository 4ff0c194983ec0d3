"""Generation: the sequences of one request, from prompt ids to text, for every protocol alike.

Reads the worker's tokens as they come, turns them into text, finds stop strings and cancels what they end.
Knows nothing of HTTP; whoever consumes it may be slow, late or gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..errors import EmberdError, WorkerDiedError
from ..models.loaded import LoadedModel
from ..protocol import GenerateRequest, SamplingParams, SequenceUpdate
from ..text.stops import StopStrings

logger = logging.getLogger(__name__)

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One sequence to be generated."""

    token_ids: tuple[int, ...]
    params: SamplingParams
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """What became known of one sequence: new text, and at the end why it ended."""

    index: int
    text: str
    finish_reason: FinishReason | None = None


@dataclass(slots=True)
class _Sequence:
    index: int
    prompt: Prompt
    completion_ids: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0
    pending: str = ""  # text that nobody has taken yet
    finish_reason: FinishReason | None = None
    delivered: bool = False  # its finish has been taken

    def take(self) -> Delta | None:
        if self.delivered or (not self.pending and self.finish_reason is None):
            return None
        delta = Delta(self.index, self.pending, self.finish_reason)
        self.pending, self.delivered = "", self.finish_reason is not None
        return delta


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts over all sequences; a prompt that several sequences share counts once."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_completion_tokens: int


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

    def __len__(self) -> int:
        return len(self._sequences)

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Deltas as they come, all text that is there at once in one. Raises EmberdError after the last text."""
        while not self.finished:
            for delta in await self.take():
                yield delta

    @property
    def finished(self) -> bool:
        """Every sequence's finish has been taken."""
        return all(sequence.delivered for sequence in self._sequences)

    async def take(self, timeout: float | None = None) -> list[Delta]:
        """Waits for news, at most one delta a sequence; empty after `timeout` seconds without any."""
        timer = None
        if timeout is not None and not self._changed.is_set():
            timer = asyncio.get_running_loop().call_later(timeout, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._changed.clear()
        news = [delta for sequence in self._sequences if (delta := sequence.take())]
        if self._error is not None:
            if not news:
                raise self._error
            self._changed.set()
        return news

    async def whole(self) -> list[Delta]:
        """One delta a sequence, with all of its text. Raises EmberdError if any sequence failed."""
        texts = ["" for _ in self._sequences]
        reasons: list[FinishReason | None] = [None for _ in self._sequences]
        async for delta in self:
            texts[delta.index] += delta.text
            reasons[delta.index] = delta.finish_reason
        return [Delta(i, text, reasons[i]) for i, text in enumerate(texts)]

    def fail(self, error: EmberdError) -> None:
        """End everything that runs; whoever consumes gets the text so far, then `error`."""
        if self._error is None and not all(s.finish_reason for s in self._sequences):
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
            self._sequences[0].num_cached_tokens,
            sum(len(sequence.completion_ids) for sequence in self._sequences),
        )

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

    def prompt_ids(self, index: int) -> tuple[int, ...]:
        return self._sequences[index].prompt.token_ids

    def completion_ids(self, index: int) -> list[int]:
        return self._sequences[index].completion_ids

    async def _run(self, sequence: _Sequence) -> None:
        prompt = sequence.prompt
        request = GenerateRequest(
            f"{self.request_id}-{sequence.index}", prompt.token_ids, prompt.params
        )
        detokenizer = self.model.detokenizer()
        stops = StopStrings(prompt.stop)
        try:
            async with contextlib.aclosing(self.model.worker.generate(request)) as updates:
                async for update in updates:
                    self._note(sequence, update)
                    num_shown = _num_shown(update, prompt.params)
                    for place, token_id in enumerate(update.token_ids):
                        sequence.completion_ids.append(token_id)
                        if place < num_shown:
                            sequence.pending += stops.push(detokenizer.push((token_id,)))[0]
                        if stops.matched is not None:
                            break  # tokens behind a match were made before the worker heard of it
                    if stops.matched is None and update.finish_reason is not None:
                        sequence.pending += stops.push(detokenizer.finish())[0] + stops.finish()
                        sequence.finish_reason = _reason(update)
                    if stops.matched is not None:
                        sequence.finish_reason = "stop"
                    self._changed.set()
                    if sequence.finish_reason is not None:
                        return
            raise WorkerDiedError("the worker ended this reply without a reason")
        except EmberdError as error:
            self.fail(error)
        except Exception:
            self.fail(EmberdError("internal error; the daemon's log tells more"))
            raise

    def _note(self, sequence: _Sequence, update: SequenceUpdate) -> None:
        if update.token_ids and self._first_token_ns is None:
            self._first_token_ns = time.perf_counter_ns()
        sequence.num_cached_tokens = max(sequence.num_cached_tokens, update.num_cached_tokens)

    def _sequence_ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("a reply failed", exc_info=error)
        if not self._running:
            self._ended_ns = time.perf_counter_ns()
            self._on_end(self)


def _num_shown(update: SequenceUpdate, params: SamplingParams) -> int:
    """How many of the tokens have text that belongs to the reply: the one that ended it has none."""
    ids = update.token_ids
    ended = update.finish_reason == "stop" and ids and ids[-1] in params.stop_token_ids
    return len(ids) - 1 if ended else len(ids)


def _reason(update: SequenceUpdate) -> FinishReason:
    if update.finish_reason in ("stop", "length"):
        return update.finish_reason
    raise WorkerDiedError(update.error or f"the worker ended this reply: {update.finish_reason}")
