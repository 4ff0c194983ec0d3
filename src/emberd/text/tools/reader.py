"""Finds tool calls in an answer as it comes: nothing of a call or its tags is ever shown as text.

What only begins like a call is given back whole. Knows no notation: those are in syntax.py.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Collection, Sequence

from ..marks import first_mark, possible_beginning
from ..parts import Part, TextDelta, ToolCallArguments, ToolCallStart
from .body import Begin, Body, MakeBody, NotACallError, Piece, Tools
from .form import ToolSyntax

_LETTERS = string.ascii_letters + string.digits


class CallReader:
    """One answer. The parts together do not depend on how the text was cut. Blanks before a call and between calls are
    dropped. `controls`: tags that are control tokens, of which nothing is given back either."""

    def __init__(self, syntax: ToolSyntax, tools: Tools, controls: Collection[str]) -> None:
        self._syntax, self._tools, self._controls = syntax, tools, controls
        self._held = ""
        self._body: Body | None = None
        self._opening = ""  # what the body stands behind: blanks and a tag
        self._raw = ""  # what the body was given
        self._first_call = 0  # of the body
        self._at_start = True  # no text was shown yet
        self._after_call = False  # only blanks and closings since the last call
        self._skips = False  # a call broke off behind what was told of it
        self.num_calls = 0

    @property
    def held(self) -> str:
        """What may still be shown as text."""
        untold = self._body is not None and self.num_calls == self._first_call
        return (self._opening + self._raw if untold else "") + self._held

    def push(self, text: str) -> list[Part]:
        self._held += text
        parts: list[Part] = []
        while self._in_body(parts) if self._body is not None else self._in_text(parts):
            pass
        return parts

    def finish(self, *, cut: bool) -> list[Part]:
        """What is left when no more comes. Of a call that was `cut` by the token limit, nothing more."""
        parts: list[Part] = []
        if self._body is not None:
            try:
                if not cut:
                    self._tell(self._body.finish(), parts)
            except NotACallError:
                if self.num_calls == self._first_call:
                    self._show(self._opening + self._raw, parts)
            self._body = None
        held, self._held = "" if self._skips else self._held, ""
        closing = any(mark.startswith(held.strip()) for mark in self._syntax.closings)
        if not self._after_call or (held.strip() and not closing):
            self._show(held, parts)
        return parts

    def _in_body(self, parts: list[Part]) -> bool:
        """One step within a call; True: there is more to do."""
        assert self._body is not None
        text, self._held = self._held, ""
        self._raw += text
        try:
            pieces, rest = self._body.push(text)
            self._tell(pieces, parts)
        except NotACallError as fault:
            self._body = None
            self._tell(fault.pieces, parts)
            if self.num_calls == self._first_call:  # nothing of it was told
                self._show(self._opening, parts)
                self._at_start = self._after_call = False
                self._held = self._raw
            else:
                self._held, self._after_call, self._skips = fault.rest, True, True
            return True
        if rest is None:
            return False
        self._body, self._held = None, rest
        self._after_call = self.num_calls > 0
        return True

    def _in_text(self, parts: list[Part]) -> bool:
        """One step outside of calls."""
        syntax = self._syntax
        if self._skips:
            return self._skipped()
        if self._after_call:
            self._held = self._held.lstrip()
            for mark in syntax.closings:
                if self._held.startswith(mark):
                    self._held = self._held[len(mark) :]
                    return True
        bare = self._bare_start()
        if isinstance(bare, str):
            assert syntax.bare is not None
            self._begin(syntax.bare, bare, self._held[len(bare) :])
            return True
        if bare:
            return False  # it may become one
        marks = (*syntax.openings, *syntax.wrappers)
        found = first_mark(self._held, marks)
        if found is not None:
            place, mark = found
            before, behind = self._held[:place], self._held[place + len(mark) :]
            text = before.rstrip()
            blanks = before[len(text) :]
            self._show(text, parts)
            if mark in syntax.openings:
                self._begin(syntax.openings[mark], blanks + mark, behind)
            else:
                self._held = blanks + behind
            return True
        if self._after_call:
            marks += syntax.closings
        keep = possible_beginning(self._held, marks)
        shown = self._held[: len(self._held) - keep].rstrip()
        self._held = self._held[len(shown) :]
        self._show(shown, parts)
        return False

    def _skipped(self) -> bool:
        """What is broken behind a call is dropped, up to the next tag of the notation."""
        marks = (*self._syntax.openings, *self._syntax.wrappers, *self._syntax.closings)
        found = first_mark(self._held, marks)
        if found is None:
            keep = possible_beginning(self._held, marks)
            self._held = self._held[len(self._held) - keep :]
            return False
        self._held, self._skips = self._held[found[0] :], False
        return True

    def _bare_start(self) -> str | bool:
        """What stands before a call without a tag that begins here (blanks, a fence); True: it may come."""
        starts = self._syntax.bare_starts
        if not starts or not (self._at_start or self._after_call):
            return False
        if self._syntax.bare_once and self.num_calls:
            return False
        text = self._held.lstrip()
        for start in starts:
            if text.startswith(start):
                blanks = len(self._held) - len(text)
                return self._held[: blanks + len(start.rstrip("{["))]
        return any(start.startswith(text) for start in starts)

    def _begin(self, make: MakeBody, opening: str, behind: str) -> None:
        self._body, self._opening, self._raw = make(self._tools), opening, ""
        self._first_call, self._held = self.num_calls, behind

    def _tell(self, pieces: Sequence[Piece], parts: list[Part]) -> None:
        for piece in pieces:
            if isinstance(piece, Begin):
                parts.append(ToolCallStart(self.num_calls, new_id(), piece.name))
                self.num_calls += 1
            elif piece:
                parts.append(ToolCallArguments(self.num_calls - 1, piece))

    def _show(self, text: str, parts: list[Part]) -> None:
        for mark in self._controls:
            text = text.replace(mark, "")
        if text:
            self._at_start = self._after_call = False
            parts.append(TextDelta(text))


def new_id() -> str:
    """24 letters and digits, as ToolCallStart wants them."""
    return "".join(secrets.choice(_LETTERS) for _ in range(24))
