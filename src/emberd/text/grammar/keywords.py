"""The keywords of JSON schemas whose values are no schemas: which are known, and how their values are checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .numbers import MAX_MULTIPLE, significant

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

ANNOTATIONS = frozenset(
    {
        "$anchor",
        "$comment",
        "$defs",
        "$id",
        "$schema",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "discriminator",
        "enumDescriptions",
        "enumNames",
        "example",
        "examples",
        "externalDocs",
        "id",
        "nullable",  # OpenAPI's: without it fewer values fit, and all of them are right
        "propertyOrdering",
        "readOnly",
        "title",
        "writeOnly",
        "xml",
    }
)
"""They say nothing about which values fit."""

STRING_FORMATS = frozenset(
    {
        "date",
        "date-time",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "time",
        "uri",
        "uuid",
    }
)
_YEAR = r"(?:[1-9]\d{3}|0[1-9]\d{2}|00[1-9]\d|000[1-9])"
_LEAP_YEAR = r"(?:\d{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = rf"(?:{_YEAR}-(?:\d[013-9]-|1[0-2]-|02-(?:[01]|2[0-8]))|{_LEAP_YEAR}-02-29)"
STRICTER_FORMATS = {
    "date": f"^{_DAY}",
    "date-time": rf"^{_DAY}[^:]*:\d{{2}}:[0-5]",
    "time": r"^\d{2}:\d{2}:[0-5]",
}
"""Beside llguidance's formats, which have a year 0, February 29 in every year and leap seconds at any time: most
readers have none of them."""

LARGEST = (1 << 53) - 1
"""Whole numbers up to here are kept apart by llguidance."""

INTEGER_RANGES = {
    "int8": (-(1 << 7), (1 << 7) - 1),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "int64": (-LARGEST, LARGEST),
    "uint8": (0, (1 << 8) - 1),
    "uint16": (0, (1 << 16) - 1),
    "uint32": (0, (1 << 32) - 1),
    "uint64": (0, LARGEST),
}
_LARGEST_COUNT = 1 << 31
_DEEPEST_VALUE = 32


class KeywordError(Exception):
    """What is wrong with a keyword's value."""


def _type(value: Any) -> Any:
    kinds = value if isinstance(value, list) else [value]
    for kind in kinds:
        if kind not in TYPES:
            raise KeywordError(f"{kind!r:.64} is no type; types are {', '.join(TYPES)}")
    if not kinds:
        raise KeywordError("must name a type")
    return value


def _value(value: Any, depth: int = 0) -> Any:
    """A value that is to be written as it is."""
    if isinstance(value, str):
        if any(c == "\x7f" or (c < " " and c not in "\b\t\n\f\r") for c in value):
            raise KeywordError("texts with control characters cannot be written")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _number(value)
    elif isinstance(value, list | dict):
        if depth > _DEEPEST_VALUE:
            raise KeywordError(f"a value is nested more than {_DEEPEST_VALUE} deep")
        for one in [*value, *value.values()] if isinstance(value, dict) else value:
            _value(one, depth + 1)
    return value


def _values(value: Any) -> Any:
    if not isinstance(value, list) or not value:
        raise KeywordError("must be a list of values that is not empty")
    return [_value(one) for one in value]


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise KeywordError("must be a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise KeywordError("must be a number")
    if abs(value) > LARGEST and (isinstance(value, int) or value.is_integer()):
        raise KeywordError(f"numbers beyond {LARGEST} cannot be kept apart")
    return value


def _exclusive(value: Any) -> Any:
    return value if isinstance(value, bool) else _number(value)  # true: as draft 4 has it


def _multiple(value: Any) -> Any:
    if _number(value) <= 0:
        raise KeywordError("must be greater than 0")
    if significant(value) > MAX_MULTIPLE:
        raise KeywordError(
            f"digits beyond {MAX_MULTIPLE} (zeros at the end aside) cannot be enforced"
        )
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        raise KeywordError("must be a whole number")
    if not 0 <= value <= _LARGEST_COUNT:
        raise KeywordError(f"must be from 0 to {_LARGEST_COUNT}")
    return int(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise KeywordError("must be a text")
    return value


def _names(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise KeywordError("must be a list of names")
    return [_value(one) for one in dict.fromkeys(value)]


CHECKS: dict[str, Callable[[Any], Any]] = {
    "type": _type,
    "enum": _values,
    "const": _value,
    "minimum": _number,
    "maximum": _number,
    "exclusiveMinimum": _exclusive,
    "exclusiveMaximum": _exclusive,
    "multipleOf": _multiple,
    "minLength": _count,
    "maxLength": _count,
    "pattern": _text,
    "format": _text,
    "minItems": _count,
    "maxItems": _count,
    "minProperties": _count,
    "maxProperties": _count,
    "required": _names,
}
