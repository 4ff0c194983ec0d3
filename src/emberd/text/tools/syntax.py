"""The notations of tool calls, and which one a chat template's model writes.

Tags are data here; how a notation is read is in json_calls.py, python_calls.py and closed.py. Notations of
replies in sections are in sectioned.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial

from ..sandbox import variables_of
from ..sections import GLM, sections_of
from .body import MakeBody
from .closed import (
    ELEMENTS,
    KEY_VALUE,
    XML_VALUE,
    element_calls,
    gemma_calls,
    invoke_call,
    key_value_calls,
    keyed_calls,
    xml_call,
    xml_calls,
)
from .form import NAME, ToolSyntax, closed, named
from .json_calls import JsonCalls
from .python_calls import JsonOrPython, PythonList, python_calls
from .sectioned import GLM_CALLS, SYNTAXES

_KNOWN_JSON: MakeBody = partial(JsonCalls, known=True)
_FENCES = ("```json\n{", "```json\n[", "```\n{", "```\n[")
_OTHER_TAGS = ("<tools>", "<tools>\n", "<function_call>", "<function_call>\n")
"""That models of the Hermes notation write where they mean `<tool_call>`."""

_DEEPSEEK_CALL = "<｜tool▁call▁begin｜>"
_ROLE_SEP = "<|role_sep|>"

HERMES = ToolSyntax(
    "hermes",
    openings={"<tool_call>": JsonCalls},
    closings=("</tool_call>", "```", "</tools>", "</function_call>"),
    bare=_KNOWN_JSON,
    bare_starts=("{", "[{", *_FENCES, *(f"{tag}{{" for tag in _OTHER_TAGS)),
)
"""Also what the prompt for models without a notation of their own asks for."""

_LFM2 = ToolSyntax(
    "lfm2",
    openings={"<|tool_call_start|>": closed(python_calls, "<|tool_call_end|>", "[")},
    tokens=("<|tool_call_end|>",),
)

_TOOLCALL = ToolSyntax(
    "toolcall",
    openings={"<TOOLCALL>": JsonCalls, "<toolcall>": JsonCalls},
    closings=("</TOOLCALL>", "</toolcall>"),
)
"""Nemotron's; its smallest models write it in small letters."""

_LLAMA = ToolSyntax(
    "llama-json",
    openings={"<|python_tag|>": JsonCalls, "<|python_start|>": JsonCalls},
    closings=(";", "<|python_end|>"),
    bare=JsonOrPython,
    bare_starts=("{", "[", *_FENCES),
)

_TENCENT = ":opensource"  # that the tags of open models end in
_TENCENT_TAGS = ("tool_sep", "arg_key", "/arg_key", "arg_value", "/arg_value", "/tool_call")

