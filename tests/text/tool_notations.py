"""Two tools, the smallest template of each notation of tool calls, and how its replies are read."""

from __future__ import annotations

from typing import Any

from emberd.text.reply import ReplyFormat
from emberd.text.sections import sections_of
from emberd.text.tools.body import tools_of
from emberd.text.tools.syntax import tool_support

NAMES = ("weather", "clock")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "zip": {"type": "string"},
                    "where": {"type": "object"},
                },
            },
        },
    }
    for name in NAMES
]
PARIS = ("weather", {"city": "Paris"})
PARIS_2 = ("weather", {"city": "Paris", "days": 2})
CLOCK: tuple[str, Any] = ("clock", {})

TEMPLATES = {  # the smallest texts that templates of these notations hold
    "hermes": "<tool_call>",
    "llama-json": "<|python_tag|>",
    "pythonic": "[func_name1(params_name1=params_value1)",
    "mistral": "[TOOL_CALLS]",
    "functiongemma": "<start_function_call>",
    "gemma4": "<|tool_call>",
    "deepseek": "<｜tool▁calls▁begin｜>",
    "command": "<|START_ACTION|>",
    "granite": "<|tool_call|>",
    "xml": "<function= <parameter=",
    "functionary": "<function=",
    "key-value": "<arg_key>",
    "kimi": "<|tool_calls_section_begin|>",
    "lfm2": "<|tool_list_start|>",
    "invoke": "<invoke name=",
    "dsml": "'｜DSML｜'",
    "apertus": "<|tools_prefix|>",
    "mcp": "<use_mcp_tool>",
    "gigachat": "<|function_call|>",
    "toolcall": "<TOOLCALL>",
    "tool-calls": "<tool_calls>[",
    "param": "<param name=",
    "olmo": "<function_calls>",
    "tencent": "'<tool_sep{}>'.format(suffix)",
    "action": "a json-formatted list of actions that you want",
    "function-call-role": "<|role_sep|>",
    "elements": "]<]minimax[>[",
    "recipient": ">>>${recipient}",
    "assistant": "在调用上述函数时，请使用 Json 格式",
    "atem": "<atem:function_calls>",
    "typed": "<|end_of_msg|>",
    "solar": "<|begin|>assistant<|think|>",
}


def form_of(notation: str) -> ReplyFormat:
    template = "{{ tools }}" + TEMPLATES[notation]
    support = tool_support(template)
    assert support is not None and support.syntax.name == notation
    sections = sections_of(template)
    return ReplyFormat(syntax=support.syntax, tools=tools_of(TOOLS), sections=sections)
