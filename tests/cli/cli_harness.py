"""Types that the command tests share with their fixtures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Emberd = Callable[..., Result]


@dataclass
class ScriptedDaemon:
    """Answers from tables, and keeps what it was asked. A list is told one by one, its last for ever."""

    gets: dict[str, Any] = field(default_factory=dict)
    posts: dict[str, tuple[int, list[dict[str, Any]]]] = field(default_factory=dict)
    deletes: dict[str, tuple[int, list[dict[str, Any]]]] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)


def assert_one_clear_line(result: Result, *words: str) -> None:
    assert result.code == 1
    assert result.err.startswith("error: ") and result.err.count("\n") == 1, result.err
    for word in words:
        assert word in result.err
