"""`response_format`, and what other routes and APIs have in its place, to a constraint on the answer."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import BadRequestError
from ..text.grammar.answer import Constraint
from .body import Json


def format_constraint(value: Json | None, param: str) -> Constraint | None:
    """None: the answer is any text. Raises BadRequestError."""
    if value is None:
        return None
    match value.get("type", "text"):
        case "text":
            return None
        case "json_object":
            if value.get("schema") is not None:  # llama.cpp's
                return Constraint("json", value["schema"], f"{param}.schema")
            return Constraint("object", None, param)
        case "json_schema":
            inner, path = value.get("json_schema"), f"{param}.json_schema"
            if inner is None:  # as other APIs have it, and llama.cpp
                inner, path = value, param
            if not isinstance(inner, Mapping):
                raise BadRequestError(f"'{path}' must be an object", path)
            if inner.get("schema") is None:
                raise BadRequestError(f"'{path}.schema' is required", f"{path}.schema")
            strict = inner.get("strict")
            if strict is not None and not isinstance(strict, bool):
                raise BadRequestError(f"'{path}.strict' must be a boolean", f"{path}.strict")
            return Constraint("json", inner["schema"], f"{path}.schema", bool(strict))
        case kind:
            raise BadRequestError(
                f"'{param}.type': {kind!r:.64} is not one of text, json_object, json_schema",
                f"{param}.type",
            )
