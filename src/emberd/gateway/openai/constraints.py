"""What a caller of this API says an answer must be like, in OpenAI's, vLLM's and llama.cpp's spellings: one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ...errors import BadRequestError
from ...text.grammar.answer import Constraint
from ..body import Schema, Text
from ..constraints import format_constraint

Json = dict[str, Any]


class ConstraintFields(Schema):
    response_format: Json | None = None
    structured_outputs: Json | None = None  # vLLM's newer spelling of the guided_* ones
    guided_json: Any = None
    guided_regex: Text | None = None
    guided_choice: Any = None
    guided_grammar: Text | None = None
    json_schema: Json | None = None  # llama.cpp's
    grammar: Text | None = None  # llama.cpp's; "" is none

    def constraint(self) -> Constraint | None:
        """Raises BadRequestError."""
        found = list(self._constraints())
        if len(found) > 1:
            names = " and ".join(f"'{one.param}'" for one in found[:2])
            raise BadRequestError(f"{names} cannot both be followed; send one", found[1].param)
        return found[0] if found else None

    def _constraints(self) -> Iterator[Constraint]:
        if (format_ := format_constraint(self.response_format, "response_format")) is not None:
            yield format_
        if self.structured_outputs is not None:
            yield from _structured_outputs(self.structured_outputs)
        yield from _spelled(
            "guided_",
            json=self.guided_json,
            regex=self.guided_regex,
            choice=self.guided_choice,
            grammar=self.guided_grammar,
        )
        if self.json_schema is not None:
            yield Constraint("json", self.json_schema, "json_schema")
        if self.grammar:
            yield Constraint("grammar", self.grammar, "grammar")


def _structured_outputs(outputs: Json) -> Iterator[Constraint]:
    known = ("json", "json_object", "regex", "choice", "grammar")
    for name, value in outputs.items():
        if name not in known and value not in (None, False):
            param = f"structured_outputs.{name:.64}"
            raise BadRequestError(f"'{param}' is not supported; leave it out", param)
    found = {name: outputs.get(name) for name in known}
    yield from _spelled("structured_outputs.", **found)


def _spelled(prefix: str, **values: Any) -> Iterator[Constraint]:
    for name, value in values.items():
        param = f"{prefix}{name}"
        if value is None or (name == "grammar" and value == ""):
            continue
        if name == "json_object":
            if value is not False:
                yield Constraint("object", None, param)
            continue
        if name == "json" and isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                raise BadRequestError(f"'{param}' is not valid JSON", param) from None
        yield Constraint(name, value, param)  # type: ignore[arg-type]
