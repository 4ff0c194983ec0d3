"""What a reader of one notation of calls gives, and how it says that a text is none.

Knows no notation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Json = dict[str, Any]


class NotACallError(Exception):
    """The text only begins like a call."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A call begins; the fragments up to the next Begin are its arguments."""

    name: str


Piece = Begin | str
"""A call's beginning, or a fragment of its arguments."""


class Body(Protocol):
    """Reads what stands behind one opening tag."""

    def push(self, text: str) -> tuple[list[Piece], str | None]:
        """Pieces that are certain; then None while there is more to come, else the text behind the calls.

        Raises NotACallError.
        """

    def finish(self) -> list[Piece]:
        """The last pieces, when the reply ends here of itself. Raises NotACallError."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The functions of a request: by name, the JSON schema of the arguments."""

    schemas: Mapping[str, Json]

    def converted(self, name: str, arguments: Mapping[str, str]) -> Json:
        """Arguments of a notation that writes all values as text. What the schema does not call a string
        is read as JSON where it is JSON."""
        properties = self.schemas.get(name, {}).get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        return {key: _value(text, properties.get(key)) for key, text in arguments.items()}


def tools_of(tools: Any) -> Tools:
    """From the OpenAI form; what is not of that form is left out."""
    schemas: dict[str, Json] = {}
    for tool in tools or ():
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(name := function.get("name"), str):
            parameters = function.get("parameters")
            schemas[name] = dict(parameters) if isinstance(parameters, Mapping) else {}
    return Tools(schemas)


MakeBody = Callable[[Tools], Body]


def whole_call(name: str, arguments: Mapping[str, Any]) -> list[Piece]:
    return [Begin(name), json.dumps(arguments, ensure_ascii=False)]


def _value(text: str, schema: Any) -> Any:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    words = {"true": True, "false": False, "none": None, "null": None}
    return words.get(text.strip().lower(), text)
