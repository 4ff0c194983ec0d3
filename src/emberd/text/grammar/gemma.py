"""Arguments as Gemma writes them: `{a:<escape>text<escape>,n:1}`, with bare keys and tags for quotes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .arguments import Parameters, Write, constants, free_text, other_name, raw_text
from .keywords import ANNOTATIONS, CHECKS, KeywordError
from .pointers import refused, resolved
from .rules import Rules, literal, optional_list
from .schema import SchemaReader

Node = Mapping[str, Any]
_SCALARS = {"integer", "number", "boolean", "null"}
_NO_KEY = r""":<"{}\[\],\x00-\x1f"""
_KEYS = rf"[^\s{_NO_KEY}]([^{_NO_KEY}]{{0,126}}[^\s{_NO_KEY}])?"
_MAX_DEPTH = 12
_MAX_VALUES = 500  # references are written out each time
_ANY_DEPTH = 6  # levels of lists and objects where a schema leaves a value open
_CANNOT = "Gemma's notation of calls cannot hold it"
_OF_LISTS = ("prefixItems", "allOf", "anyOf", "oneOf")
_OF_OBJECTS = ("patternProperties", "minProperties", "maxProperties", "allOf", "anyOf", "oneOf")


def as_gemma(quote: str) -> Write:
    def write(rules: Rules, parameters: Parameters) -> str:
        parameters.reader.document()  # all of it must be known; what follows writes less than that
        return _Writer(rules, parameters, quote).value(parameters.root(), 0)

    return write


