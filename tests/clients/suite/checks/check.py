"""What the Python checks share: where the daemon is, and steps that say what they saw.

Standard library only, since it runs on each client's own environment.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

BASE = os.environ["BASE_URL"]
V1 = f"{BASE}/v1"
MODEL, EMBED_MODEL, AGENT_MODEL = (
    os.environ[name] for name in ("MODEL", "EMBED_MODEL", "AGENT_MODEL")
)
_steps: list[Callable[[], object]] = []

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Get the weather of a city.", "parameters": CITY}
TIME = {"name": "get_time", "description": "Get the local time of a city.", "parameters": CITY}
TOOLS = [{"type": "function", "function": one} for one in (WEATHER, TIME)]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PERSON_TEXT = "John is 30 years old. Extract the name and the age as JSON."
WEATHER_QUESTION = "What is the weather in Paris?"


def step(function: Callable[[], object]) -> Callable[[], object]:
    """A step of the check; what it returns is shown. It fails by raising."""
    _steps.append(function)
    return function


def run() -> None:
    """All steps in order; exit code 1 when one failed."""
    failed = 0
    for function in _steps:
        try:
            told = function()
        except Exception as error:
            traceback.print_exc()
            failed += 1
            text = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"FAIL {function.__name__}: {text[:300]}", flush=True)
        else:
            print(f"ok {function.__name__}: {' '.join(str(told or '').split())[:200]}", flush=True)
    raise SystemExit(bool(failed or not _steps))
