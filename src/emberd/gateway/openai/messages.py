"""OpenAI messages to the messages that chat templates read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .schema import ChatMessage, ToolCall

_ROLES = {"function": "tool"}


def template_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """With the names of tools looked up from call ids.

    Content and arguments stay as they came: the text package makes them fit, or refuses them by field path.
    """
    names: dict[str, str] = {}  # tool call id -> function name
    return [_message(message, names) for message in messages]


def _message(message: ChatMessage, names: dict[str, str]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "role": _ROLES.get(message.role, message.role),
        "content": message.content,
    }
    calls = list(message.tool_calls or ())
    if message.function_call is not None:
        calls.append(ToolCall(function=message.function_call))
    for call in calls:
        if call.id is not None:
            names[call.id] = call.function.name
    if calls:
        result["tool_calls"] = [_call(call) for call in calls]
    if message.tool_call_id is not None:
        result["tool_call_id"] = message.tool_call_id
    name = message.name or names.get(message.tool_call_id or "")
    if name is not None:
        result["name"] = name
    reasoning = message.reasoning_content or message.reasoning
    if reasoning is not None:
        result["reasoning_content"] = reasoning
    return result


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = call.function.arguments
    if arguments is None or arguments == "":
        arguments = {}
    function = {"name": call.function.name, "arguments": arguments}
    return {"type": "function", "function": function} | ({"id": call.id} if call.id else {})
