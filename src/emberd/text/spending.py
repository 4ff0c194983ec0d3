"""What a template has made in one rendering, and how much a single value may hold.

Lists that hold the same list again and again are small in memory and without end to whatever walks through them
(text, JSON, a comparison), which nothing can interrupt; so values are weighed when they are made, and what is in them
counts as often as it is there.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

from jinja2.exceptions import SecurityError

MAX_TEXT = 1 << 24
"""Characters of any text that a template makes, or of all that a list holds: several times the longest prompt."""

MAX_ITEMS = 1 << 20
"""Items of a list that a template puts together, those of lists in it too."""

MAX_MADE = 1 << 29
"""Bytes of all that one rendering makes, kept or not."""

MAX_BITS = 4096
"""Of a whole number."""


class TemplateLimitError(SecurityError):
    """A template that wants more than it may."""


_CONTAINERS = (list, tuple, dict, set, frozenset)
_rendering = threading.local()


class _Spending:
    def __init__(self, may_change: bool) -> None:
        self.bytes = 0
        self.may_change = may_change
        self.sums: dict[
            int, tuple[Any, int, int]
        ] = {}  # by id: lists put together, with what they hold
        self.holding: dict[int, Any] = {}  # by id: what holds other lists and dicts


@contextmanager
def spending(*, may_change: bool) -> Iterator[None]:
    """One rendering; `may_change`: lists and dicts may be changed once they are made."""
    _rendering.spending = _Spending(may_change)
    try:
        yield
    finally:
        _rendering.spending = None


def made(value: Any) -> Any:
    """`value`, which a template has just made. Raises TemplateLimitError where it is too large, or one too many."""
    if isinstance(value, str):
        check_size(len(value))
    elif isinstance(value, _CONTAINERS):
        weight(value)
    elif isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise TemplateLimitError(f"a template may not make numbers of over {MAX_BITS} bits")
        return value
    elif not isinstance(value, bytes):
        return value
    now: _Spending | None = getattr(_rendering, "spending", None)
    if now is not None:
        _spend(now, value)
        if now.may_change and isinstance(value, _CONTAINERS) and any(map(_holds, _items(value))):
            now.holding[id(value)] = value
    return value


def put_together(value: Any, left: Any, right: Any) -> Any:
    """`made` of what `left + right` gave: lists that grow by an item in a loop are not gone through each time."""
    now: _Spending | None = getattr(_rendering, "spending", None)
    if now is None or now.may_change or not isinstance(value, list):
        return made(value)
    known = now.sums.pop(id(left)) if id(left) in now.sums else (left, *_measured(left))
    characters, num_items = _measured(right)
    characters, num_items = known[1] + characters, known[2] + num_items
    _check_measures(characters, num_items)
    now.sums[id(value)] = (value, characters, num_items)
    _spend(now, value)
    return value


def joined(pieces: Iterable[str]) -> str:
    """`"".join`, which ends as soon as there is too much."""
    size, kept = 0, []
    for piece in pieces:
        size += len(piece)
        check_size(size)
        kept.append(piece)
    text = "".join(kept)
    made(text)
    return text


def changed(value: Any) -> None:
    """`value` was changed, and with it all that holds it. Raises TemplateLimitError as `made` does."""
    made(value)
    now: _Spending | None = getattr(_rendering, "spending", None)
    for holding in now.holding.values() if now is not None else ():
        weight(holding)


def weight(value: Any) -> int:
    """Characters and items of a value. Raises TemplateLimitError where it holds more than is allowed."""
    return sum(_measured(value))


def _measured(value: Any) -> tuple[int, int]:
    characters = num_items = 0
    level = [value]
    while level:
        item = level.pop()
        if isinstance(item, str):
            characters += len(item)
        elif isinstance(item, _CONTAINERS):
            num_items += len(item)
            if num_items <= MAX_ITEMS:
                level.extend(_items(item))
        if characters > MAX_TEXT or num_items > MAX_ITEMS:
            _check_measures(characters, num_items)
    return characters, num_items


def _check_measures(characters: int, num_items: int) -> None:
    check_size(characters)
    if num_items > MAX_ITEMS:
        raise TemplateLimitError(f"a template may not make lists of over {MAX_ITEMS} items")


def _spend(now: _Spending, value: Any) -> None:
    now.bytes += sys.getsizeof(value)
    if now.bytes > MAX_MADE:
        raise TemplateLimitError(f"a template may not make over {MAX_MADE >> 20} MB in all")


def _items(value: Any) -> Iterable[Any]:
    return chain(value, value.values()) if isinstance(value, dict) else value


def _holds(item: Any) -> bool:
    return isinstance(item, _CONTAINERS)


def check_size(size: int) -> None:
    if size > MAX_TEXT:
        raise TemplateLimitError(f"a template may not make texts of over {MAX_TEXT} characters")
