"""The arguments of a call as expressions of a grammar, one function for each way to write them.

What a schema asks and a way of writing cannot hold is refused by path. Knows nothing of what stands around.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import BadRequestError
from .check import Checker
from .pointers import refused, resolved
from .rules import ANY_TEXT, Rules, literal, optional_list
from .schema import SchemaReader

Json = dict[str, Any]
_TOP = {"type", "properties", "required", "additionalProperties", "$defs", "x-guidance"}
_NAME = re.compile(r"[\w.\-]+")
_CHECKER = Checker({})


class Parameters:
    """What a function takes: a schema of an object, at `path`. `relaxed`: what cannot be enforced is left out
    and named in `left_out`; where the rest cannot be either, arguments are any object."""

    def __init__(
        self,
        schema: Mapping[str, Any] | None,
        path: str,
        *,
        strict: bool = False,
        relaxed: bool = False,
    ) -> None:
        self.path = path
        self.schema = {"type": "object", **(schema or {"additionalProperties": False})}
        kind, self.schema["type"] = self.schema["type"], "object"
        self.reader = SchemaReader(self.schema, path, strict=strict, relaxed=relaxed)
        if kind != "object" and not self.leave_out("type"):
            raise refused(f"{path}.type", "arguments are an object")
        if relaxed and not self._enforceable:
            self.schema = {"type": "object"}
            self.reader = SchemaReader(self.schema, path, relaxed=True)
            self.leave_out("parameters")

    @property
    def left_out(self) -> tuple[str, ...]:
        """Keywords, known once the arguments were written; `parameters`: all of them."""
        return tuple(self.reader.left_out)

    def leave_out(self, keyword: str) -> bool:
        """Whether a keyword that a notation cannot hold may be left out; it is noted then."""
        if self.reader.relaxed:
            self.reader.left_out[keyword] = None
        return self.reader.relaxed

    def named(self, fits: Callable[[str], bool]) -> list[tuple[str, str, bool]]:
        """Of each property: name, pointer, whether it must be there. Raises BadRequestError where the schema
        says more of the object than that, or where a name does not fit. Further properties are not written."""
        document = self.reader.document()
        more = [key for key in document if key not in _TOP]
        if not all(map(self.leave_out, more)):
            raise refused(
                f"{self.path}.{more[0]}",
                "this model's notation of calls cannot hold it for all arguments",
            )
        properties, required = document.get("properties", {}), document.get("required", [])
        unfit = [name for name in properties if not fits(name)]
        for name in unfit:
            if name in required or not self.leave_out("properties"):
                raise refused(
                    f"{self.path}.properties.{name}",
                    "this model's notation of calls has no such names",
                )
        if missing := [name for name in required if name not in properties]:
            raise refused(f"{self.path}.required", f"'{missing[0]:.64}' is not in 'properties'")
        return [
            (name, "/properties/" + name.replace("~", "~0").replace("/", "~1"), name in required)
            for name, one in properties.items()
            if one is not False and name not in unfit
        ]

    @property
    def _enforceable(self) -> bool:
        rules = Rules({})
        try:
            grammar = rules.source(rules.json(self.reader.document()))
        except BadRequestError:
            return False
        return not _CHECKER.fault(grammar)

    def at(self, pointer: str) -> Any:
        return resolved(self.schema, f"#{pointer}")


Write = Callable[[Rules, Parameters], str]


def as_json(rules: Rules, parameters: Parameters) -> str:
    return rules.json(parameters.reader.document())


def as_keywords(rules: Rules, parameters: Parameters) -> str:
    """`a=1, b="x"`: values are JSON, which Python reads too."""
    items = [
        (f"{literal(name + '=')} {rules.json(parameters.reader.document(pointer))}", required)
        for name, pointer, required in parameters.named(
            lambda name: name.isidentifier() and not keyword.iskeyword(name)
        )
    ]
    return optional_list(rules, items, literal(", "))


def as_tagged(opening: str, close: str, forbidden: str) -> Write:
    """A tag around each value: texts as they are, all others as JSON. `opening` has %N for the name and %T
    for whether it is a text; `forbidden` is a pattern of what would be read as a tag."""

    def write(rules: Rules, parameters: Parameters) -> str:
        items = []
        for name, pointer, required in parameters.named(lambda name: bool(_NAME.fullmatch(name))):
            schema = parameters.at(pointer)
            is_text = isinstance(schema, Mapping) and schema.get("type") == "string"
            start = opening.replace("%N", name).replace("%T", "true" if is_text else "false")
            if is_text:
                value = raw_text(rules, parameters, pointer, close, forbidden)
            else:
                value = f"{rules.json(parameters.reader.document(pointer))} {rules.text(close)}"
            items.append((f"{rules.text(start)} {value}", required))
        return optional_list(rules, items, "")

    return write


def raw_text(rules: Rules, parameters: Parameters, pointer: str, close: str, forbidden: str) -> str:
    """A text without quotes, and the `close` behind it."""
    document = parameters.reader.document(pointer)
    path = parameters.path + pointer.replace("/", ".")
    for key in ("pattern", "format", "$ref", "anyOf", "allOf"):
        if key in document and not parameters.leave_out(key):
            raise refused(
                f"{path}.{key}", "this model's notation of calls cannot hold it for texts"
            )
    if "const" in document or "enum" in document:
        values = [document["const"]] if "const" in document else document["enum"]
        texts = [value for value in values if isinstance(value, str)]
        held = [text for text in texts if not (re.search(forbidden, text) or close in text)]
        if not texts or (len(held) < len(texts) and not (held and parameters.leave_out("enum"))):
            raise refused(path, "this model's notation of calls cannot hold its values")
        return f"{rules.rule(' | '.join(map(literal, held)))} {rules.text(close)}"
    low, high = document.get("minLength", 0), document.get("maxLength", "")
    text = ANY_TEXT if not low and high == "" else f"/(?s:.{{{low},{high}}})/"
    pattern = forbidden.replace("/", r"\/")
    return rules.until(close, f"{text} & ~/(?s:.*)({pattern})(?s:.*)/")
