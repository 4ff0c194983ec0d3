"""Anthropic tools to functions: the caller's own, and those that Anthropic defines and the caller runs.

Tools that Anthropic's servers would run are left out and named; tools that answer in pictures are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import BadRequestError
from .schema import Tool, ToolChoice

Json = dict[str, Any]

_SERVER_RUN = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset")
_IN_PICTURES = ("computer_", "browser_")


@dataclass(frozen=True, slots=True)
class Tools:
    """`functions` in OpenAI's form, None: no tools. `left_out` names those that cannot be run here."""

    functions: list[Json] | None
    left_out: list[str]


def read_tools(tools: Sequence[Tool] | None, choice: ToolChoice | None) -> Tools:
    """Raises BadRequestError."""
    functions: list[Json] = []
    left_out: list[str] = []
    for index, tool in enumerate(tools or ()):
        kind = tool.type or "custom"
        if kind.startswith(_SERVER_RUN):
            left_out.append(f"tools.{kind}")
        else:
            functions.append(_function(tool, kind, f"tools[{index}]"))
    if choice is not None and choice.type == "none":
        functions = []
    return Tools(functions or None, left_out)


def _function(tool: Tool, kind: str, path: str) -> Json:
    if kind.startswith(_IN_PICTURES):
        raise BadRequestError(
            f"'{path}.type': '{kind:.64}' answers in pictures, and this model takes text only",
            f"{path}.type",
        )
    if not tool.name:
        raise BadRequestError(f"'{path}.name' is required", f"{path}.name")
    description, parameters = tool.description, tool.input_schema
    if kind != "custom":
        description, parameters = _defined(kind, path)
    elif parameters is None:
        raise BadRequestError(f"'{path}.input_schema' is required", f"{path}.input_schema")
    function: Json = {"name": tool.name, "parameters": parameters}
    if description is not None:
        function["description"] = description
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _defined(kind: str, path: str) -> tuple[str, Json]:
    """Description and schema of a tool that Anthropic's models know by its type alone."""
    if kind.startswith("bash_"):
        return "Run a command in a shell that stays open between calls.", _BASH
    if kind.startswith("text_editor_"):
        commands = (
            (*_COMMANDS, "undo_edit") if kind[len("text_editor_") :] < "202504" else _COMMANDS
        )
        return "View, create and edit text files.", _file_commands(commands, _EDITOR)
    if kind.startswith("memory_"):
        return (
            "Keep notes in files under /memories, which later conversations find.",
            _file_commands((*_COMMANDS, "delete", "rename"), _MEMORY),
        )
    raise BadRequestError(
        f"'{path}.type': '{kind:.64}' is no known kind of tool; describe it as a function, with name, "
        "description and input_schema",
        f"{path}.type",
    )


_BASH: Json = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "description": "the command to run"},
        "restart": {"type": "boolean", "description": "true: start the shell anew"},
    },
}
_COMMANDS = ("view", "create", "str_replace", "insert")
_EDITOR = {"new_str": "for str_replace and insert: the new text"}
_MEMORY = {
    "new_str": "for str_replace: the new text",
    "insert_text": "for insert: the new text",
    "old_path": "for rename",
    "new_path": "for rename",
}


def _file_commands(commands: Sequence[str], more: Mapping[str, str]) -> Json:
    texts = {
        "path": "absolute path of the file or folder",
        "file_text": "for create: the whole text",
        "old_str": "for str_replace: the text to replace, which is in the file once",
        **more,
    }
    numbers = {"type": "array", "items": {"type": "integer"}}
    return {
        "type": "object",
        "properties": {
            "command": {"type": "string", "enum": list(commands)},
            **{name: {"type": "string", "description": text} for name, text in texts.items()},
            "view_range": {**numbers, "description": "for view: first and last line, from 1"},
            "insert_line": {"type": "integer", "description": "for insert: the line before it"},
        },
        "required": ["command"],
    }
