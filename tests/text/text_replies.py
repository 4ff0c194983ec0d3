"""Reads replies as clients get them, cut in any way."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from emberd.text.parts import ReasoningDelta, TextDelta, ToolCallArguments, ToolCallStart
from emberd.text.reply import ReplyFormat

Calls = list[tuple[str, Any]]


@dataclass
class Read:
    """A reply put together from its parts, which must come in an order that clients can follow."""

    text: str = ""
    reasoning: str = ""
    names: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    arguments: list[str] = field(default_factory=list)
    fragments: int = 0

    @property
    def calls(self) -> Calls:
        return [
            (name, json.loads(text)) for name, text in zip(self.names, self.arguments, strict=True)
        ]


def read(form: ReplyFormat, pieces: list[str], *, cut: bool = False, controls: Any = ()) -> Read:
    parser, result = form.parser(controls), Read()
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish(cut=cut)
    for part in parts:
        match part:
            case TextDelta(text):
                assert text
                result.text += text
            case ReasoningDelta(text):
                assert text
                result.reasoning += text
            case ToolCallStart(index, id, name):
                assert index == len(result.names) and len(id) == 24
                result.names.append(name)
                result.ids.add(id)
                result.arguments.append("")
            case ToolCallArguments(index, fragment):
                assert index == len(result.names) - 1 and fragment
                result.arguments[-1] += fragment
                result.fragments += 1
    assert parser.num_calls == len(result.names) == len(result.ids)
    return result


def cuts(text: str, rng: np.random.Generator) -> list[list[str]]:
    """The text whole, by characters, and in pieces of random sizes."""
    places = sorted(rng.integers(0, len(text), 8).tolist())
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    return [[text], list(text), pieces]
