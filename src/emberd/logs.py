"""Logs: one event a line on standard error, as text or JSON, with the id of the request it belongs to.

A leaf that the daemon and its workers use alike. Events have named fields; what people wrote is in none of
them unless the setting `log_prompts` asks for it.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from contextvars import ContextVar
from typing import Any, TextIO

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Set for all that runs on behalf of a request; empty elsewhere."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_PLAIN = re.compile(r"[\w.:/@+*=,%\-]+", re.ASCII)
_QUIET = ("httpx", "httpcore", "asyncio", "uvicorn")


def fields(**values: Any) -> dict[str, Any]:
    """For the `extra` of a log call: named values of the event, JSON as they are."""
    return {"fields": values}


def setup(level: str, style: str, stream: TextIO | None = None) -> None:
    """Send all events of `level` (debug, info, ...) and above to `stream` (standard error), in text or json.

    A process whose root logger has handlers already keeps them.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if style == "json" else TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def style() -> str:
    """The style that `setup` chose; text where it was never called."""
    chosen = (handler.formatter for handler in logging.getLogger().handlers)
    return "json" if any(isinstance(one, JsonLines) for one in chosen) else "text"


class TextLines(logging.Formatter):
    """`time LEVEL message name=value ...`; control characters, which could forge a line, are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        values = _values(record)
        words = [_time(record), record.levelname, _escaped(record.getMessage())]
        words += [f"{name}={_word(value)}" for name, value in values.items()]
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        return " ".join(words) + (f"\n{trace}" if trace else "")


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, message, then the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_values(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


def _values(record: logging.LogRecord) -> dict[str, Any]:
    values: dict[str, Any] = dict(getattr(record, "fields", {}))
    if (identity := request_id.get()) and "request_id" not in values:
        values["request_id"] = identity
    return values


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _word(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, str) and not _PLAIN.fullmatch(text):
        text = json.dumps(text, ensure_ascii=False)
    return _escaped(text)


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
