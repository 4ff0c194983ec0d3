"""What keeps numbers of a document short, and their patterns cheap."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from math import lcm
from typing import Any

LONGEST_INTEGER = (1 << 63) - 1024
"""Where a schema leaves an integer open: 19 digits. The largest 64-bit number that is a double too, as llguidance
reads bounds."""

MAX_MULTIPLE = 10_000
"""llguidance keeps a state for each remainder: 65,521 of them took 4 seconds for 60 digits, 1,234,567 took 99."""

_ABOUT_NUMBERS = {"type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}


def bound_integers(node: dict[str, Any]) -> bool:
    """An integer that a schema leaves open could go on to the token limit. Where all numbers fit it may: bounds
    would take their exponents away. Whether the node says nothing else, so that it is one for all alike."""
    types = node.get("type", ())
    types = [types] if isinstance(types, str) else types
    if "integer" not in types or "number" in types:
        return False
    if not {"exclusiveMinimum", "minimum"} & set(node):
        node["minimum"] = -LONGEST_INTEGER
    if not {"exclusiveMaximum", "maximum"} & set(node):
        node["maximum"] = LONGEST_INTEGER
    return node.keys() <= _ABOUT_NUMBERS


def significant(number: float) -> int:
    """The digits of a number as a whole one, without zeros at the end: 25 of 0.25, 3 of 3000."""
    digits = Decimal(repr(number)).normalize().as_tuple().digits
    return int("".join(map(str, digits)))


def joined_multiple(multiples: Iterable[float]) -> int:
    """At least the digits that a number has which must be a multiple of all of them."""
    return lcm(*map(significant, multiples))
