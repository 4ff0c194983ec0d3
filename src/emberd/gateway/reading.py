"""Reading one sequence: token ids to events. Text, its parts, stop strings, the thinking budget.

Stop strings are looked for in the answer alone, not in reasoning or calls. Knows nothing of workers and HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..models.loaded import LoadedModel
from ..protocol import NORMAL, SamplingParams, TokenLogprobs
from ..text.parts import Part, TextDelta, ToolCallStart
from ..text.reply import PLAIN, ReplyFormat
from ..text.stops import StopStrings
from .events import Event, Finish, Logprobs


@dataclass(frozen=True, slots=True)
class Prompt:
    """One sequence to be generated."""

    token_ids: tuple[int, ...]
    params: SamplingParams
    stop: tuple[str, ...] = ()
    form: ReplyFormat = PLAIN
    prompt_logprobs: int | None = None  # likeliest ones told at each place of the prompt
    tell_end: bool = False  # log-probabilities include the token that ends the reply
    cache_salt: str | None = ""  # as in GenerateRequest
    priority: int = NORMAL  # as in GenerateRequest
    is_copy: bool = False  # of the one before it, for `n`


class Reading:
    """`finish` is set with the event that ends the sequence; after it nothing may be pushed."""

    def __init__(self, model: LoadedModel, prompt: Prompt) -> None:
        form = prompt.form
        controls = model.tokenizer.controls(form.marks)
        self._detokenizer = model.detokenizer(controls.values())
        self._parser = form.parser(controls)
        self._stops = StopStrings(prompt.stop)
        self._budget = form.thinking_budget
        self._one_call, self._calls_only = form.one_call, form.calls_only
        self._called = False  # a call was told
        self.closing_ids = (
            model.text.control_ids(form.thinking.forced_close)
            if form.thinking is not None and self._budget is not None
            else []
        )
        self._untold: list[tuple[TokenLogprobs, int]] = []  # with the bytes that the token writes
        self.num_reasoning_tokens = 0
        self.finish: Finish | None = None

    @property
    def budget_spent(self) -> bool:
        """The model still thinks and has used up what it may."""
        return (
            self._budget is not None
            and self._parser.thinking
            and self.num_reasoning_tokens >= self._budget
        )

    def push(self, token_id: int, logprobs: TokenLogprobs | None = None) -> list[Event]:
        """What one more token tells. A token counts as reasoning where it is in a span or opens it."""
        if logprobs is not None:
            self._untold.append((logprobs, len(self._detokenizer.bytes_of(token_id))))
        before = self._parser.thinking
        parts = self._parser.push(self._detokenizer.push((token_id,)))
        self.num_reasoning_tokens += before or self._parser.thinking
        return self._told(self._events(parts))

    def push_end(self, logprobs: TokenLogprobs) -> None:
        """The token that ends the reply, which writes nothing."""
        self._untold.append((logprobs, 0))

    def force_close(self) -> list[Event]:
        """Close the span as if the model had: `closing_ids` are the tokens."""
        return [event for token_id in self.closing_ids for event in self.push(token_id)]

    def end(self, reason: Literal["stop", "length"]) -> list[Event]:
        """The last events. An unfinished character is not shown."""
        text = self._detokenizer.finish()
        cut = reason == "length"
        parts = [*self._parser.push(text), *self._parser.finish(cut=cut)]
        if cut and self._calls_only and self._called:  # what may have become a further call
            parts = [part for part in parts if not isinstance(part, TextDelta)]
        events = self._events(parts)
        if self.finish is None:
            if held := self._stops.finish():
                events.append(TextDelta(held))
            called = self._parser.num_calls and reason == "stop"
            events.append(self._finish(Finish("tool_calls" if called else reason)))
        return self._told(events)

    def _events(self, parts: Iterable[Part]) -> list[Event]:
        events: list[Event] = []
        for part in parts:
            if self._one_call and isinstance(part, ToolCallStart) and part.index > 0:
                events.append(self._finish(Finish("tool_calls")))
                break
            if self._calls_only and self._called and isinstance(part, TextDelta):
                self._drop_untold(_num_bytes(part.text))
                events.append(self._finish(Finish("tool_calls")))
                break
            if not isinstance(part, TextDelta):
                self._called = self._called or isinstance(part, ToolCallStart)
                if held := self._stops.finish():
                    events.append(TextDelta(held))
                events.append(part)
                continue
            held = self._stops.held
            text, matched = self._stops.push(part.text)
            if text:
                events.append(TextDelta(text))
            if matched is not None:
                self._drop_untold(_num_bytes((held + part.text)[len(text) :]))
                called = self._parser.num_calls
                events.append(self._finish(Finish("tool_calls" if called else "stop", matched)))
                break
        return events

    def _told(self, events: list[Event]) -> list[Event]:
        """With the log-probabilities of tokens of which something is told, in front of the finish."""
        if not self._untold or not events:
            return events
        later: list[tuple[TokenLogprobs, int]] = []
        if self.finish is None:
            later = self._drop_untold(_num_bytes(self._stops.held))
        told = Logprobs(tuple(entry for entry, _ in self._untold))
        self._untold = later
        place = len(events) - isinstance(events[-1], Finish)
        return [*events[:place], told, *events[place:]] if told.entries else events

    def _drop_untold(self, num_bytes: int) -> list[tuple[TokenLogprobs, int]]:
        """Take away tokens that write nothing before the last `num_bytes` of the text, and what is held besides."""
        tail = num_bytes + _num_bytes(self._parser.held) + self._detokenizer.num_held
        place = len(self._untold)
        while place > 0 and 0 < tail >= self._untold[place - 1][1]:
            place -= 1
            tail -= self._untold[place][1]
        dropped, self._untold = self._untold[place:], self._untold[:place]
        return dropped

    def _finish(self, finish: Finish) -> Finish:
        self.finish = finish
        return finish


def _num_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
