"""Tools for a model whose chat template knows none: a prompt that explains them, and calls and results as plain text.

The notation is that of syntax.HERMES. Knows nothing of templates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]

_INTRODUCTION = """You can call functions to help with the user's request. These are the functions, one a line:
{tools}
To call a function, write nothing but this, once for each call:
<tool_call>
{{"name": "the function's name", "arguments": {{"an argument's name": "its value"}}}}
</tool_call>
The user's next message then brings the results. If no function helps, answer without one."""


def has_tool_messages(messages: Sequence[Message]) -> bool:
    return any(m.get("role") == "tool" or m.get("tool_calls") for m in messages)


def with_calls_in_text(
    messages: Sequence[Message], write: Callable[[Sequence[tuple[str, dict[str, Any]]]], str]
) -> list[dict[str, Any]]:
    """Messages whose calls stand in their content as `write` has them, for templates that know tools and yet
    leave past calls out."""
    result = []
    for message in messages:
        copy = dict(message)
        if calls := copy.pop("tool_calls", None):
            texts = [_text(message), write([_named(call) for call in calls])]
            copy["content"] = "\n".join(text for text in texts if text)
        result.append(copy)
    return result


def wants_metadata(template: str) -> bool:
    """Whether it is for messages as `with_calls_in_metadata` has them."""
    role = any(f"{quote}observation{quote}" in template for quote in "'\"")
    return role and "metadata" in template and "tool_calls" not in template


def with_calls_in_metadata(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages for templates that know neither calls nor their results by OpenAI's names: each call is a message of
    its own, with the function's name as its `metadata`, and results have the role `observation` (GLM 4's)."""
    result: list[dict[str, Any]] = []
    for message in messages:
        copy = dict(message)
        calls = copy.pop("tool_calls", None) or ()
        if copy.get("role") == "tool":
            copy["role"] = "observation"
        if not calls or _text(message):
            result.append(copy)
        for name, arguments in map(_named, calls):
            text = json.dumps(arguments, ensure_ascii=False)
            result.append({"role": "assistant", "metadata": name, "content": text})
    return result


def as_text(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The conversation with tools, calls and results in messages of text. Results that follow one another become one
    message of the user; the introduction goes behind the first system message's text, or is one."""
    result: list[dict[str, Any]] = []
    for message in messages:
        if message.get("role") == "tool":
            text = f"Result of {message.get('name') or 'the call'}:\n{_text(message)}"
            if result and result[-1].pop("_result", False):
                result[-1]["content"] += "\n\n" + text
            else:
                result.append({"role": "user", "content": text})
            result[-1]["_result"] = True
            continue
        copy = {key: value for key, value in message.items() if key != "tool_calls"}
        if calls := message.get("tool_calls"):
            texts = [_text(message), *map(_call, calls)]
            copy["content"] = "\n".join(text for text in texts if text)
        result.append(copy)
    for message in result:
        message.pop("_result", None)
    if tools:
        lines = "\n".join(
            json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools
        )
        introduction = _INTRODUCTION.format(tools=lines)
        if result and result[0].get("role") in ("system", "developer"):
            system = _text(result[0])
            result[0]["content"] = f"{system}\n\n{introduction}" if system else introduction
        else:
            result.insert(0, {"role": "system", "content": introduction})
    return result


def _call(call: Any) -> str:
    function = call.get("function", call) if isinstance(call, Mapping) else {}
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {}, ensure_ascii=False)
    name = json.dumps(function.get("name", ""), ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


def _named(call: Any) -> tuple[str, dict[str, Any]]:
    """Name and arguments; what is no object of JSON is none."""
    function = call.get("function", call) if isinstance(call, Mapping) else {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    return str(function.get("name", "")), dict(arguments) if isinstance(arguments, Mapping) else {}


def _text(message: Message) -> str:
    """Content as text; parts that are none are left to the checks that come later."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    return "\n".join(
        part["text"] for part in content if isinstance(part, Mapping) and "text" in part
    )
