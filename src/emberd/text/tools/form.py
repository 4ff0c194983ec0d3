"""What a notation of tool calls is made of, and the readers of what stands behind its tags.

Knows no notation: those are in syntax.py and sectioned.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from .body import MakeBody
from .closed import Closed, Parse
from .json_calls import JsonCalls, NamedJson

NAME = r"\s*(?P<name>[\w.\-]+)\s*"


@dataclass(frozen=True, slots=True)
class ToolSyntax:
    """One notation.

    `openings` begin a call; `closings` are dropped where they follow one; `wrappers` are dropped wherever they
    stand. `bare` reads calls that begin without a tag, at a reply's start or behind a call, with one of
    `bare_starts`; `bare_once`: only at its start. `tokens` are further names that the notation uses within calls,
    which are control tokens in some vocabularies.
    """

    name: str
    openings: Mapping[str, MakeBody] = field(default_factory=dict)
    closings: tuple[str, ...] = ()
    wrappers: tuple[str, ...] = ()
    bare: MakeBody | None = None
    bare_starts: tuple[str, ...] = ()
    bare_once: bool = False
    tokens: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        return (*self.openings, *self.closings, *self.wrappers, *self.tokens)

    def bound(self, *, with_bare: bool) -> ToolSyntax:
        """For replies whose calls a grammar holds: of those without a tag, only one that is the whole reply and
        begins with its name is told from text."""
        bare = partial(JsonCalls, known=True, name_first=True) if with_bare else None
        return replace(self, bare=bare, bare_starts=("{",) if with_bare else (), bare_once=True)


def closed(
    parse: Parse, close: str, start: str = "", value: tuple[str, str] = ("", "")
) -> MakeBody:
    """Calls that are parsed once their closing tag is there."""
    return lambda tools: Closed(tools, parse, close, start, value)


def named(head: str, *, or_list: bool = False) -> MakeBody:
    """Calls with their name in front of the JSON of their arguments."""
    return lambda tools: NamedJson(tools, head, or_list=or_list)
