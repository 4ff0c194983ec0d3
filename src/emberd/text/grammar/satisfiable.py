"""What can be told of schemas without writing a value: whether a finite one fits, and whether options overlap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .keywords import TYPES

Json = dict[str, Any]
_MAX_REFERENCES = 16


def is_finite(node: Json, definitions: Json) -> bool:
    """Whether a document's `node` has values that end: `{"required": ["a"]}` with itself as `a` has none."""
    finite: set[str] = set()
    while True:
        found = {name for name, one in definitions.items() if _finite(one, finite)}
        if found == finite:
            return _finite(node, finite)
        finite = found


def _finite(node: Any, definitions: set[str]) -> bool:
    if isinstance(node, bool):
        return node
    if "$ref" in node and node["$ref"].rpartition("/")[2] not in definitions:
        return False
    if not any(_finite(one, definitions) for one in node.get("anyOf", (True,))):
        return False
    if not all(_finite(one, definitions) for one in node.get("allOf", ())):
        return False
    kinds = node.get("type", TYPES)
    kinds = {kinds} if isinstance(kinds, str) else set(kinds)
    if "const" in node or "enum" in node or kinds - {"array", "object"}:
        return True
    return ("array" in kinds and _finite_items(node, definitions)) or (
        "object" in kinds and _finite_properties(node, definitions)
    )


def _finite_items(node: Json, definitions: set[str]) -> bool:
    first, least = node.get("prefixItems", []), node.get("minItems", 0)
    needed = [*first[:least], *([node.get("items", True)] if least > len(first) else [])]
    return all(_finite(one, definitions) for one in needed)


def _finite_properties(node: Json, definitions: set[str]) -> bool:
    properties, others = node.get("properties", {}), node.get("additionalProperties", True)
    if "patternProperties" in node:
        others = True  # which of them it is does not matter here: the compiler looks again
    return all(
        _finite(properties.get(name, others), definitions) for name in node.get("required", ())
    )


def options_disjoint(options: Any, resolve: Callable[[str], Any]) -> bool:
    """Whether no value fits two of the options, as far as types, constants and properties that must be there
    and have constants tell. `resolve` gives what a `$ref` names."""
    found = [_followed(option, resolve) for option in options]
    return all(
        _disjoint(one, other, resolve) for i, one in enumerate(found) for other in found[i + 1 :]
    )


def _followed(node: Any, resolve: Callable[[str], Any]) -> Any:
    """Through references that stand alone."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(node, Mapping) or not isinstance(node.get("$ref"), str):
            break
        node = resolve(node["$ref"])
    return node


def _disjoint(one: Any, other: Any, resolve: Callable[[str], Any]) -> bool:
    if one is False or other is False:
        return True
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return False
    if not _types(one) & _types(other):
        return True
    if _constants_differ(one, other):
        return True
    if _types(one) & _types(other) != {"object"}:
        return False
    return any(
        _constants_differ(_property(one, name, resolve), _property(other, name, resolve))
        for name in _names(one) & _names(other)
    )


def _types(node: Mapping[str, Any]) -> set[str]:
    kinds = node.get("type", TYPES)
    kinds = kinds if isinstance(kinds, list | tuple) else [kinds]
    found = {kind for kind in kinds if isinstance(kind, str)} or set(TYPES)
    return found | {"integer"} if "number" in found else found


def _names(node: Mapping[str, Any]) -> set[str]:
    required = node.get("required")
    return (
        {name for name in required if isinstance(name, str)}
        if isinstance(required, list)
        else set()
    )


def _property(node: Mapping[str, Any], name: str, resolve: Callable[[str], Any]) -> Any:
    properties = node.get("properties")
    found = properties.get(name) if isinstance(properties, Mapping) else None
    return _followed(found, resolve)


def _constants_differ(one: Any, other: Any) -> bool:
    first, second = _constants(one), _constants(other)
    return (
        first is not None and second is not None and not any(a == b for a in first for b in second)
    )


def _constants(node: Any) -> list[Any] | None:
    if not isinstance(node, Mapping):
        return None
    if "const" in node:
        return [node["const"]]
    values = node.get("enum")
    return values if isinstance(values, list) else None
