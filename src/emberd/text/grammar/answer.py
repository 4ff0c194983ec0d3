"""What an answer must be like, in the spellings that callers have, to an expression of a grammar.

Knows no reply around the answer: thinking and calls are reply.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from .pointers import refused
from .rules import Rules, literal
from .schema import WRITING, SchemaReader

Kind = Literal["object", "json", "regex", "choice", "grammar"]
_LONGEST_SOURCE = 100_000
_MAX_CHOICES = 1_000


@dataclass(frozen=True, slots=True)
class Constraint:
    """`value` by kind: nothing, a schema, a pattern that the whole answer fits, texts of which it is one, a
    grammar in Lark or GBNF. `param` is the field it came in."""

    kind: Kind
    value: Any
    param: str
    strict: bool = False  # of a schema: objects that name properties have no others

    def expression(self, rules: Rules) -> str:
        """Raises BadRequestError."""
        match self.kind:
            case "object":
                return rules.json({"type": "object", "x-guidance": WRITING})
            case "json":
                reader = SchemaReader(self.value, self.param, strict=self.strict)
                return rules.json(reader.document())
            case "regex":
                return rules.terminal(f"/{regex_to_lark(self._text(), '')}/".replace("\n", "\\n"))
            case "choice":
                return rules.rule(" | ".join(map(literal, self._choices())))
            case "grammar":
                return rules.callers(self._lark())

    def _text(self) -> str:
        if not isinstance(self.value, str) or not self.value.strip():
            raise refused(self.param, "must be a text that is not empty")
        if len(self.value) > _LONGEST_SOURCE:
            raise refused(self.param, f"may have at most {_LONGEST_SOURCE} characters")
        return self.value

    def _choices(self) -> Sequence[str]:
        choices = self.value
        if not isinstance(choices, list) or not choices:
            raise refused(self.param, "must be a list of texts that is not empty")
        if len(choices) > _MAX_CHOICES:
            raise refused(self.param, f"may have at most {_MAX_CHOICES} texts")
        for index, choice in enumerate(choices):
            if not isinstance(choice, str) or not choice:
                raise refused(f"{self.param}[{index}]", "must be a text that is not empty")
        if sum(map(len, choices)) > _LONGEST_SOURCE:
            raise refused(self.param, f"may have at most {_LONGEST_SOURCE} characters")
        return list(dict.fromkeys(choices))

    def _lark(self) -> str:
        try:
            return any_to_lark(self._text())
        except (RecursionError, MemoryError):
            raise refused(self.param, "the grammar is nested too deeply") from None
        except Exception as error:  # llguidance raises bare ones
            raise refused(
                self.param, f"this is no grammar in Lark or GBNF: {error!s:.300}"
            ) from None
