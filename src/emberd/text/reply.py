"""Reading a reply: the text of its tokens to reasoning, answer and tool calls, as it comes.

Puts together what reasoning.py and tools/ do. Knows nothing of the wire and nothing of stop strings.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from .parts import Part, TextDelta
from .reasoning import ThinkingSplitter, ThinkingTags


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """How replies to one request are to be read."""

    thinking: ThinkingTags | None = None
    inside_thinking: bool = False  # the prompt ends in an open tag
    thinking_budget: int | None = None  # reasoning tokens; then the span is closed by force

    @property
    def marks(self) -> tuple[str, ...]:
        """Names that must reach the parser even where they are control tokens."""
        return self.thinking.tokens if self.thinking else ()

    def parser(self, controls: Collection[str] = ()) -> ReplyParser:
        """`controls`: those of `marks` that are control tokens."""
        return ReplyParser(self, controls)


PLAIN = ReplyFormat()


class ReplyParser:
    """One reply. The parts do not depend on how its text was cut."""

    def __init__(self, form: ReplyFormat, controls: Collection[str]) -> None:
        self._thinking = (
            ThinkingSplitter(form.thinking, controls, inside=form.inside_thinking)
            if form.thinking
            else None
        )
        self.num_calls = 0

    @property
    def thinking(self) -> bool:
        """Inside a thinking span."""
        return self._thinking is not None and self._thinking.inside

    def push(self, text: str) -> list[Part]:
        if self._thinking is None:
            return [TextDelta(text)] if text else []
        return list(self._thinking.push(text))

    def finish(self, *, cut: bool) -> list[Part]:
        """What is still to be told when no more comes; `cut`: the token limit ended it."""
        return list(self._thinking.finish()) if self._thinking else []
