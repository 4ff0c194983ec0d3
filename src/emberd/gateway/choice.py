"""`tool_choice` in OpenAI's form: which tools the model may call, and whether it must."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import BadRequestError
from .conversation import ForcedCalls

Json = dict[str, Any]
PARAM = "tool_choice"


def chosen_tools(
    tools: Sequence[Json] | None, choice: str | Json | None
) -> tuple[Sequence[Json] | None, ForcedCalls | None]:
    """The tools that the model is told of, None: it calls none. Raises BadRequestError."""
    if choice in (None, "auto"):
        return tools or None, None
    if choice == "none":
        return None, None
    if choice == "required":
        return tools or None, ForcedCalls(PARAM)
    if isinstance(choice, dict):
        if choice.get("type") == "function":
            return tools or None, ForcedCalls(PARAM, _name(choice, PARAM))
        if choice.get("type") == "allowed_tools":
            allowed = choice.get("allowed_tools", choice)
            return _allowed(tools or (), allowed, f"{PARAM}.allowed_tools")
    raise BadRequestError(
        f"'{PARAM}' must be none, auto, required, or an object of type function or allowed_tools",
        PARAM,
    )


def schema_paths(tools: Sequence[Json] | None) -> dict[str, str]:
    names = [_known_name(tool) for tool in tools or ()]
    return {
        name: f"tools[{index}].function.parameters"
        for index, name in enumerate(names)
        if isinstance(name, str)
    }


def _allowed(
    tools: Sequence[Json], allowed: Any, param: str
) -> tuple[Sequence[Json] | None, ForcedCalls | None]:
    listed = allowed.get("tools") if isinstance(allowed, Mapping) else None
    if not isinstance(listed, list) or not all(isinstance(one, Mapping) for one in listed):
        raise BadRequestError(f"'{param}.tools' must be a list of objects", f"{param}.tools")
    mode = allowed.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise BadRequestError(f"'{param}.mode' must be auto or required", f"{param}.mode")
    names = [_name(one, f"{param}.tools[{index}]") for index, one in enumerate(listed)]
    known = [_known_name(tool) for tool in tools]
    for index, name in enumerate(names):
        if name not in known:
            path = f"{param}.tools[{index}]"
            raise BadRequestError(f"'{path}': '{name:.64}' is none of the tools", path)
    kept = [tool for tool, name in zip(tools, known, strict=True) if name in names]
    return kept or None, ForcedCalls(PARAM) if mode == "required" else None


def _name(value: Mapping[str, Any], path: str) -> str:
    """`{"function": {"name": …}}`, and the flat form of newer routes."""
    function = value.get("function", value)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise BadRequestError(f"'{path}.function.name' must be a text", f"{path}.function.name")
    return name


def _known_name(tool: Json) -> Any:
    function = tool.get("function")
    return function.get("name") if isinstance(function, Mapping) else None
