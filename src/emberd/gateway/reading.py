"""Reading one sequence: token ids to events. Text, its parts, stop strings, the thinking budget.

Stop strings are looked for in the answer alone, not in reasoning or calls. Knows nothing of workers and HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..models.loaded import LoadedModel
from ..protocol import SamplingParams
from ..text.parts import Part, TextDelta, ToolCallStart
from ..text.reply import PLAIN, ReplyFormat
from ..text.stops import StopStrings
from .events import Event, Finish


@dataclass(frozen=True, slots=True)
class Prompt:
    """One sequence to be generated."""

    token_ids: tuple[int, ...]
    params: SamplingParams
    stop: tuple[str, ...] = ()
    form: ReplyFormat = PLAIN


class Reading:
    """`finish` is set with the event that ends the sequence; after it nothing may be pushed."""

    def __init__(self, model: LoadedModel, prompt: Prompt) -> None:
        form = prompt.form
        controls = model.tokenizer.controls(form.marks)
        self._detokenizer = model.detokenizer(controls.values())
        self._parser = form.parser(controls)
        self._stops = StopStrings(prompt.stop)
        self._budget = form.thinking_budget
        self._one_call = form.one_call
        self.closing_ids = (
            model.text.control_ids(form.thinking.forced_close)
            if form.thinking is not None and self._budget is not None
            else []
        )
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

    def push(self, token_id: int) -> list[Event]:
        """What one more token tells. A token counts as reasoning where it is in a span or opens it."""
        before = self._parser.thinking
        parts = self._parser.push(self._detokenizer.push((token_id,)))
        self.num_reasoning_tokens += before or self._parser.thinking
        return self._events(parts)

    def force_close(self) -> list[Event]:
        """Close the span as if the model had: `closing_ids` are the tokens."""
        return [event for token_id in self.closing_ids for event in self.push(token_id)]

    def end(self, reason: Literal["stop", "length"]) -> list[Event]:
        """The last events. An unfinished character is not shown."""
        text = self._detokenizer.finish()
        cut = reason == "length"
        events = self._events([*self._parser.push(text), *self._parser.finish(cut=cut)])
        if self.finish is None:
            if held := self._stops.finish():
                events.append(TextDelta(held))
            called = self._parser.num_calls and reason == "stop"
            events.append(self._finish(Finish("tool_calls" if called else reason)))
        return events

    def _events(self, parts: Iterable[Part]) -> list[Event]:
        events: list[Event] = []
        for part in parts:
            if self._one_call and isinstance(part, ToolCallStart) and part.index > 0:
                events.append(self._finish(Finish("tool_calls")))
                break
            if not isinstance(part, TextDelta):
                if held := self._stops.finish():
                    events.append(TextDelta(held))
                events.append(part)
                continue
            text, matched = self._stops.push(part.text)
            if text:
                events.append(TextDelta(text))
            if matched is not None:
                called = self._parser.num_calls
                events.append(self._finish(Finish("tool_calls" if called else "stop", matched)))
                break
        return events

    def _finish(self, finish: Finish) -> Finish:
        self.finish = finish
        return finish
