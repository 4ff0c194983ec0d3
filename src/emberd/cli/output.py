"""What commands print: tables for people, JSON for programs, sizes and times in words."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
_WIDTH_WITHOUT_TERMINAL = 200  # a pipe has no width; a table cut to 80 columns loses names


def console() -> Console:
    """Standard output; made anew each time, since tests and pipes replace it."""
    return Console(
        width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL,
        highlight=False,
        markup=False,
        emoji=False,
    )


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Columns whose cells are all numbers are set to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(cells) and all(row[index][:1].isdigit() for row in cells)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*row)
    console().print(table)


def print_json(value: Any) -> None:
    """Numbers that JSON does not have become null."""
    print(json.dumps(_finite(value), indent=2, ensure_ascii=False, default=str))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def printable(text: str) -> str:
    """What a terminal shows and does not obey: texts of files from elsewhere may hold its control codes."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def size_words(nbytes: float) -> str:
    """ "98.4 MB" from 98362432."""
    for unit in ("B", "KB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


def time_words(moment: datetime, now: datetime | None = None) -> str:
    """ "3 minutes ago", "in 4 minutes"; a year or more ahead is "never"."""
    seconds = (moment - (now or datetime.now(timezone.utc))).total_seconds()
    if seconds > 365 * 86400:
        return "never"
    amount = abs(seconds)
    for length, unit in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if amount >= length:
            count = int(amount // length)
            words = f"{count} {unit}{'s' if count != 1 else ''}"
            return f"in {words}" if seconds > 0 else f"{words} ago"
    return "now"
