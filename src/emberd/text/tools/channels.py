"""Replies in channels, as gpt-oss writes them: analysis is reasoning, commentary to a function a call.

`<|channel|>NAME to=functions.F<|message|>TEXT<|end|><|start|>assistant<|channel|>…`. Takes the place of the
splitter of thinking and of the reader of calls, both.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ..marks import first_mark, possible_beginning
from ..parts import Part, ReasoningDelta, TextDelta, ToolCallArguments, ToolCallStart
from ..reasoning import CHANNEL_MARK as MARK
from .json_calls import JsonText
from .reader import new_id

_MESSAGE, _START = "<|message|>", "<|start|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START, MARK)
MARKS = (*_ENDS, _MESSAGE, "<|constrain|>")
_HEADER_STARTS = (MARK, _START, _MESSAGE, "assistant", "to=", *_ENDS)


class ChannelReader:
    """One reply, which begins behind `<|start|>assistant`. Without `has_tools` a call is text."""

    def __init__(self, *, has_tools: bool) -> None:
        self._has_tools = has_tools
        self.held = ""
        self._header = True  # before the text of a message
        self._show: Callable[[str], Part] = TextDelta
        self._arguments: JsonText | None = None  # of the call that is being read
        self._begun = False  # the message has shown something
        self.num_calls = 0

    @property
    def thinking(self) -> bool:
        return not self._header and self._show is ReasoningDelta

    def push(self, text: str) -> list[Part]:
        self.held += text
        parts: list[Part] = []
        while self._in_header(parts) if self._header else self._in_message(parts):
            pass
        return parts

    def finish(self, *, cut: bool) -> list[Part]:
        parts: list[Part] = []
        if not self._header:
            self._tell(self.held.rstrip() if self._show is ReasoningDelta else self.held, parts)
            self._end_message(parts, cut=cut)
        self.held = ""
        return parts

    def _in_header(self, parts: list[Part]) -> bool:
        text = self.held.lstrip()
        likely = any(text.startswith(s) or s.startswith(text) for s in _HEADER_STARTS)
        if not likely:  # a model that forgot its channels
            self._begin_message("", parts)
            return True
        place = self.held.find(_MESSAGE)
        if place < 0:
            return False
        header, self.held = self.held[:place], self.held[place + len(_MESSAGE) :]
        self._begin_message(header, parts)
        return True

    def _begin_message(self, header: str, parts: list[Part]) -> None:
        self._header, self._begun, self._arguments = False, False, None
        recipient = re.search(r"to=(?:functions\.)?([\w.\-]+)", header)
        channel = re.search(r"<\|channel\|>\s*(\w+)", header)
        self._show = TextDelta
        if recipient is not None and self._has_tools:
            self._arguments = JsonText()
            parts.append(ToolCallStart(self.num_calls, new_id(), recipient[1]))
            self.num_calls += 1
        elif channel is not None and channel[1] == "analysis":
            self._show = ReasoningDelta

    def _in_message(self, parts: list[Part]) -> bool:
        found = first_mark(self.held, _ENDS)
        if found is None:
            keep = possible_beginning(self.held, _ENDS)
            text = self.held[: len(self.held) - keep]
            text = text.rstrip() if self._show is ReasoningDelta else text
            self.held = self.held[len(text) :]
            self._tell(text, parts)
            return False
        place, mark = found
        text = self.held[:place]
        self._tell(text.rstrip() if self._show is ReasoningDelta else text, parts)
        self._end_message(parts, cut=False)
        behind = self.held[place + len(mark) :]
        self.held = mark + behind if mark in (_START, MARK) else behind
        self._header = True
        return True

    def _tell(self, text: str, parts: list[Part]) -> None:
        if self._arguments is not None:
            json_text = self._arguments
            shown = ""
            for character in text:
                if json_text.depth or character == "{":  # blanks around the object are left out
                    shown += json_text.push(character)
            if shown:
                self._begun = True
                parts.append(ToolCallArguments(self.num_calls - 1, shown))
            return
        text = text if self._begun else text.lstrip()
        if text:
            self._begun = True
            parts.append(self._show(text))

    def _end_message(self, parts: list[Part], *, cut: bool) -> None:
        if self._arguments is not None and not self._begun and not cut:
            parts.append(ToolCallArguments(self.num_calls - 1, "{}"))
        self._arguments = None
