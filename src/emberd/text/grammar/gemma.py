"""Arguments as Gemma writes them: `{a:<escape>text<escape>,n:1}`, with bare keys and tags for quotes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from .arguments import Parameters, Write, raw_text
from .keywords import CHECKS, KeywordError
from .pointers import refused
from .rules import Rules, literal, optional_list

_SCALARS = {"integer", "number", "boolean", "null"}
_KEY = re.compile(r"[\w.\-]+")
_MAX_DEPTH = 12
_MAX_VALUES = 500  # references are written out each time
_CANNOT = "Gemma's notation of calls cannot hold it"


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
        node, path = self._parameters.at(pointer), self._parameters.path + pointer.replace("/", ".")
        self._num_values += 1
        if not isinstance(node, Mapping) or depth > _MAX_DEPTH or self._num_values > _MAX_VALUES:
            raise refused(path, _CANNOT)
        if isinstance(reference := node.get("$ref"), str):
            if set(node) - {"$ref", "description", "title", "default"}:
                raise refused(f"{path}.$ref", f"{_CANNOT} beside other keywords")
            return self.value(reference[1:], depth + 1)
        for key in ("anyOf", "oneOf"):
            if isinstance(node.get(key), list):
                if {"properties", "allOf", "type"} & set(node):
                    raise refused(f"{path}.{key}", f"{_CANNOT} beside other keywords")
                if not node[key]:
                    raise refused(f"{path}.{key}", _CANNOT)
                options = [
                    self.value(f"{pointer}/{key}/{i}", depth + 1) for i in range(len(node[key]))
                ]
                return self._rules.rule(" | ".join(options))
        if self._holds(node, "const", path):
            return self._constants([node["const"]], path)
        if self._holds(node, "enum", path):
            return self._constants(node["enum"], path)
        kinds = node["type"] if self._holds(node, "type", path) else None
        if isinstance(kinds, list):
            return self._rules.rule(
                " | ".join(self._typed(pointer, k, node, path, depth) for k in kinds)
            )
        return self._typed(pointer, kinds, node, path, depth)

    def _holds(self, node: Mapping[str, Any], key: str, path: str) -> bool:
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

    def _typed(
        self, pointer: str, kind: Any, node: Mapping[str, Any], path: str, depth: int
    ) -> str:
        if kind == "string":
            text = raw_text(
                self._rules, self._parameters, pointer, self._quote, re.escape(self._quote)
            )
            return f"{self._rules.text(self._quote)} {text}"
        if kind in _SCALARS:
            document = {**self._parameters.reader.document(pointer), "type": kind}
            return self._rules.json(document)
        if (
            kind == "array"
            and not {"prefixItems", "allOf"} & set(node)
            and isinstance(node.get("items"), dict)
        ):
            return self._list(pointer, node, path, depth)
        if kind == "object" and not {"patternProperties", "minProperties", "allOf"} & set(node):
            return self._object(pointer, node, path, depth)
        raise refused(path, _CANNOT)

    def _list(self, pointer: str, node: Mapping[str, Any], path: str, depth: int) -> str:
        item = self.value(f"{pointer}/items", depth + 1)
        low = int(node["minItems"]) if self._holds(node, "minItems", path) else 0
        high = int(node["maxItems"]) if self._holds(node, "maxItems", path) else None
        if high is not None and low > high:  # left out by the reader, which refuses it otherwise
            low, high = 0, None
        if high == 0:
            return literal("[]")
        most = "" if high is None else str(high - 1)
        items = f'{item} ("," {item}){{{max(0, low - 1)},{most}}}'
        return self._rules.rule(f'"[" {items} "]"' if low else f'"[" ({items})? "]"')

    def _object(self, pointer: str, node: Mapping[str, Any], path: str, depth: int) -> str:
        properties = node.get("properties", {})
        if not isinstance(properties, Mapping):
            raise refused(f"{path}.properties", "must be an object")
        required = node["required"] if self._holds(node, "required", path) else []
        if missing := [name for name in required if name not in properties]:
            raise refused(f"{path}.required", f"'{missing[0]!s:.64}' is not in 'properties'")
        items = []
        for name in properties:
            if not _KEY.fullmatch(name):
                raise refused(
                    f"{path}.properties.{name}", "Gemma's notation of calls has no such names"
                )
            value = self.value(f"{pointer}/properties/{name}", depth + 1)
            items.append((f"{literal(name + ':')} {value}", name in required))
        return self._rules.rule(f'"{{" {optional_list(self._rules, items, literal(","))} "}}"')

    def _constants(self, values: Any, path: str) -> str:
        options = []
        for value in values:
            if isinstance(value, str):
                if self._quote in value:
                    raise refused(path, _CANNOT)
                quote = self._rules.text(self._quote)
                options.append(f"{quote} {literal(value)} {quote}")
            elif value is None or isinstance(value, bool | int | float):
                options.append(literal(json.dumps(value)))
            else:
                raise refused(path, _CANNOT)
        return self._rules.rule(" | ".join(options))
