"""Reading a reply: the text of its tokens to reasoning, answer and tool calls, as it comes.

Puts together what reasoning.py and tools/ do. Knows nothing of the wire and nothing of stop strings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from .parts import Part, ReasoningDelta, TextDelta
from .reasoning import CHANNELS, ThinkingSplitter, ThinkingTags
from .sections import SectionReader, Sections
from .tools import channels
from .tools.body import Tools
from .tools.form import ToolSyntax
from .tools.reader import CallReader
from .wrapping import Unwrapper


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """How replies to one request are to be read."""

    thinking: ThinkingTags | None = None
    inside_thinking: bool = False  # the prompt ends in an open tag
    thinking_budget: int | None = None  # reasoning tokens; then the span is closed by force
    syntax: ToolSyntax | None = (
        None  # of calls; None: the request has no tools, and calls stay text
    )
    tools: Tools | None = None  # with `syntax`
    one_call: bool = False  # a second call is not to be told: it ends the reply
    calls_only: bool = False  # text behind a call is not to be told: it ends the reply
    grammar: str | None = None  # of the whole reply, see grammar/reply.py
    grammar_behind_thinking: str | None = (
        None  # of what follows once the budget has closed the span
    )
    grammar_param: str = ""  # the field that the grammar came from
    sections: Sections | None = None  # that the reply has
    unheld: tuple[str, ...] = ()  # what was asked of calls and the grammar does not hold

    @property
    def in_channels(self) -> bool:
        return self.thinking is not None and self.thinking.open == CHANNELS.open

    @property
    def marks(self) -> tuple[str, ...]:
        """Names that must reach the parser even where they are control tokens."""
        if self.in_channels:
            return channels.MARKS
        of_thinking: tuple[str, ...] = self.thinking.tokens if self.thinking else ()
        if self.sections is not None:
            of_thinking = self.sections.tokens
        return of_thinking + (self.syntax.marks if self.syntax else ())

    def parser(self, controls: Collection[str] = ()) -> Parser:
        """`controls`: those of `marks` that are control tokens."""
        if self.in_channels:
            return channels.ChannelReader(has_tools=self.tools is not None)
        if self.sections is not None:
            return SectionReader(
                self.sections,
                self._calls(controls),
                self.tools.schemas if self.tools else (),
                kept=self.syntax.openings if self.syntax else (),
                controls=controls,
                inside=self.inside_thinking,
            )
        return ReplyParser(self, self._calls(controls), controls)

    def _calls(self, controls: Collection[str]) -> CallReader | None:
        if self.syntax is None or self.tools is None:
            return None
        return CallReader(self.syntax, self.tools, controls)


PLAIN = ReplyFormat()


class Parser(Protocol):
    """Reads one reply. The parts together do not depend on how its text was cut."""

    @property
    def num_calls(self) -> int: ...

    @property
    def thinking(self) -> bool:
        """Inside a thinking span."""

    @property
    def held(self) -> str:
        """Text of which it is not certain yet what it is."""

    def push(self, text: str) -> list[Part]: ...

    def finish(self, *, cut: bool) -> list[Part]:
        """What is still to be told when no more comes; `cut`: the token limit ended it."""


class ReplyParser:
    """Tags of thinking first, then calls in what is outside of them."""

    def __init__(
        self, form: ReplyFormat, calls: CallReader | None, controls: Collection[str]
    ) -> None:
        tags = form.thinking
        self._hidden = [name for name in controls if tags and name in tags.tokens]
        self._splitter = (
            ThinkingSplitter(tags, controls, inside=form.inside_thinking) if tags else None
        )
        self._unwrapper = Unwrapper(tags.answer) if tags and tags.answer else None
        self._calls = calls

    @property
    def num_calls(self) -> int:
        return self._calls.num_calls if self._calls else 0

    @property
    def thinking(self) -> bool:
        return self._splitter is not None and self._splitter.inside

    @property
    def held(self) -> str:
        of_calls = self._calls.held if self._calls else ""
        return of_calls + (self._splitter.held if self._splitter else "")

    def push(self, text: str) -> list[Part]:
        if self._splitter is None:
            return self._answer(text)
        return self._split(self._splitter.push(text))

    def finish(self, *, cut: bool) -> list[Part]:
        parts = self._split(self._splitter.finish()) if self._splitter else []
        parts += self._answer(self._unwrapper.finish()) if self._unwrapper else []
        return parts + (self._calls.finish(cut=cut) if self._calls else [])

    def _split(self, found: Iterable[ReasoningDelta | TextDelta]) -> list[Part]:
        parts: list[Part] = []
        for part in found:
            if not isinstance(part, TextDelta):
                parts.append(part)
                continue
            text = part.text
            for name in self._hidden:
                text = text.replace(name, "")
            if self._unwrapper is not None:
                text = self._unwrapper.push(text)
            parts += self._answer(text)
        return parts

    def _answer(self, text: str) -> list[Part]:
        if self._calls is not None:
            return self._calls.push(text)
        return [TextDelta(text)] if text else []
