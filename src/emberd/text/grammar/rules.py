"""Collects the rules of one grammar in llguidance's Lark, and gives them names.

Knows how texts, control tokens, JSON and patterns are written there; knows no schema keyword and no notation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

ANY_TEXT = "/(?s:.*)/"
_FREE_SPLIT = '%llguidance {"no_forcing": true}'  # text that must come may be split into any tokens
_PREFIX = "emberd_"  # no rule of a caller's grammar may have such a name


class Rules:
    """`controls`: names that are control tokens of this model, with their ids. Names in texts of ours mean
    those tokens."""

    def __init__(self, controls: Mapping[str, int]) -> None:
        self._controls = {name: token_id for name, token_id in controls.items() if name}
        self._rules: dict[tuple[bool, str], str] = {}  # whether a pattern, body: name
        self._callers = ""

    def text(self, text: str) -> str:
        """An expression for a text of ours, in which control tokens may stand."""
        parts = []
        while text:
            place, name = self._first_control(text)
            if place:
                parts.append(literal(text[:place]))
            if name:
                parts.append(f"<[{self._controls[name]}]>")
            text = text[place + len(name) :]
        return " ".join(parts)

    def begins_with_control(self, text: str) -> bool:
        return bool(text) and self._first_control(text)[0] == 0

    def json(self, document: Mapping[str, Any]) -> str:
        """A value of a schema, as schema.py makes documents."""
        return self.rule(f"%json {json.dumps(document, ensure_ascii=False)}")

    def rule(self, body: str, options: str = "") -> str:
        """The name of a rule; one of the same body is not made again."""
        return self._named(f"{options}: {body}", is_terminal=False)

    def terminal(self, body: str) -> str:
        """The name of a rule that is one pattern."""
        return self._named(f": {body}", is_terminal=True)

    def until(self, close: str, text: str = ANY_TEXT) -> str:
        """Text of the pattern `text`, up to and with the first `close`."""
        if self.begins_with_control(close):
            return f"{self.terminal(text)} {self.text(close)}"
        return self.rule(self.terminal(f"({text}) {literal(close)}"), "[lazy]")

    def callers(self, source: str) -> str:
        """A caller's own grammar: the name of what is its `start`."""
        self._callers = _renamed(source, "start", f"{_PREFIX}answer")
        return f"{_PREFIX}answer"

    def source(self, start: str) -> str:
        rules = [f"{name}{body}" for (_, body), name in self._rules.items()]
        return "\n".join(["%llguidance {}", f"start: {start}", *rules, self._callers, _FREE_SPLIT])

    def _named(self, body: str, *, is_terminal: bool) -> str:
        name = f"{_PREFIX}{len(self._rules)}"
        return self._rules.setdefault((is_terminal, body), name.upper() if is_terminal else name)

    def _first_control(self, text: str) -> tuple[int, str]:
        """Place and name of the control token that comes first, the longest at one place; else the end."""
        found = [(place, -len(n), n) for n in self._controls if (place := text.find(n)) >= 0]
        place, _, name = min(found, default=(len(text), 0, ""))
        return place, name


def any_text(rules: Rules) -> str:
    return rules.terminal(ANY_TEXT)


def literal(text: str) -> str:
    """A text in which no name means a token."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def optional_list(rules: Rules, items: list[tuple[str, bool]], separator: str) -> str:
    """Expressions in their order, of which some must be there (True); `separator` is an expression, "" for
    none. May be empty where nothing must be there."""
    between = f"{separator} " if separator else ""
    behind = ""  # what may follow once one was written
    first = ""  # what may be written where none was: alternatives
    may_be_empty = True
    for expression, required in reversed(items):
        start = rules.rule(f"{expression} {behind}".rstrip())
        if required:
            first, may_be_empty = start, False
        else:
            first = f"{start} | {first}" if first else start
        one = f"{between}{expression}" if required else f"({between}{expression})?"
        behind = rules.rule(f"{one} {behind}".rstrip())
    if not first:
        return ""
    return f"({rules.rule(first)})?" if may_be_empty else rules.rule(first)


_TOKEN = re.compile(
    r'"(?:\\.|[^"\\\n])*"|//[^\n]*|\#[^\n]*|/(?:\\.|[^/\\\n])+/|<[^<>\n]*>|[A-Za-z_][\w\-]*|.',
    re.DOTALL,
)


def _renamed(source: str, old: str, new: str) -> str:
    """A grammar with one of its rules called otherwise; texts, patterns and comments are left alone."""
    tokens = _TOKEN.findall(source)
    return "".join(new if token == old else token for token in tokens)
