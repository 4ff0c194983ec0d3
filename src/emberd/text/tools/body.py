"""What a reader of one notation of calls gives, and how it says that a text is none.

Knows no notation.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..grammar.keywords import TYPES
from ..grammar.pointers import resolved

Json = dict[str, Any]
Tree = str | list[tuple[str, "Tree"]]
"""A text, or named elements of such in their order."""

_LONE = re.compile("[\ud800-\udfff]")
"""Halves of characters, which no UTF-8 holds: JSON has escapes for them."""

_DEEPEST = 16  # references and options that are followed


class NotACallError(Exception):
    """The text only begins like a call. `pieces`: what of it was certain all the same, `rest`: the text behind
    the place where it broke."""

    def __init__(self, pieces: Sequence[Piece] = (), rest: str = "") -> None:
        super().__init__()
        self.pieces, self.rest = pieces, rest


@dataclass(frozen=True, slots=True)
class Begin:
    """A call begins; the fragments up to the next Begin are its arguments."""

    name: str


Piece = Begin | str
"""A call's beginning, or a fragment of its arguments."""


class Body(Protocol):
    """Reads what stands behind one opening tag."""

    def push(self, text: str) -> tuple[list[Piece], str | None]:
        """Pieces that are certain; then None while there is more to come, else the text behind the calls.

        Raises NotACallError.
        """

    def finish(self) -> list[Piece]:
        """The last pieces, when the reply ends here of itself. Raises NotACallError."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The functions of a request: by name, the JSON schema of the arguments."""

    schemas: Mapping[str, Json]

    def converted(
        self, name: str, arguments: Mapping[str, str], texts: Collection[str] = ()
    ) -> Json:
        """Arguments of a notation that writes all values as text; `texts` are said to be some. What the schema does
        not call a string is read as JSON where it is JSON of a type that the schema knows."""
        schema = self.schemas.get(name, {})
        root = _followed(schema, schema)
        return {
            key: text if key in texts else _value(text, _kinds(_property(root, key), schema))
            for key, text in arguments.items()
        }

    def grown(self, name: str, elements: Sequence[tuple[str, Tree]]) -> Json:
        """Arguments that a notation writes as elements: what the schema calls a list, or else has nothing but
        elements `item`, is a list of them, and texts are values as in `converted`."""
        schema = self.schemas.get(name, {})
        root = _followed(schema, schema)
        return {key: _grown(tree, _property(root, key), schema) for key, tree in elements}


def tools_of(tools: Any) -> Tools:
    """From the OpenAI form; what is not of that form is left out."""
    schemas: dict[str, Json] = {}
    for tool in tools or ():
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(name := function.get("name"), str):
            parameters = function.get("parameters")
            schemas[name] = dict(parameters) if isinstance(parameters, Mapping) else {}
    return Tools(schemas)


MakeBody = Callable[[Tools], Body]


def whole_call(name: str, arguments: Mapping[str, Any]) -> list[Piece]:
    """Raises NotACallError where the arguments are none of JSON's."""
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise NotACallError from None
    return [Begin(name), _LONE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)]


def _value(text: str, kinds: frozenset[str]) -> Any:
    """A value of one of the types `kinds`, where the text is one."""
    if kinds == {"string"}:
        return text
    try:
        value = json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        value = _python_value(text, kinds)
    if isinstance(value, float) and value.is_integer() and "number" not in kinds:
        value = int(value)
    return text if "string" in kinds and not kinds & _kinds_of(value) else value


def _grown(tree: Tree, node: Any, root: Any, depth: int = 0) -> Any:
    """A value of the schema `node`. Raises NotACallError where elements are too deep in one another."""
    kinds = _kinds(node, root)
    if isinstance(tree, str):
        if not tree.strip() and "string" not in kinds and kinds & {"array", "object"}:
            return [] if "array" in kinds else {}
        return _value(tree, kinds)
    if depth > _DEEPEST:
        raise NotACallError
    node = _followed(node, root)
    listed = all(key == "item" for key, _ in tree) and _property(node, "item") is None
    if "array" in kinds and (listed or "object" not in kinds):
        return [_grown(one, node.get("items"), root, depth + 1) for _, one in tree]
    return {key: _grown(one, _property(node, key), root, depth + 1) for key, one in tree}


def _property(node: Mapping[str, Any], key: str) -> Any:
    """The schema of a property; None: nothing is said of it."""
    properties = node.get("properties")
    others = node.get("additionalProperties")
    return properties.get(key, others) if isinstance(properties, Mapping) else others


def _python_value(text: str, kinds: frozenset[str]) -> Any:
    """As models write what is no JSON; the text itself where it is nothing of that."""
    words = {"true": True, "false": False, "none": None, "null": None}
    if (word := text.strip().lower()) in words:
        return words[word]
    if "string" not in kinds and word[:1] in ("[", "{"):
        try:
            value = ast.literal_eval(text.strip())
            json.dumps(value, allow_nan=False)
            return value
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            pass
    return text


def _refused(constant: str) -> Any:
    raise ValueError(constant)


def _kinds_of(value: Any) -> frozenset[str]:
    if isinstance(value, bool) or value is None:
        return frozenset({"null" if value is None else "boolean"})
    if isinstance(value, int | float):
        whole = isinstance(value, int) or value.is_integer()
        return frozenset({"integer", "number"} if whole else {"number"})
    return frozenset(
        {"string" if isinstance(value, str) else "object" if isinstance(value, dict) else "array"}
    )


def _kinds(node: Any, root: Any, seen: tuple[set[int], int] | None = None) -> frozenset[str]:
    """Types of the values that a schema takes, as far as it tells; none where it is seen already, at the depth."""
    node = _followed(node, root)
    known, depth = seen or (set(), 0)
    if id(node) in known:
        return frozenset()
    known.add(id(node))
    kinds = node.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if isinstance(kinds, list):
        return frozenset(kind for kind in kinds if isinstance(kind, str))
    if "const" in node:
        return _kinds_of(node["const"])
    if isinstance(values := node.get("enum"), list):
        return frozenset[str]().union(*map(_kinds_of, values))
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(options := node.get(key), list) and depth < _DEEPEST:
            found = [_kinds(one, root, (known, depth + 1)) for one in options]
            return frozenset[str]().union(*found)
    return frozenset(TYPES)


def _followed(node: Any, root: Any) -> Mapping[str, Any]:
    """Through references; what is no schema of an object says nothing."""
    for _ in range(_DEEPEST):
        if not isinstance(node, Mapping) or not isinstance(node.get("$ref"), str):
            break
        node = resolved(root, node["$ref"])
    return node if isinstance(node, Mapping) else {}
