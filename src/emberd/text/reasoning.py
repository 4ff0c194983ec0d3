"""Thinking: which tags a model's template puts around it, and splitting a reply at them.

Knows nothing of tool calls, of tokens, or of what callers ask for.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .marks import first_mark, possible_beginning
from .messages import REASONING_NAMES
from .parts import ReasoningDelta, TextDelta
from .sandbox import variables_of
from .sections import KIMI, MUSE, SOLAR

EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
_OFF = ("none", "no_think")
_SWITCHES = ("enable_thinking", "thinking", "thinking_mode")
_MODES = {True: "enabled", False: "disabled"}  # what `thinking_mode` is, MiniMax's


@dataclass(frozen=True, slots=True)
class ThinkingTags:
    """`forced_close` is what ends a span for a model that goes on thinking: the tag, as its templates write it.
    `answer` are tags around what comes behind the span."""

    open: str
    close: str
    forced_close: str
    open_token: str = ""  # the control token in `open`, where that is more than the token
    answer: tuple[str, str] | None = None

    @property
    def tokens(self) -> tuple[str, str]:
        """Names that may be control tokens; the text of a span is between them."""
        return self.open_token or self.open, self.close


@dataclass(frozen=True, slots=True)
class Thinking:
    """What a template tells of its model's thinking."""

    tags: ThinkingTags
    switches: tuple[str, ...]  # variables that turn it on and off; none: it always thinks
    words: tuple[str, ...]  # that its variable `reasoning_effort` knows; none: no such variable
    waits: bool = False  # it does not think unless it is told an effort

    def variables(self, mode: bool | None, effort: str | None) -> Mapping[str, Any]:
        """Variables that tell the template; `mode` None leaves it to the template."""
        variables: dict[str, Any] = {}
        if mode is not None:
            variables = {
                name: _MODES[mode] if name == "thinking_mode" else mode for name in self.switches
            }
        if mode is True and self.waits:
            effort = effort or "high"
        off = next((word for word in self.words if word in _OFF), None)
        if mode is False and off is not None:
            variables["reasoning_effort"] = off
        elif mode is not False and effort is not None and self.efforts:
            wanted = EFFORTS.index(effort)
            variables["reasoning_effort"] = min(
                self.efforts, key=lambda known: abs(EFFORTS.index(known) - wanted)
            )
        return variables

    @property
    def efforts(self) -> tuple[str, ...]:
        return tuple(word for word in self.words if word not in _OFF)


_TAGS = tuple(
    ThinkingTags(*tags)
    for tags in (
        ("<think>", "</think>", "\n</think>\n\n"),
        ("<seed:think>", "</seed:think>", "\n</seed:think>\n"),
        ("[THINK]", "[/THINK]", "[/THINK]"),
        ("<|START_THINKING|>", "<|END_THINKING|>", "<|END_THINKING|>"),
        ("<|inner_prefix|>", "<|inner_suffix|>", "<|inner_suffix|>"),
        ("<|channel>thought\n", "<channel|>", "<channel|>", "<|channel>"),
        ("◁think▷", "◁/think▷", "◁/think▷"),
        ("<mm:think>", "</mm:think>", "</mm:think>"),
        (
            "Here are my reasoning steps:\n",  # Apriel's
            "[BEGIN FINAL RESPONSE]",
            "\n[BEGIN FINAL RESPONSE]\n",
            "",
            ("", "[END FINAL RESPONSE]"),
        ),
    )
)

_ANSWERS = (("<response>", "</response>"), ("<answer>", "</answer>"))  # Granite's, Hunyuan's
_HUNYUAN = ("<|extra_0|>", "<｜hy_Assistant｜>")  # its models answer in tags that no template shows
_BY_MARK = {  # a text of templates in which the closing tag does not stand as models write it
    "</think{}>": ThinkingTags(
        "<think:opensource>",
        "</think:opensource>",
        "\n</think:opensource>",  # Tencent's
    ),
    # Of replies in sections, which sections.py takes apart: up to where the answer's section may begin.
    MUSE.mark: ThinkingTags(
        " to=self<|message|>", "<|eom|><|start|>assistant", "<|eom|><|start|>assistant"
    ),
    KIMI.mark: ThinkingTags(
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|><|open|>response<|sep|>",
        "<|close|>think<|sep|><|open|>response<|sep|>",
    ),
    SOLAR.mark: ThinkingTags("<|think|>", "<|end|><|begin|>assistant", "<|end|><|begin|>assistant"),
}

CHANNEL_MARK = "<|channel|>"
CHANNEL_FINAL = f"{CHANNEL_MARK}final<|message|>"
CHANNELS = ThinkingTags(
    f"{CHANNEL_MARK}analysis<|message|>",
    "<|end|>",
    f"<|end|><|start|>assistant{CHANNEL_FINAL}",
)
"""Of replies in channels, which tools/channels.py reads."""