class _Writer:
    def __init__(self, rules: Rules, parameters: Parameters, quote: str) -> None:
        self._rules, self._parameters, self._quote = rules, parameters, quote
        self._num_values = 0

    def value(self, pointer: str, depth: int) -> str:
        """Raises BadRequestError where something cannot be written and must not be left out."""
        node, path = self._parameters.at(pointer), self._parameters.path + pointer.replace("/", ".")
        self._num_values += 1
        if depth > _MAX_DEPTH or self._num_values > _MAX_VALUES:
            return self._open("$ref", path, depth)
        if node is True:
            return self._any(depth)
        if not isinstance(node, Mapping):
            return self._open("properties", path, depth)
        if isinstance(reference := node.get("$ref"), str):
            self._leave_out([key for key in node if key not in ANNOTATIONS | {"$ref"}], path)
            if resolved(self._parameters.schema, reference) is node:
                return self._open("$ref", path, depth)
            return self.value(reference[1:], depth + 1)
        for key in ("const", "enum"):
            if self._holds(node, key, path):
                return self._constants(pointer, key, path, depth)
        kinds = node["type"] if self._holds(node, "type", path) else None
        if kinds is None:
            return self._untyped(pointer, node, path, depth)
        options = [
            self._typed(pointer, kind, node, path, depth)
            for kind in (kinds if isinstance(kinds, list) else [kinds])
        ]
        return self._rules.rule(" | ".join(options))

    def _untyped(self, pointer: str, node: Node, path: str, depth: int) -> str:
        """Of what its keywords tell: one of several, an object, a list; else any value."""
        for key in ("anyOf", "oneOf", "allOf"):
            options = node.get(key)
            if not isinstance(options, list) or (key == "allOf" and len(options) > 1):
                continue
            more = [other for other in node if other not in ANNOTATIONS | {key}]
            places = [i for i, one in enumerate(options) if one is not False]
            if not places or {"properties", "allOf"} & set(more):
                self._leave_out([key], path)
                continue
            self._leave_out(more, path)
            return self._rules.rule(
                " | ".join(self.value(f"{pointer}/{key}/{i}", depth + 1) for i in places)
            )
        if "properties" in node or "required" in node:
            return self._typed(pointer, "object", node, path, depth)
        if "items" in node:
            return self._typed(pointer, "array", node, path, depth)
        told = ANNOTATIONS | {"additionalProperties", "type", "enum", "const"}
        self._leave_out([key for key in node if key not in told], path)
        return self._any(depth)

    def _typed(self, pointer: str, kind: Any, node: Node, path: str, depth: int) -> str:
        if kind == "string":
            quote = re.escape(self._quote)
            text = raw_text(self._rules, self._parameters, pointer, self._quote, quote)
            return f"{self._rules.text(self._quote)} {text}"
        if kind in _SCALARS:
            document = {**self._parameters.reader.document(pointer), "type": kind}
            return self._rules.json(document)
        of_kind = _OF_LISTS if kind == "array" else _OF_OBJECTS
        self._leave_out([key for key in of_kind if key in node], path)
        if kind == "array":
            return self._list(pointer, node, path, depth)
        return self._object(pointer, node, path, depth)

    def _list(self, pointer: str, node: Node, path: str, depth: int) -> str:
        if isinstance(node.get("items", {}), list):
            self._leave_out(["items"], path)
        items = node.get("items", True)
        if items is False:
            return literal("[]")
        item = self._any(depth)
        if isinstance(items, Mapping):
            item = self.value(f"{pointer}/items", depth + 1)
        low = int(node["minItems"]) if self._holds(node, "minItems", path) else 0
        high = int(node["maxItems"]) if self._holds(node, "maxItems", path) else None
        if high is not None and low > high:  # left out by the reader, which refuses it otherwise
            low, high = 0, None
        if high == 0:
            return literal("[]")
        most = "" if high is None else str(high - 1)
        more = f'{item} ("," {item}){{{max(0, low - 1)},{most}}}'
        return self._rules.rule(f'"[" {more} "]"' if low else f'"[" ({more})? "]"')

    def _object(self, pointer: str, node: Node, path: str, depth: int) -> str:
        properties, others = node.get("properties", {}), node.get("additionalProperties", True)
        if not isinstance(properties, Mapping):
            self._leave_out(["properties"], path)
            properties, others = {}, True
        required = node["required"] if self._holds(node, "required", path) else []
        items = []
        for name in dict.fromkeys([*properties, *required]):
            key = "properties" if name in properties else "required"
            if properties.get(name, others) is False:
                if name in required:
                    raise refused(f"{path}.required", f"'{name!s:.64}' is not in 'properties'")
                continue
            if not re.fullmatch(_KEYS, name):
                self._leave_out([key], path, name)
                others = True
                continue
            if name in properties:
                where = name.replace("~", "~0").replace("/", "~1")
                value = self.value(f"{pointer}/properties/{where}", depth + 1)
            else:
                value = self._other(pointer, others, depth)
            items.append((f"{literal(name + ':')} {value}", name in required))
        lost = [key for key in _OF_OBJECTS if node.get(key)]
        if not items and (others is not False or lost):
            return self._entries(self._other(pointer, others, depth))
        return self._rules.rule(f'"{{" {optional_list(self._rules, items, literal(","))} "}}"')

    def _other(self, pointer: str, others: Any, depth: int) -> str:
        """A value of a name that the schema does not tell."""
        if isinstance(others, Mapping):
            return self.value(f"{pointer}/additionalProperties", depth + 1)
        return self._any(depth)

    def _entries(self, value: str) -> str:
        entry = f'{other_name(self._rules, _KEYS, [])} ":" {value}'
        return self._rules.rule(f'"{{" ({entry} ("," {entry})*)? "}}"')

    def _any(self, depth: int) -> str:
        """Any value, of a few levels."""
        rules, quote = self._rules, self._rules.text(self._quote)
        plain = SchemaReader({"anyOf": [{"type": kind} for kind in sorted(_SCALARS)]}, "")
        text = free_text(rules, self._quote, re.escape(self._quote))
        value = leaf = f"{rules.json(plain.document())} | {quote} {text}"
        for _ in range(max(1, _ANY_DEPTH - depth)):
            one = rules.rule(value)
            value = f'{leaf} | {self._entries(one)} | "[" ({one} ("," {one})*)? "]"'
        return rules.rule(value)

    def _constants(self, pointer: str, key: str, path: str, depth: int) -> str:
        document = self._parameters.reader.document(pointer)
        if key not in document:  # it was left out
            return self._any(depth)
        written = [self._constant(value) for value in constants(document)]
        held = [one for one in written if one is not None]
        if (not held or len(held) < len(written)) and not self._parameters.leave_out(key):
            raise refused(path, _CANNOT)
        return self._rules.rule(" | ".join(held)) if held else self._any(depth)

    def _constant(self, value: Any) -> str | None:
        """None: it cannot be written."""
        if isinstance(value, str):
            quote = self._rules.text(self._quote)
            return None if self._quote in value else f"{quote} {literal(value)} {quote}"
        if isinstance(value, Mapping):
            if not all(re.fullmatch(_KEYS, name) for name in value):
                return None
            parts = [(f"{name}:", one) for name, one in value.items()]
            return self._joined("{}", parts)
        if isinstance(value, list):
            return self._joined("[]", [("", one) for one in value])
        return literal(json.dumps(value))

    def _joined(self, brackets: str, parts: Sequence[tuple[str, Any]]) -> str | None:
        written = [(head, self._constant(one)) for head, one in parts]
        if any(one is None for _, one in written):
            return None
        entries = [f"{literal(head)} {one}" if head else str(one) for head, one in written]
        return " ".join([literal(brackets[0]), ' "," '.join(entries), literal(brackets[1])])

    def _holds(self, node: Node, key: str, path: str) -> bool:
        """Whether there is such a keyword, and its value is not wrong, for which it is left out."""
        if key not in node:
            return False
        try:
            CHECKS[key](node[key])
        except KeywordError as fault:
            if self._parameters.leave_out(key):
                return False
            raise refused(f"{path}.{key}", str(fault)) from None
        return True

    def _leave_out(self, keys: Sequence[str], path: str, name: str = "") -> None:
        """Raises BadRequestError where the keywords must be held."""
        for key in keys:
            if not self._parameters.leave_out(key):
                what = f".{name}" if name else ""
                raise refused(f"{path}.{key}{what}", _CANNOT)

    def _open(self, key: str, path: str, depth: int) -> str:
        """Any value, where `key` may be left out."""
        if not self._parameters.leave_out(key):
            raise refused(path, _CANNOT)
        return self._any(depth)
