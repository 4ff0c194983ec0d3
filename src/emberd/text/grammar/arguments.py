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
from .keywords import ANNOTATIONS
from .pointers import as_path, refused, resolved
from .rules import ANY_TEXT, Rules, literal, optional_list
from .schema import SchemaReader

Json = dict[str, Any]
_TOP = {"type", "properties", "required", "additionalProperties", "$defs", "x-guidance"}
_BESIDE_REF = ANNOTATIONS | {"$ref", "type"}
_DESCRIBING = ("$ref", "anyOf", "oneOf", "allOf", "properties", "patternProperties")
_NAME = re.compile(r"[\w.\-]+")
_NOT_FOR_ALL = "this model's notation of calls cannot hold it for all arguments"
_CHECKER = Checker({})


class Parameters:
    """What a function takes: a schema of an object, at `path`. `relaxed`: what cannot be enforced is left out
    and named in `left_out`; where the rest cannot be either, arguments are any object (`is_any`)."""

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
        self.is_any = relaxed and not self._enforceable
        if self.is_any:
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

    def root(self) -> str:
        """Pointer of the schema that names the properties: what a `$ref` of the whole leads to. Raises
        BadRequestError where arguments are any object: for notations that write each property by its name."""
        if self.is_any:
            raise refused(
                self.path,
                "cannot be enforced, and this model's notation of calls cannot hold any object",
            )
        pointer, node, seen = "", self.schema, {"#"}
        while not set(node) - _BESIDE_REF and isinstance(reference := node.get("$ref"), str):
            found = resolved(self.schema, reference)
            if reference in seen or not isinstance(found, Mapping):
                break
            if found.get("type", "object") != "object":
                raise refused(f"{self.path}{as_path(pointer)}.$ref", "arguments are an object")
            seen.add(reference)
            pointer, node = reference[1:], dict(found)
        return pointer

    def named(self, fits: Callable[[str], bool]) -> list[tuple[str, str, bool]]:
        """Of each property: name, pointer, whether it must be there. Raises BadRequestError where the schema
        says more of the object than that, or where a name does not fit. Further properties are not written.
        Where all properties stand in what would be left out, that is refused too."""
        root = self.root()
        document, path = self.reader.document(root), self.path + as_path(root)
        more = [key for key in document if key not in _TOP]
        if not all(map(self.leave_out, more)):
            raise refused(f"{path}.{more[0]}", _NOT_FOR_ALL)
        properties, required = document.get("properties", {}), document.get("required", [])
        node = self.at(root)
        if lost := [key for key in _DESCRIBING if not properties and node.get(key)]:
            raise refused(f"{path}.{lost[0]}", _NOT_FOR_ALL)
        unfit = [name for name in properties if not fits(name)]
        for name in unfit:
            if name in required or not self.leave_out("properties"):
                raise refused(
                    f"{path}.properties.{name}",
                    "this model's notation of calls has no such names",
                )
        if missing := [name for name in required if name not in properties]:
            raise refused(f"{path}.required", f"'{missing[0]:.64}' is not in 'properties'")
        return [
            (
                name,
                f"{root}/properties/" + name.replace("~", "~0").replace("/", "~1"),
                name in required,
            )
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
    key = "const" if "const" in document else "enum"
    if key in document:
        values = [document["const"]] if key == "const" else document["enum"]
        texts = [value for value in values if isinstance(value, str)]
        held = [text for text in texts if not (re.search(forbidden, text) or close in text)]
        if not texts or (len(held) < len(texts) and not parameters.leave_out(key)):
            raise refused(path, "this model's notation of calls cannot hold its values")
        if held:
            return f"{rules.rule(' | '.join(map(literal, held)))} {rules.text(close)}"
    low, high = document.get("minLength", 0), document.get("maxLength", "")
    text = ANY_TEXT if not low and high == "" else f"/(?s:.{{{low},{high}}})/"
    pattern = forbidden.replace("/", r"\/")
    return rules.until(close, f"{text} & ~/(?s:.*)({pattern})(?s:.*)/")
