"""Replies in sections: tags say what stands behind each of them, reasoning, text or calls.

Takes the place of the splitter of thinking. Knows the tags, and not how calls are written in their sections.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from .marks import first_mark, possible_beginning
from .parts import Part, ReasoningDelta, TextDelta
from .sandbox import variables_of

Kind = Literal["reasoning", "text", "calls", "nothing"]


@dataclass(frozen=True, slots=True)
class Sections:
    """One way to write them. `mark` is a text that only templates of it hold; `tokens` are names in tags that are
    control tokens in some vocabularies. `begun` is what the prompt has written of the first tag, `answer` what of
    one is left where a reply has nothing but an answer. `named`, with %N for a tool's name: a tag of calls."""

    mark: str
    tags: Mapping[str, Kind]
    tokens: tuple[str, ...] = ()
    answer: str = ""
    begun: str = ""
    named: str = ""


FUNCTIONARY = Sections(
    ">>>${recipient}",
    {">>>all\n": "text"},
    answer="all\n",
    begun=">>>",
    named=">>>%N\n",
)
MUSE = Sections(
    "<atem:function_calls>",
    {
        "<|start|>assistant to=self<|message|>": "reasoning",
        "<|start|>assistant to=user<|message|>": "text",
        "<|eom|>": "nothing",
        "<|eot|>": "nothing",
    },
    tokens=("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
    answer=" to=user<|message|>",
    begun="<|start|>assistant",
    named="<|start|>assistant to=%N<|message|>",
)
KIMI = Sections(
    "<|end_of_msg|>",
    {
        "<|open|>think<|sep|>": "reasoning",
        "<|open|>response<|sep|>": "text",
        "<|open|>tools<|sep|>": "calls",
        **dict.fromkeys(
            (f"<|close|>{name}<|sep|>" for name in ("think", "response", "tools", "message")),
            "nothing",
        ),
    },
    tokens=("<|open|>", "<|close|>", "<|sep|>"),
)
SOLAR = Sections(
    "<|begin|>assistant<|think|>",
    {
        "<|think|>": "reasoning",
        "<|content|>": "text",
        "<|tool_calls|>": "calls",
        **dict.fromkeys(("<|end|>", "<|calls|>", "<|flush|>"), "nothing"),
    },
    tokens=(
        *("<|begin|>", "<|think|>", "<|content|>", "<|tool_calls|>"),
        *("<|end|>", "<|calls|>", "<|flush|>"),
    ),
    answer="<|content|>",
)

GLM = Sections(
    "在调用上述函数时，请使用 Json 格式",
    {"<|assistant|>\n": "text"},
    tokens=("<|assistant|>",),
    answer="\n",
    begun="<|assistant|>",
    named="<|assistant|>%N\n",
)
"""GLM 4's of April 2025. Those of GLM Z1 begin within a span of thinking, and older ones take no list of tools."""


def sections_of(template: str) -> Sections | None:
    """How replies to this chat template are written; None: in no such sections."""
    if GLM.mark in template and "</think>" not in template and "tools" in variables_of(template):
        return GLM
    return next((one for one in (FUNCTIONARY, MUSE, KIMI, SOLAR) if one.mark in template), None)


class Calls(Protocol):
    """Reads the text of sections with calls."""

    num_calls: int

    @property
    def held(self) -> str: ...

    def push(self, text: str) -> list[Part]: ...

    def finish(self, *, cut: bool) -> list[Part]: ...


class SectionReader:
    """One reply. Without `calls` what would be one is text; `kept` are beginnings of tags that belong to a call,
    `controls` names of control tokens, of which nothing is shown. `inside`: the prompt ends in a tag of
    reasoning. Blanks at a section's beginning are dropped, and those at the end of reasoning."""

    def __init__(
        self,
        sections: Sections,
        calls: Calls | None,
        names: Iterable[str],
        *,
        kept: Collection[str],
        controls: Collection[str],
        inside: bool,
    ) -> None:
        named = sections.named
        self._tags: dict[str, Kind] = dict.fromkeys(
            (named.replace("%N", name) for name in names if named), "calls"
        )
        self._tags |= sections.tags
        self._calls, self._kept, self._controls = calls, tuple(kept), controls
        self._kind: Kind = "reasoning" if inside else "text"
        self._begun = "" if inside else sections.begun
        self._held = self._begun
        self._shown = False  # the section has shown text

    @property
    def num_calls(self) -> int:
        return self._calls.num_calls if self._calls else 0

    @property
    def thinking(self) -> bool:
        return self._kind == "reasoning"

    @property
    def held(self) -> str:
        of_calls = self._calls.held if self._calls else ""
        return of_calls + self._held.removeprefix(self._begun)

    def push(self, text: str) -> list[Part]:
        self._held += text
        parts: list[Part] = []
        while self._step(parts):
            pass
        return parts

    def finish(self, *, cut: bool) -> list[Part]:
        parts: list[Part] = []
        held, self._held = self._held.removeprefix(self._begun), ""
        self._tell(held.rstrip() if self.thinking else held, parts)
        return parts + self._left(cut=cut)

    def _step(self, parts: list[Part]) -> bool:
        """True: there is more to do."""
        found = first_mark(self._held, self._tags)
        if self._begun:
            if found is None or found[0]:
                if any(tag.startswith(self._held) for tag in self._tags):
                    return False
                self._held = self._held.removeprefix(
                    self._begun
                )  # a model that forgot its sections
            self._begun = ""
            return True
        if found is not None:
            place, tag = found
            before, self._held = self._held[:place], self._held[place + len(tag) :]
            self._tell(before.rstrip() if self.thinking else before, parts)
            parts += self._left(cut=False)
            self._kind, self._shown = self._tags[tag], False
            if self._kind == "calls" and tag.startswith(self._kept):
                self._tell(tag, parts)
            return True
        keep = possible_beginning(self._held, self._tags)
        shown = self._held[: len(self._held) - keep]
        shown = shown.rstrip() if self.thinking else shown
        self._held = self._held[len(shown) :]
        self._tell(shown, parts)
        return False

    def _left(self, *, cut: bool) -> list[Part]:
        """What the reader of calls holds where their section ends."""
        if self._kind != "calls" or self._calls is None:
            return []
        return self._calls.finish(cut=cut)

    def _tell(self, text: str, parts: list[Part]) -> None:
        if self._kind == "calls" and self._calls is not None:
            parts += self._calls.push(text)
            return
        for name in self._controls:
            text = text.replace(name, "")
        text = text if self._shown else text.lstrip()
        if not text or self._kind == "nothing":
            return
        self._shown = True
        parts.append(ReasoningDelta(text) if self.thinking else TextDelta(text))
