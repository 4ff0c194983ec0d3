"""The arguments of a call as expressions of a grammar, one function for each way to write them.

What a schema asks and a way of writing cannot hold is refused by path. Knows nothing of what stands around.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
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
_NOT_FOR_ALL = "this model's notation of calls cannot hold it for all arguments"
_CHECKER = Checker({})
_CONSTANTS_ALONE = {"const", "$defs", "x-guidance"}
_KEYWORD = re.compile(r"(?!(?:True|False|None)$)[\w.\-$@]+")


@dataclass(frozen=True, slots=True)
class Argument:
    """`pointer`: its schema; None: any value. `name` None: one of any further name, as often as wanted."""

    name: str | None
    pointer: str | None
    required: bool


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
        """Pointer of the schema that names the properties: what a `$ref` of the whole leads to."""
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

    def arguments(self, fits: Callable[[str], bool]) -> list[Argument]:
        """For notations that write each argument by its name: those that the schema names, then one that stands
        for all others where it names none, or says more of the object than can be held. That, and names that do
        not fit, are left out, or refused with BadRequestError."""
        root = self.root()
        document, path = self.reader.document(root), self.path + as_path(root)
        more = [key for key in document if key not in _TOP]
        if not all(map(self.leave_out, more)):
            raise refused(f"{path}.{more[0]}", _NOT_FOR_ALL)
        properties, required = document.get("properties", {}), document.get("required", [])
        others = "patternProperties" in more or document.get("additionalProperties", True)
        other = f"{root}/additionalProperties" if isinstance(others, Mapping) else None
        found = []
        for name in dict.fromkeys([*properties, *required]):
            key = "properties" if name in properties else "required"
            if properties.get(name, others) is False:
                continue  # where it must be there, the reader has refused it
            if fits(name):
                pointer = f"{root}/properties/" + name.replace("~", "~0").replace("/", "~1")
                where = pointer if name in properties else other
                found.append(Argument(name, where, name in required))
            elif self.leave_out(key):
                others, other = True, None
            else:
                raise refused(
                    f"{path}.{key}.{name}", "this model's notation of calls has no such names"
                )
        if others is not False and (more or not found):
            found.append(Argument(None, other, False))
        return found

    def plain(self, fits: Callable[[str], bool]) -> bool:
        """Whether `arguments` leaves nothing out, and each has a name that fits."""
        document = self.reader.document(self.root())
        properties, required = document.get("properties", {}), document.get("required", [])
        closed = document.get("additionalProperties") is False
        return (
            all(key in _TOP for key in document)
            and all(map(fits, properties))
            and all(name in properties for name in required)
            and bool(closed or any(one is not False for one in properties.values()))
        )

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
    """`a=1, b="x"`: values are JSON, which Python reads too. `**{"a b": 1}` where the schema says more than
    names and values, or names are none of Python's."""
    if not parameters.plain(lambda name: bool(_KEYWORD.fullmatch(name))):
        return f"{literal('**')} {as_json(rules, parameters)}"
    items = [
        (f"{literal(f'{one.name}=')} {as_value(rules, parameters, one.pointer)}", one.required)
        for one in parameters.arguments(lambda name: True)
    ]
    return optional_list(rules, items, literal(", "))


def as_value(rules: Rules, parameters: Parameters, pointer: str | None) -> str:
    """A value as JSON; None: any."""
    if pointer is None:
        return rules.json(SchemaReader({}, parameters.path).document())
    return rules.json(parameters.reader.document(pointer))