_SYNTAXES: tuple[tuple[str, ToolSyntax], ...] = (
    # A text that only templates of the notation hold; the more special ones first.
    *SYNTAXES,
    (
        "<parameter=",
        ToolSyntax(
            "xml",
            openings={
                "<tool_call>": closed(xml_calls, "</function>", "<function=", XML_VALUE),
                "<function=": closed(xml_call, "</function>", value=XML_VALUE),
            },
            closings=("</tool_call>", "</seed:tool_call>"),
            wrappers=("<seed:tool_call>",),
        ),
    ),
    (
        "<param name=",
        ToolSyntax(
            "param",
            openings={
                '<function name="': closed(
                    invoke_call, "</function>", value=("<param name=", "</param>")
                )
            },
        ),
    ),
    (
        "<function=",
        ToolSyntax(
            "functionary",
            openings={"<function=": named(NAME + r">\s*")},
            closings=("</function>",),
        ),
    ),
    (
        "<use_mcp_tool>",
        ToolSyntax(
            "mcp",
            openings={
                "<use_mcp_tool>": named(
                    r"\s*(<server_name>[^<]*</server_name>\s*)?<tool_name>"
                    + NAME
                    + r"</tool_name>\s*<arguments>\s*"
                )
            },
            closings=("</arguments>", "</use_mcp_tool>"),
        ),
    ),
    (
        ELEMENTS,
        ToolSyntax(
            "elements",
            openings={f'{ELEMENTS}<invoke name="': closed(element_calls, f"{ELEMENTS}</invoke>")},
            wrappers=(f"{ELEMENTS}<tool_call>", f"{ELEMENTS}</tool_call>"),
            tokens=(ELEMENTS,),
        ),
    ),
    (
        "<invoke name=",
        ToolSyntax(
            "invoke",
            openings={
                '<invoke name="': closed(
                    invoke_call, "</invoke>", value=("<parameter name=", "</parameter>")
                )
            },
            closings=("</minimax:tool_call>",),
            wrappers=("<minimax:tool_call>",),
        ),
    ),
    (
        "｜DSML｜",
        ToolSyntax(
            "dsml",
            openings={
                '<｜DSML｜invoke name="': closed(
                    invoke_call,
                    "</｜DSML｜invoke>",
                    value=("<｜DSML｜parameter name=", "</｜DSML｜parameter>"),
                )
            },
            wrappers=tuple(
                f"<{slash}｜DSML｜{name}>"
                for name in ("function_calls", "tool_calls")
                for slash in ("", "/")
            ),
            tokens=("｜DSML｜",),
        ),
    ),
    (
        "<|tools_prefix|>",
        ToolSyntax(
            "apertus",
            openings={"<|tools_prefix|>": closed(keyed_calls, "<|tools_suffix|>", "[")},
            tokens=("<|tools_suffix|>",),
        ),
    ),
    (
        "<tool_sep",
        ToolSyntax(
            "tencent",
            openings={
                f"<tool_call{_TENCENT}>": closed(
                    key_value_calls,
                    f"</tool_call{_TENCENT}>",
                    value=(f"<arg_value{_TENCENT}>", f"</arg_value{_TENCENT}>"),
                )
            },
            wrappers=(f"<tool_calls{_TENCENT}>", f"</tool_calls{_TENCENT}>"),
            tokens=tuple(f"<{tag}{_TENCENT}>" for tag in _TENCENT_TAGS),
        ),
    ),
    (
        "<arg_key>",
        ToolSyntax(
            "key-value",
            openings={"<tool_call>": closed(key_value_calls, "</tool_call>", value=KEY_VALUE)},
        ),
    ),
    (
        "<start_function_call>",
        ToolSyntax(
            "functiongemma",
            openings={"<start_function_call>": closed(gemma_calls, "<end_function_call>", "call:")},
            tokens=("<end_function_call>", "<escape>"),
        ),
    ),
    (
        "<|tool_call>",
        ToolSyntax(
            "gemma4",
            openings={"<|tool_call>": closed(gemma_calls, "<tool_call|>", "call:")},
            tokens=("<tool_call|>", '<|"|>'),
        ),
    ),
    (
        "[TOOL_CALLS]",
        ToolSyntax(
            "mistral",
            openings={
                "[TOOL_CALLS]": named(NAME + r"(\[CALL_ID\]\s*\w+\s*)?(\[ARGS\])?\s*", or_list=True)
            },
            tokens=("[ARGS]", "[CALL_ID]"),
        ),
    ),
    (
        "<｜tool▁calls▁begin｜>",
        ToolSyntax(
            "deepseek",
            openings={
                _DEEPSEEK_CALL: named(
                    r"(\s*function\s*<｜tool▁sep｜>)?"
                    + NAME
                    + r"(<｜tool▁sep｜>\s*)?(```(json)?\s*)?"
                )
            },
            closings=("```", "<｜tool▁call▁end｜>"),
            wrappers=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
            tokens=("<｜tool▁sep｜>",),
        ),
    ),
    (
        "<|tool_calls_section_begin|>",
        ToolSyntax(
            "kimi",
            openings={
                "<|tool_call_begin|>": named(
                    r"\s*(functions\.)?(?P<name>[\w.\-]+?)(:\d+)?\s*<\|tool_call_argument_begin\|>\s*"
                )
            },
            closings=("<|tool_call_end|>",),
            wrappers=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            tokens=("<|tool_call_argument_begin|>",),
        ),
    ),
    (
        "<|START_ACTION|>",
        ToolSyntax(
            "command",
            openings={"<|START_ACTION|>": JsonCalls},
            closings=("<|END_ACTION|>",),
        ),
    ),
    (
        "json-formatted list of actions",
        ToolSyntax(
            "action",
            openings=dict.fromkeys(
                (f"Action:{blank}```json" for blank in ("", " ", "\n")), _KNOWN_JSON
            ),
            closings=("```",),
        ),
    ),
    ("<|tool_list_start|>", _LFM2),
    ("<|tool_call_start|>", _LFM2),
    ("List of tools: [", _LFM2),
    (
        "<|tool_call|>",
        ToolSyntax(
            "granite",
            openings={"<|tool_call|>": JsonCalls, "<tool_call>": JsonCalls},
            closings=("<|/tool_call|>", "</tool_call>"),
            bare=_KNOWN_JSON,
            bare_starts=("{", "[{"),
        ),
    ),
    (
        "<|function_call|>",
        ToolSyntax("gigachat", openings={"<|function_call|>": JsonCalls}),
    ),
    (
        _ROLE_SEP,  # of GigaChat's models before those with a tag of calls
        ToolSyntax(
            "function-call-role",
            openings={f"function call{_ROLE_SEP}": JsonCalls},
            wrappers=("<|message_sep|>",),
            tokens=(_ROLE_SEP,),
        ),
    ),
    (
        "[func_name1(",
        ToolSyntax(
            "pythonic",
            openings={
                "<|python_tag|>": closed(python_calls, "<|eom_id|>"),
                "<|python_start|>": closed(python_calls, "<|python_end|>"),
            },
            tokens=("<|python_end|>",),
            bare=PythonList,
            bare_starts=("[",),
        ),
    ),
    ("<|python_tag|>", _LLAMA),
    ('{"name": function name, "parameters"', _LLAMA),
    ("<TOOLCALL>", _TOOLCALL),
    ("<extra_id_1>Assistant", _TOOLCALL),
    (
        "<tool_calls>",
        ToolSyntax(
            "tool-calls",
            openings={"<tool_calls>": JsonCalls, "<tool_call>": JsonCalls},
            closings=("</tool_calls>", "</tool_call>"),
            bare=_KNOWN_JSON,
            bare_starts=("{", "[{"),
        ),
    ),
    (
        "<function_calls>",
        ToolSyntax(
            "olmo",
            openings={"<function_calls>": closed(python_calls, "</function_calls>")},
        ),
    ),
    ("<tool_call>", HERMES),
)


@dataclass(frozen=True, slots=True)
class ToolSupport:
    """What a template knows of tools: `variable` is the name under which it reads them; `one_call`: it refuses
    past messages with more than one call (Llama 3's), so a reply must not have more."""

    variable: str
    syntax: ToolSyntax
    one_call: bool = False


@lru_cache(maxsize=64)
def tool_support(template: str) -> ToolSupport | None:
    """None: the template knows no tools."""
    variables = variables_of(template)
    variable = next((name for name in ("tools", "xml_tools") if name in variables), None)
    if variable is None:
        return None
    syntax = next((syntax for mark, syntax in _SYNTAXES if mark in template), HERMES)
    if sections_of(template) is GLM:
        syntax = GLM_CALLS
    return ToolSupport(variable, syntax, one_call="single tool-calls" in template)
