"""Tools of /v1/responses to functions, and their calls back to the items of this API.

A custom tool becomes a function with one text, `input`. Tools that OpenAI's servers would run are left out and
named; the caller goes on without them. Knows nothing of prompts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....errors import BadRequestError
from ....text.messages import check_depth
from ...conversation import ForcedCalls

Json = dict[str, Any]
_IN_PICTURES = ("computer",)
_INPUT: Json = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "the whole input, as plain text"}},
    "required": ["input"],
}


@dataclass(frozen=True, slots=True)
class Tool:
    """What the caller calls it. The model knows it by the key of `Tools.known`."""

    name: str
    namespace: str | None = None
    custom: bool = False


@dataclass(frozen=True, slots=True)
class Tools:
    """`functions` in the form of chat completions, None: no tools. `left_out` names what does nothing."""

    functions: list[Json] | None = None
    known: Mapping[str, Tool] = field(default_factory=dict)
    left_out: Sequence[str] = ()
    forced: ForcedCalls | None = None
    schema_paths: Mapping[str, str] = field(default_factory=dict)

    def shown_name(self, name: str, namespace: str | None) -> str:
        """The name under which the model knows a tool of the caller."""
        return next(
            (
                shown
                for shown, tool in self.known.items()
                if tool.name == name and tool.namespace == namespace
            ),
            name,
        )


def read_tools(tools: Sequence[Json] | None, choice: str | Json | None) -> Tools:
    """Raises BadRequestError."""
    functions: list[Json] = []
    known: dict[str, Tool] = {}
    left_out: dict[str, None] = {}
    paths: dict[str, str] = {}
    check_depth(tools, "tools")
    check_depth(choice, "tool_choice")
    flat = list(_flat(tools or (), "tools"))
    plain = [raw.get("name") for _, raw, namespace in flat if namespace is None]
    for path, raw, namespace in flat:
        kind = raw.get("type")
        if kind not in ("function", "custom"):
            if isinstance(kind, str) and kind.startswith(_IN_PICTURES):
                raise BadRequestError(
                    f"'{path}.type': '{kind:.64}' answers in pictures, and this model takes text only",
                    f"{path}.type",
                )
            left_out[f"tools.{kind}"] = None
            continue
        function, tool = _function(raw, path, namespace)
        if tool.custom and _grammar(raw):
            left_out["tools.custom.format"] = None
        shown = tool.name
        if namespace is not None and (shown in plain or shown in known):
            shown = f"{namespace}__{shown}"
        if shown in known:
            raise BadRequestError(
                f"'{path}.name': '{tool.name:.64}' names two tools", f"{path}.name"
            )
        known[shown] = tool
        paths[shown] = f"{path}.parameters"
        functions.append({"type": "function", "function": {**function, "name": shown}})
    allowed, forced = _allowed(choice, known)
    if allowed is not None:
        functions = [one for one in functions if one["function"]["name"] in allowed]
    return Tools(functions or None, known, list(left_out), forced, paths)


def custom_input(arguments: str) -> str:
    """The input of a custom tool from the arguments that the model wrote; those as they are where they hold
    none, as when the token limit cut them."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    given = value.get("input") if isinstance(value, dict) else None
    return given if isinstance(given, str) else arguments


def _flat(tools: Sequence[Any], path: str) -> Iterator[tuple[str, Json, str | None]]:
    """Each tool with its path and namespace. Those of a namespace stand in its `tools`."""
    for index, raw in enumerate(tools):
        where = f"{path}[{index}]"
        if not isinstance(raw, dict):
            raise BadRequestError(f"'{where}' must be an object", where)
        if not isinstance(raw.get("type"), str):
            raise BadRequestError(f"'{where}.type' is required", f"{where}.type")
        if raw["type"] != "namespace":
            yield where, raw, None
            continue
        name, inner = raw.get("name"), raw.get("tools")
        if not isinstance(name, str) or not isinstance(inner, list):
            raise BadRequestError(f"'{where}' needs 'name' and 'tools'", where)
        for at, one, deeper in _flat(inner, f"{where}.tools"):
            if deeper is not None:
                raise BadRequestError(f"'{where}': a namespace cannot hold another", where)
            yield at, one, name


def _function(raw: Json, path: str, namespace: str | None) -> tuple[Json, Tool]:
    name = raw.get("name")
    if not isinstance(name, str) or not name:
        raise BadRequestError(f"'{path}.name' is required", f"{path}.name")
    custom = raw["type"] == "custom"
    parameters = _INPUT if custom else raw.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise BadRequestError(f"'{path}.parameters' must be an object", f"{path}.parameters")
    description = raw.get("description")
    if description is not None and not isinstance(description, str):
        raise BadRequestError(f"'{path}.description' must be a text", f"{path}.description")
    if custom and (grammar := _grammar(raw)):
        description = f"{description or ''}\nThe input follows this grammar:\n{grammar}".lstrip()
    function: Json = {"parameters": parameters or {"type": "object", "properties": {}}}
    if raw.get("strict") is True:
        function["strict"] = True
    if description is not None:
        function["description"] = description
    return function, Tool(name, namespace, custom)


def _grammar(raw: Json) -> str | None:
    """Of a custom tool's input. The model is told of it, nothing holds it to it."""
    form = raw.get("format")
    definition = form.get("definition") if isinstance(form, dict) else None
    return definition if isinstance(definition, str) else None


def _allowed(
    choice: str | Json | None, known: Mapping[str, Tool]
) -> tuple[set[str] | None, ForcedCalls | None]:
    """Names of the functions that may be called, None: all of them; and whether one must be."""
    if choice in (None, "auto"):
        return None, None
    if choice == "none":
        return set(), None
    if choice == "required":
        return None, ForcedCalls("tool_choice")
    if isinstance(choice, dict):
        if choice.get("type") in ("function", "custom"):
            name = choice.get("name")
            if not isinstance(name, str):
                raise BadRequestError("'tool_choice.name' must be a text", "tool_choice.name")
            shown = next((shown for shown, tool in known.items() if tool.name == name), name)
            return None, ForcedCalls("tool_choice.name", shown)
        if choice.get("type") == "allowed_tools":
            return _listed(choice, known)
    raise BadRequestError(
        "'tool_choice' must be none, auto, required, or an object of type function, custom or allowed_tools",
        "tool_choice",
    )


def _listed(choice: Json, known: Mapping[str, Tool]) -> tuple[set[str], ForcedCalls | None]:
    listed, mode = choice.get("tools"), choice.get("mode", "auto")
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise BadRequestError("'tool_choice.tools' must be a list of objects", "tool_choice.tools")
    if mode not in ("auto", "required"):
        raise BadRequestError("'tool_choice.mode' must be auto or required", "tool_choice.mode")
    names = [one.get("name") for one in listed]
    forced = ForcedCalls("tool_choice.tools") if mode == "required" else None
    return {shown for shown, tool in known.items() if tool.name in names}, forced
