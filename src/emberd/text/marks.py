"""Marks (tags, stop strings) in text that comes in pieces. Knows no mark's meaning."""

from __future__ import annotations

from collections.abc import Iterable


def possible_beginning(text: str, marks: Iterable[str]) -> int:
    """Length of the longest end of `text` that one of `marks` begins with, and is longer than."""
    marks = tuple(marks)
    longest = max(map(len, marks), default=0)
    for length in range(min(longest - 1, len(text)), 0, -1):
        if any(len(mark) > length and mark.startswith(text[-length:]) for mark in marks):
            return length
    return 0


def first_mark(text: str, marks: Iterable[str]) -> tuple[int, str] | None:
    """Place and name of the mark that comes first; of those that begin at one place, the longest."""
    found = [(place, -len(mark), mark) for mark in marks if (place := text.find(mark)) >= 0]
    if not found:
        return None
    place, _, mark = min(found)
    return place, mark
