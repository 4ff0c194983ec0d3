"""Notations of tool calls in replies that text/sections.py takes apart: each with a text that only its templates
hold.
"""

from __future__ import annotations

from ..sections import FUNCTIONARY, KIMI, MUSE, SOLAR
from .closed import invoke_call, typed_call
from .form import NAME, ToolSyntax, closed, named

_HEAD = r"(?P<name>[\w.\-]+)\s*\n\s*"
GLM_CALLS = ToolSyntax("assistant", openings={"<|assistant|>": named(_HEAD)})

SYNTAXES: tuple[tuple[str, ToolSyntax], ...] = (
    (
        FUNCTIONARY.mark,
        ToolSyntax("recipient", openings={">>>": named(_HEAD)}),
    ),
    (
        MUSE.mark,
        ToolSyntax(
            "atem",
            openings={
                '<atem:invoke name="': closed(
                    invoke_call,
                    "</atem:invoke>",
                    value=("<atem:parameter name=", "</atem:parameter>"),
                )
            },
            wrappers=("<atem:function_calls>", "</atem:function_calls>"),
        ),
    ),
    (
        KIMI.mark,
        ToolSyntax(
            "typed",
            openings={
                '<|open|>call tool="': closed(
                    typed_call,
                    "<|close|>call<|sep|>",
                    value=("<|open|>argument", "<|close|>argument<|sep|>"),
                )
            },
        ),
    ),
    (
        SOLAR.mark,
        ToolSyntax(
            "solar",
            openings={
                "<|tool_call:begin|>": named(
                    rf"\s*\w*\s*<\|tool_call:name\|>{NAME}<\|tool_call:args\|>\s*"
                )
            },
            closings=("<|tool_call:end|>",),
            tokens=("<|tool_call:name|>", "<|tool_call:args|>"),
        ),
    ),
)
