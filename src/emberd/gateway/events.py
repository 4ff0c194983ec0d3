"""The one event stream of a reply, which each dialect turns into its own bytes.

Order within a sequence: parts (reasoning, text, tool calls, as the model makes them), then one Finish.
Nothing of one part is sent inside another. Where log-probabilities are asked for, those of the prompt come first,
and those of tokens behind the part that they tell. Knows no dialect.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ..protocol import TokenLogprobs
from ..text.parts import ReasoningDelta, TextDelta, ToolCallArguments, ToolCallStart

__all__ = [
    "Event",
    "Finish",
    "FinishReason",
    "Logprobs",
    "Progress",
    "PromptLogprobs",
    "ReasoningDelta",
    "Reply",
    "TextDelta",
    "Told",
    "ToolCall",
    "ToolCallArguments",
    "ToolCallStart",
]

FinishReason = Literal["stop", "length", "tool_calls"]
"""`tool_calls`: it ended by itself and holds a call. A call that the token limit cut ends by `length`."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The last event of a sequence. `stop_sequence` is the caller's stop string that ended it, if one did."""

    reason: FinishReason
    stop_sequence: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a prompt is, before the first token, for those who ask. `position`: in the queue; None: it runs."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_computed_tokens: int  # cached ones among them
    position: int | None
    seconds: float  # since the request was started


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Of the prompt's tokens behind the first."""

    entries: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of sampled tokens: those of the event before it and, in between, of tokens that tell nothing (tags)."""

    entries: tuple[TokenLogprobs, ...]


Event = (
    Progress
    | PromptLogprobs
    | Logprobs
    | ReasoningDelta
    | TextDelta
    | ToolCallStart
    | ToolCallArguments
    | Finish
)


class Told(NamedTuple):
    """An event, and the sequence of the request that it belongs to."""

    sequence: int
    event: Event


@dataclass(slots=True)
class ToolCall:
    """A whole call. `arguments` is JSON text, cut where the token limit cut it."""

    id: str
    name: str
    arguments: str = ""

    def parsed(self) -> dict[str, Any] | None:
        """The arguments as an object; None: they are not one, as where the token limit cut them."""
        try:
            value = json.loads(self.arguments)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


@dataclass(slots=True)
class Reply:
    """All of a sequence's events put together."""

    reasoning: str = ""
    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    reason: FinishReason = "stop"
    stop_sequence: str | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # where they are asked for
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()

    def add(self, event: Event) -> None:
        match event:
            case ReasoningDelta(text):
                self.reasoning += text
            case TextDelta(text):
                self.text += text
            case ToolCallStart(_, id, name):
                self.calls.append(ToolCall(id, name))
            case ToolCallArguments(index, fragment):
                self.calls[index].arguments += fragment
            case Logprobs(entries):
                self.logprobs += entries
            case PromptLogprobs(entries):
                self.prompt_logprobs = entries
            case Finish(reason, stop_sequence):
                self.reason, self.stop_sequence = reason, stop_sequence


def merged(events: Iterable[Event]) -> list[Event]:
    """The same events with neighbours of one kind made one, across the log-probabilities behind them."""
    result: list[Event] = []
    told: list[TokenLogprobs] = []  # behind the last of the result
    for event in events:
        match (result[-1] if result else None), event:
            case _, Logprobs(entries):
                told += entries
            case ReasoningDelta(before), ReasoningDelta(text):
                result[-1] = ReasoningDelta(before + text)
            case TextDelta(before), TextDelta(text):
                result[-1] = TextDelta(before + text)
            case ToolCallArguments(i, before), ToolCallArguments(j, fragment) if i == j:
                result[-1] = ToolCallArguments(i, before + fragment)
            case _:
                if told:
                    result.append(Logprobs(tuple(told)))
                    told = []
                result.append(event)
    return [*result, Logprobs(tuple(told))] if told else result


class Piece(NamedTuple):
    """An event and the log-probabilities of what it tells; of what tells nothing, without an event."""

    sequence: int
    event: Event | None
    logprobs: tuple[TokenLogprobs, ...] = ()


def pieces(news: Iterable[Told]) -> Iterator[Piece]:
    """Of events of which each has its log-probabilities directly behind it."""
    last: Told | None = None
    for told in news:
        if isinstance(told.event, Logprobs):
            paired = last is not None and last.sequence == told.sequence
            if last is not None and not paired:
                yield Piece(*last)
            event = last.event if last is not None and paired else None
            yield Piece(told.sequence, event, told.event.entries)
            last = None
        else:
            if last is not None:
                yield Piece(*last)
            last = told
    if last is not None:
        yield Piece(*last)
