"""The scripted model for agents: calls the shell tool that an agent offers, then answers.

A small real model cannot be relied on to drive an agent; this one does it every time, at no cost, so what is
tested is the wire: the agent reads the call, runs the tool and sends its result back. Its template keeps of a
conversation only which tools there are and whether one has run.
"""

from __future__ import annotations

import json
from pathlib import Path

from tiny_gguf import script_model

MADE = "made-by-{}.txt"  # the file that the tool's command writes
ANSWER = "The tool has run, all is well."
PLAIN = "A title of a chat."

# Name of the tool, and its arguments but for the command.
SHELLS: dict[str, tuple[str, dict[str, object]]] = {
    "Bash": ("command", {"description": "writes a file"}),
    "bash": ("command", {"description": "writes a file"}),
    "run_shell_command": ("command", {"description": "writes a file", "is_background": False}),
    "exec_command": ("cmd", {}),
    "shell_command": ("command", {}),
    "execute_command": ("command", {"requires_approval": False}),
    "run_commands": ("commands", {}),
}
_TRIGGERS = dict(zip(SHELLS, "BCDEFGH", strict=True))
_AFTER_TOOL, _NO_TOOL = "Y", "Z"


def command_of(tool: str) -> str:
    return f"echo {tool} > {MADE.format(tool)}"


def write(path: Path) -> Path:
    scripts: dict[str, list[str | bytes | int]] = {
        _AFTER_TOOL: ["The tool", " has run", ", all is", " well."],
        _NO_TOOL: ["A title", " of a", " chat."],
    }
    for tool, (key, rest) in SHELLS.items():
        command: object = [command_of(tool)] if key.endswith("s") else command_of(tool)
        call = json.dumps({"name": tool, "arguments": {**rest, key: command}})
        middle = call.index(command_of(tool)) + len("echo ")
        # Each piece holds the tool's name or follows it: no piece may come in two scripts.
        name_end = call.index(",")
        pieces = [call[:name_end], call[name_end:middle] + tool, call[middle + len(tool) :]]
        pieces[0] = f"<tool_call>\n{pieces[0]}"
        pieces[2] = f"{pieces[2]}\n</tool_call>"
        scripts[_TRIGGERS[tool]] = list(pieces)
    return script_model(
        path,
        scripts,
        context_length=32768,
        metadata={"tokenizer.chat_template": _template()},
    )


def _template() -> str:
    """Ends in the trigger. The comment tells that calls are written as Hermes does."""
    chosen = "".join(
        f"{{%- elif '{tool}' in names -%}}{trigger}" for tool, trigger in _TRIGGERS.items()
    )
    return (
        "{#- <tool_call> -#}"
        "{%- set names = (tools or []) | map(attribute='function') | map(attribute='name') | list -%}"
        "{%- if messages | selectattr('role', 'equalto', 'tool') | list -%}"
        f"{_AFTER_TOOL}{chosen}{{%- else -%}}{_NO_TOOL}{{%- endif -%}}"
    )
