"""What a reply is made of, as parsers find it: reasoning, text, tool calls.

A leaf: knows neither tags nor the wire.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the model thinks before it answers; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer itself; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins. `index` counts a reply's calls from 0 without gaps, and no call begins before the last
    one's arguments are done. `id` is 24 random letters and digits: dialects put their own prefix before it."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of a call's arguments. A call's fragments together are the text of one JSON object, except where
    the token limit cut the call."""

    index: int
    fragment: str


Part = ReasoningDelta | TextDelta | ToolCallStart | ToolCallArguments