@lru_cache(maxsize=64)
def thinking_of(template: str) -> Thinking | None:
    """How a model with this chat template thinks; None: it does not."""
    if CHANNEL_MARK in template and "<|message|>" in template:
        return Thinking(CHANNELS, (), ("low", "medium", "high"))
    told = (tags for mark, tags in _BY_MARK.items() if mark in template)
    tags = next(told, None) or next((tags for tags in _TAGS if tags.close in template), None)
    if tags is None:
        return None
    for answer in _ANSWERS:
        if all(tag in template for tag in answer):
            tags = dataclasses.replace(tags, answer=answer)
    if any(name in template for name in _HUNYUAN):
        tags = dataclasses.replace(tags, answer=_ANSWERS[1])
    variables = variables_of(template)
    switches = tuple(name for name in _SWITCHES if name in variables)
    words: tuple[str, ...] = ()
    if "reasoning_effort" in variables:
        words = tuple(e for e in (*_OFF, *EFFORTS) if f"'{e}'" in template or f'"{e}"' in template)
    return Thinking(tags, switches, words, waits="no_think" in words)


@lru_cache(maxsize=64)
def reasoning_name(template: str) -> str:
    """The key of a message under which a template reads past reasoning."""
    for name in REASONING_NAMES:
        if re.search(rf"\.{name}\b|\[['\"]{name}['\"]\]", template):
            return name
    return "reasoning_content"


def with_reasoning_as(name: str, messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose `reasoning_content` is called `name`."""
    return [
        {name if key == "reasoning_content" else key: value for key, value in message.items()}
        for message in messages
    ]


class ThinkingSplitter:
    """Watches one reply. A span begins only before the first visible text, unless its tag is a control
    token, which no text holds. Blanks around a span's text, and between it and the answer, are dropped, and so is
    a closing tag before the first visible text: some models begin with one where they do not think."""

    def __init__(self, tags: ThinkingTags, controls: Collection[str], *, inside: bool) -> None:
        self._tags = tags
        self._anywhere = tags.tokens[0] in controls
        self.held = ""
        self.inside = inside
        self._begun = False  # the span has shown text
        self._after_span = False  # only blanks since the last span
        self._visible = False  # the answer has begun

    def push(self, text: str) -> list[ReasoningDelta | TextDelta]:
        """What the text so far makes certain."""
        self.held += text
        parts: list[ReasoningDelta | TextDelta] = []
        while self._inside_step(parts) if self.inside else self._outside_step(parts):
            pass
        return parts

    def finish(self) -> list[ReasoningDelta | TextDelta]:
        """What was held, when no more comes."""
        held, self.held = self.held, ""
        parts: list[ReasoningDelta | TextDelta] = []
        if self.inside:
            self._show_reasoning(held.rstrip(), parts)
        else:
            self._show_text(held, parts)
        return parts

    def _inside_step(self, parts: list[ReasoningDelta | TextDelta]) -> bool:
        """One step within a span; True: there is more to do."""
        place = self.held.find(self._tags.close)
        if place >= 0:
            self._show_reasoning(self.held[:place].rstrip(), parts)
            self.held = self.held[place + len(self._tags.close) :]
            self.inside, self._begun, self._after_span = False, False, True
            return True
        keep = possible_beginning(self.held, (self._tags.close,))
        shown = self.held[: len(self.held) - keep].rstrip()
        self.held = self.held[len(shown) :]
        self._show_reasoning(shown, parts)
        return False

    def _outside_step(self, parts: list[ReasoningDelta | TextDelta]) -> bool:
        """One step outside of a span."""
        if self._visible and not self._anywhere:
            self._show_text(self._take(len(self.held)), parts)
            return False
        found = first_mark(self.held, (self._tags.open,))
        if found is not None and (self._anywhere or not self.held[: found[0]].strip()):
            before = self._take(found[0])
            if before.strip():
                self._show_text(before, parts)
            self._take(len(self._tags.open))
            self.inside = True
            return True
        begun = self.held.lstrip()
        if not self._visible and begun.startswith(self._tags.close):
            self.held, self._after_span = begun[len(self._tags.close) :], True
            return True
        if not self._visible and self._tags.close.startswith(begun):
            return False  # also where there is nothing yet
        keep = possible_beginning(self.held, (self._tags.open,))
        text = self.held[: len(self.held) - keep]
        if text.strip():
            self._visible = True
            if self._anywhere:
                self._show_text(self._take(len(text)), parts)
            else:
                self._show_text(self._take(len(self.held)), parts)
        return False

    def _take(self, length: int) -> str:
        taken, self.held = self.held[:length], self.held[length:]
        return taken

    def _show_reasoning(self, text: str, parts: list[ReasoningDelta | TextDelta]) -> None:
        if not self._begun:
            text = text.lstrip()
        if text:
            self._begun = True
            parts.append(ReasoningDelta(text))

    def _show_text(self, text: str, parts: list[ReasoningDelta | TextDelta]) -> None:
        if self._after_span:
            text = text.lstrip()
        if text:
            self._after_span = False
            parts.append(TextDelta(text))