def as_tagged(opening: str, close: str, forbidden: str, names: str) -> Write:
    """A tag around each value: texts as they are, all others as JSON. `opening` has %N for the name and %T
    for whether it is a text; `close` may have %N too, where readers take any name there. `forbidden` is a pattern
    of what would be read as a tag, `names` one of names."""
    before, behind = opening.split("%N")

    def one(rules: Rules, parameters: Parameters, argument: Argument, name: str) -> str:
        schema = True if argument.pointer is None else parameters.at(argument.pointer)
        is_any = schema is True or (isinstance(schema, Mapping) and not set(schema) - ANNOTATIONS)
        end = close.replace("%N", argument.name or "value")
        is_text = is_any or (isinstance(schema, Mapping) and schema.get("type") == "string")

        def written(value: str, *, as_text: bool) -> str:
            tag = rules.text(behind.replace("%T", "true" if as_text else "false"))
            return f"{rules.text(before)} {name} {tag} {value}"

        json = f"{as_value(rules, parameters, argument.pointer)} {rules.text(end)}"
        if is_any:
            text = written(free_text(rules, end, forbidden), as_text=True)
            if "%T" not in behind:
                return text  # JSON is read there too
            return rules.rule(f"{text} | {written(json, as_text=False)}")
        if is_text:
            pointer = argument.pointer or ""
            return written(raw_text(rules, parameters, pointer, end, forbidden), as_text=True)
        return written(json, as_text=False)

    def write(rules: Rules, parameters: Parameters) -> str:
        arguments = parameters.arguments(lambda name: bool(re.fullmatch(names, name)))
        items = [
            (one(rules, parameters, argument, literal(argument.name)), argument.required)
            for argument in arguments
            if argument.name is not None
        ]
        listed = optional_list(rules, items, "")
        named = [argument.name for argument in arguments if argument.name is not None]
        others = [
            f"({one(rules, parameters, argument, other_name(rules, names, named))})*"
            for argument in arguments
            if argument.name is None
        ]
        return " ".join(part for part in (listed, *others) if part)

    return write


def other_name(rules: Rules, names: str, named: Collection[str]) -> str:
    """A name of the pattern `names`, and none of `named`."""
    excluded = "|".join(re.escape(name).replace("/", r"\/") for name in named)
    return rules.terminal(f"/{names}/" + (f" & ~/({excluded})/" if excluded else ""))


def free_text(rules: Rules, close: str, forbidden: str, text: str = ANY_TEXT) -> str:
    pattern = forbidden.replace("/", r"\/")
    return rules.until(close, f"{text} & ~/(?s:.*)({pattern})(?s:.*)/")


def raw_text(rules: Rules, parameters: Parameters, pointer: str, close: str, forbidden: str) -> str:
    """A text without quotes, and the `close` behind it."""
    document = parameters.reader.document(pointer)
    path = parameters.path + pointer.replace("/", ".")
    key = "const" if "const" in document else "enum"
    if key in document:
        texts = [value for value in constants(document) if isinstance(value, str)]
        held = [text for text in texts if not (re.search(forbidden, text) or close in text)]
        if (not texts or len(held) < len(texts)) and not parameters.leave_out(key):
            raise refused(path, "this model's notation of calls cannot hold its values")
        if held:
            return f"{rules.rule(' | '.join(map(literal, held)))} {rules.text(close)}"
    for key in ("pattern", "format", "$ref", "anyOf", "allOf"):
        if key in document and not parameters.leave_out(key):
            raise refused(
                f"{path}.{key}", "this model's notation of calls cannot hold it for texts"
            )
    low, high = document.get("minLength", 0), document.get("maxLength", "")
    text = ANY_TEXT if not low and high == "" else f"/(?s:.{{{low},{high}}})/"
    return free_text(rules, close, forbidden, text)


def constants(document: Json) -> list[Any]:
    """Those values of a document's `const` or `enum` that all of it holds for."""
    values = [document["const"]] if "const" in document else document["enum"]
    others = {key: value for key, value in document.items() if key != "enum"}
    if "const" in document and "enum" in document:
        others["allOf"] = [{"enum": document["enum"]}, *others.get("allOf", [])]
    if not set(others) - _CONSTANTS_ALONE:
        return list(values)
    rules = Rules({})
    grammar = rules.source(rules.json(others))
    return [
        value
        for value, fits in zip(values, _CHECKER.accepted(grammar, values), strict=True)
        if fits
    ]
