"""JSON schemas to documents that llguidance enforces in full: what it would not enforce is refused by path.

A document holds the keywords that it is known to enforce, the definitions that are used, and how JSON is to be
written: blanks are bounded, and no character has two spellings, or a key could be written twice.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from llguidance import LLMatcher

from ...errors import BadRequestError
from .keywords import (
    ANNOTATIONS,
    CHECKS,
    INTEGER_RANGES,
    STRICTER_FORMATS,
    STRING_FORMATS,
    TYPES,
    KeywordError,
)
from .numbers import MAX_MULTIPLE, bound_integers, joined_multiple
from .pointers import NOTHING, as_path, refused, resolved
from .satisfiable import is_finite, options_disjoint

Json = dict[str, Any]

WRITING: Json = {
    "whitespace_pattern": r"[\x20]{1,2}|\n{1,2}[\x20\t]{0,16}",
    "json_allowed_escapes": 'nrbtf\\"',
    "lenient": False,
}
MAX_NODES = 3_000
MAX_DEPTH = 48
MAX_JOINED_PATTERNS = 12
"""Patterns that one text must match all at once take exponential time to join."""

_TEXT_OF_A_NODE = 64  # characters of constants that count as one part
_LONGEST_PATTERN = 2_048
_DRAFT_7_TUPLE = "additionalItems"
_COUNTS = ("minProperties", "maxProperties")
_JOINED = frozenset({"properties", "pattern", "format", "multipleOf"})
"""Keywords that are costly where they hold together with those of a schema beside them."""


class SchemaReader:
    """One schema of a caller, of which any part can be made a document. `path` names it in messages;
    `strict`: objects that name properties have no others, unless they say so. `relaxed`: keywords that cannot
    be enforced are left out of documents, and their names kept in `left_out`."""

    def __init__(
        self, root: Any, path: str, *, strict: bool = False, relaxed: bool = False
    ) -> None:
        self._root, self._path, self._strict = root, path, strict
        self.relaxed = relaxed
        self.left_out: dict[str, None] = {}

    def document(self, pointer: str = "") -> Json:
        """Raises BadRequestError."""
        node, place = resolved(self._root, f"#{pointer}"), self._path + as_path(pointer)
        left_out = self.left_out if self.relaxed else None
        walk = _Walk(self._root, self._path, strict=self._strict, left_out=left_out)
        found = walk.node(node, place, 0, closed=self._strict)
        if not isinstance(found, dict):
            if found is False:
                raise refused(place, "nothing satisfies 'false'")
            found = {}
        definitions = walk.definitions()
        if not is_finite(found, definitions):
            raise refused(place, "nothing finite satisfies it")
        document = {**found, "$defs": definitions, "x-guidance": WRITING}
        if walk.counted is not None and "Properties" in _fault(document):
            raise refused(
                walk.counted, "cannot be enforced together with the schemas that hold beside it"
            )
        return document


class _Walk:
    """From the nodes of a schema to nodes of a document. Each `$ref` becomes one to a definition of ours."""

    def __init__(
        self, root: Any, path: str, *, strict: bool, left_out: dict[str, None] | None
    ) -> None:
        self._root, self._path, self._strict = root, path, strict
        self._left_out = left_out  # None: nothing may be
        self._names: dict[str, str] = {}  # what `$ref` says: definition
        self._num_nodes = 0
        self._num_patterns = 0
        self._alike: dict[str, str] = {}  # a definition: its name
        self._multiples: set[float] = set()
        self._joins = False
        self.counted: str | None = (
            None  # a bound of the number of properties that holds with others
        )

    def definitions(self) -> Json:
        definitions: Json = {}
        while len(definitions) < len(self._names):
            for reference, name in list(self._names.items()):
                if name not in definitions:
                    path = self._path + as_path(reference[1:])
                    node = resolved(self._root, reference)
                    definitions[name] = self.node(node, path, 0, closed=self._strict)
        if self._joins and self._num_patterns > MAX_JOINED_PATTERNS:
            raise refused(
                self._path,
                f"{self._num_patterns} patterns together with 'allOf' are more than {MAX_JOINED_PATTERNS}",
            )
        if self._joins and joined_multiple(self._multiples) > MAX_MULTIPLE:
            raise refused(self._path, "its 'multipleOf' together have too many digits")
        return definitions | {name: json.loads(node) for node, name in self._alike.items()}

    def node(self, node: Any, path: str, depth: int, *, closed: bool) -> Any:
        if isinstance(node, bool):
            return node
        if not isinstance(node, Mapping):
            raise refused(path, "a schema must be an object or a boolean")
        self._count(1, path)
        if depth > MAX_DEPTH:
            raise refused(path, f"schemas are nested more than {MAX_DEPTH} deep")
        result: Json = {}
        if "$id" in node and node is not self._root:
            with self._part(result, "$id"):
                raise refused(f"{path}.$id", "only the whole schema may have an id")
        applied = [name for name in ("$ref", "allOf", "anyOf", "oneOf") if name in node]
        several = len(applied) > 1 or "allOf" in applied
        joined = several or (bool(applied) and "properties" in node)
        self._joins = self._joins or several or (bool(applied) and not _JOINED.isdisjoint(node))
        for key, value in node.items():
            where = f"{path}.{key}"
            if key in ANNOTATIONS or key.startswith("x-") or _does_nothing(key, value, node):
                continue
            with self._part(result, key):
                if key in CHECKS:
                    result[key] = self._checked(CHECKS[key], value, where)
                elif key in _APPLICATORS:
                    within = closed and not joined
                    _APPLICATORS[key](self, result, value, where, depth + 1, within)
                else:
                    raise refused(where, "this keyword cannot be enforced")
        _widen_others(result, node)
        with self._part(result, "pattern"):
            self._pattern(result, path)
        with self._part(result, "format"):
            self._format(result, path)
        for kind in ("imum", "Length", "Items", "Properties"):
            with self._part(result, f"min{kind}", f"max{kind}"):
                _check_bounds(result, kind, path)
        self._multiples.update({result["multipleOf"]} if "multipleOf" in result else ())
        if closed and not joined and "properties" in result:
            result.setdefault("additionalProperties", False)
        with self._part(result, "minProperties", "maxProperties"):
            _check_num_properties(result, path)
        if applied and (counts := [key for key in result if key in _COUNTS]):
            self.counted = f"{path}.{counts[0]}"
        return self._shared(result) if bound_integers(result) else result

    @contextlib.contextmanager
    def _part(self, result: Json, *keys: str) -> Iterator[None]:
        """A part of a node. One that cannot be enforced is left out with its `keys`, where that may be."""
        try:
            yield
        except BadRequestError:
            if self._left_out is None:
                raise
            self._left_out.update({key: None for key in keys if key in result or len(keys) == 1})
            for key in keys:
                result.pop(key, None)

    def _shared(self, node: Json) -> Json:
        """A reference to a definition of all nodes alike: patterns of bounds are large."""
        name = self._alike.setdefault(json.dumps(node, sort_keys=True), f"i{len(self._alike)}")
        return {"$ref": f"#/$defs/{name}"}

    def _checked(self, check: Callable[[Any], Any], value: Any, path: str) -> Any:
        self._count(len(repr(value)) // _TEXT_OF_A_NODE, path)
        try:
            return check(value)
        except KeywordError as fault:
            raise refused(path, str(fault)) from None

    def _count(self, number: int, path: str) -> None:
        self._num_nodes += number
        if self._num_nodes > MAX_NODES:
            raise refused(path, f"the schema has more than {MAX_NODES} parts")

    def _pattern(self, result: Json, path: str) -> None:
        if "pattern" in result:
            self._check_pattern(result["pattern"], f"{path}.pattern")

    def _check_pattern(self, pattern: str, path: str) -> None:
        self._num_patterns += 1
        if len(pattern) > _LONGEST_PATTERN:
            raise refused(path, f"a pattern has at most {_LONGEST_PATTERN} characters")
        if fault := _fault({"type": "string", "pattern": pattern}):
            raise refused(path, " ".join(fault.split())[:200])

    def _format(self, result: Json, path: str) -> None:
        """Formats of texts are enforced; those of whole numbers become bounds."""
        name = result.get("format")
        if name is None:
            return
        types = result.get("type", TYPES)
        types = [types] if isinstance(types, str) else types
        if name in STRING_FORMATS:
            self._num_patterns += 1
            if name in STRICTER_FORMATS:
                result.setdefault("allOf", []).append({"pattern": STRICTER_FORMATS[name]})
        elif "string" in types:
            known = ", ".join(sorted(STRING_FORMATS))
            raise refused(f"{path}.format", f"'{name:.64}' cannot be enforced; known are {known}")
        else:
            del result["format"]
            if name in INTEGER_RANGES:
                low, high = INTEGER_RANGES[name]
                result["minimum"] = max(low, result.get("minimum", low))
                result["maximum"] = min(high, result.get("maximum", high))

    def _ref(self, result: Json, value: Any, path: str, depth: int, closed: bool) -> None:
        if not isinstance(value, str):
            raise refused(path, "must be a text")
        if resolved(self._root, value) is NOTHING:
            where = (
                "" if value.startswith("#") else "; only parts of the schema itself can be named"
            )
            raise refused(path, f"'{value:.128}' is not there{where}")
        self._names.setdefault(value, f"d{len(self._names)}")
        result["$ref"] = f"#/$defs/{self._names[value]}"

    def _one_of(self, result: Json, value: Any, path: str, depth: int, closed: bool) -> None:
        options = self._list(value, path, depth, closed=closed)
        if not options_disjoint(value, lambda reference: resolved(self._root, reference)):
            with self._part(result, "oneOf"):
                raise refused(path, "several of its options may fit one value; use 'anyOf'")
        result.setdefault("allOf", []).append({"anyOf": options})

    def _any_of(self, result: Json, value: Any, path: str, depth: int, closed: bool) -> None:
        result["anyOf"] = self._list(value, path, depth, closed=closed)

    def _all_of(self, result: Json, value: Any, path: str, depth: int, closed: bool) -> None:
        result.setdefault("allOf", []).extend(self._list(value, path, depth, closed=False))

    def _schemas(self, result: Json, value: Any, path: str, depth: int, closed: bool) -> None:
        name = path.rpartition(".")[2]
        if not isinstance(value, Mapping):
            raise refused(path, "must be an object")
        if name == "patternProperties":
            for pattern in value:
                self._check_pattern(pattern, f"{path}.{pattern}")
        result[name] = {
            self._checked(CHECKS["const"], key, f"{path}.{key}"): self.node(
                one, f"{path}.{key}", depth, closed=self._strict
            )
            for key, one in value.items()
        }

    def _schema(self, result: Json, value: Any, path: str, depth: int, closed: bool) -> None:
        name = path.rpartition(".")[2]
        result[name] = self.node(value, path, depth, closed=self._strict)

    def _items(self, result: Json, value: Any, path: str, depth: int, closed: bool) -> None:
        if isinstance(value, list):  # a tuple, as drafts before 2020 write it
            result["prefixItems"] = self._list(value, path, depth, closed=self._strict)
        else:
            result["items"] = self.node(value, path, depth, closed=self._strict)

    def _prefix_items(self, result: Json, value: Any, path: str, depth: int, closed: bool) -> None:
        result["prefixItems"] = self._list(value, path, depth, closed=self._strict)

    def _further_items(self, result: Json, value: Any, path: str, depth: int, closed: bool) -> None:
        result["items"] = self.node(value, path, depth, closed=self._strict)

    def _list(self, value: Any, path: str, depth: int, *, closed: bool) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise refused(path, "must be a list of schemas that is not empty")
        return [self.node(one, f"{path}[{i}]", depth, closed=closed) for i, one in enumerate(value)]


_APPLICATORS: dict[str, Callable[[_Walk, Json, Any, str, int, bool], None]] = {
    "$ref": _Walk._ref,
    "anyOf": _Walk._any_of,
    "oneOf": _Walk._one_of,
    "allOf": _Walk._all_of,
    "properties": _Walk._schemas,
    "patternProperties": _Walk._schemas,
    "additionalProperties": _Walk._schema,
    "items": _Walk._items,
    "prefixItems": _Walk._prefix_items,
    _DRAFT_7_TUPLE: _Walk._further_items,
}


def _does_nothing(key: str, value: Any, node: Mapping[str, Any]) -> bool:
    """Keywords that say nothing in this place."""
    if key in ("uniqueItems", "unevaluatedItems", "unevaluatedProperties"):
        return value is (key != "uniqueItems")
    if key == "propertyNames":
        return value is True or value in ({}, {"type": "string"})
    return key == _DRAFT_7_TUPLE and not isinstance(node.get("items"), list)


def _widen_others(result: Json, node: Mapping[str, Any]) -> None:
    """Drop what holds for all that others do not name, where one of those was left out."""
    if any(name in node and name not in result for name in ("properties", "patternProperties")):
        result.pop("additionalProperties", None)
    listed = "prefixItems" in node or isinstance(node.get("items"), list)
    if listed and "prefixItems" not in result:
        result.pop("items", None)


def _check_bounds(result: Json, kind: str, path: str) -> None:
    low, high = result.get(f"min{kind}"), result.get(f"max{kind}")
    if low is not None and high is not None and low > high:
        raise refused(path, f"'min{kind}' is greater than 'max{kind}'")


def _fault(document: Json) -> str:
    """Why llguidance does not take it; "" where it does."""
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(document))
    return LLMatcher.validate_grammar(grammar)


def _check_num_properties(result: Json, path: str) -> None:
    """A key that is not named may be written twice and then counts once."""
    named = [key for key in _COUNTS if key in result]
    if not named:
        return
    required = len(result.get("required", ()))
    if result.get("minProperties", 0) > max(1, required):
        raise refused(
            f"{path}.minProperties", "more than are 'required' (or than 1) cannot be enforced"
        )
    alone = {
        key: dict.fromkeys(value, True) if key.endswith("roperties") and key not in named else value
        for key, value in result.items()
        if key in (*named, "required", "properties", "patternProperties")
    }
    alone["additionalProperties"] = result.get("additionalProperties") is not False
    alone["type"] = "object"
    if _fault(alone):
        raise refused(
            f"{path}.{named[0]}",
            "cannot be enforced where 'properties' names some that are not 'required'",
        )
