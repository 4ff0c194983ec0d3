"""Conversations as templates take them, and the written rule of how one is made to fit.

The first of these that a template renders is the prompt:
1. as it is; 2. text parts joined by a newline; 3. that, and missing or null content as "";
and only where those raise, 3 with one more change, then with two and so on, in this order: 4. arguments of tool calls
as JSON text; 5. ids of tool calls as nine letters and digits, which some templates insist on; 6. what a message with
calls says and thinks as one thought, for templates that take either; 7. no system role: the text of a system
message goes in front of the next user message, a blank line between them, or is a user message of its own
where none follows.
A prompt that shows Python's notation of a list or of None gives way to one of 2 or 3 that shows less of it.
Where none of these renders, they are tried again with tools that have descriptions and parameters (`described`), or
without the variable of tools where there are none. A template that takes contents only as lists of parts gets such.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from ..errors import BadRequestError

Conversation = list[dict[str, Any]]

REASONING_NAMES = ("reasoning_content", "reasoning", "thinking")
"""Keys of a message under which templates read past reasoning."""

MAX_DEPTH = 64
"""Levels of lists and objects in what a caller sends, so that everything here may recurse into it."""


def normalised(messages: Sequence[Mapping[str, Any]], *, developer_role: bool) -> Conversation:
    """Checked copies of the messages. Tool-call arguments that came as JSON text become objects; role
    "developer" becomes "system" for templates that do not know it.

    Raises `BadRequestError` naming the message, and the part where content has one that is not text.
    """
    conversation = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise BadRequestError(f"{where} is not an object with role and content.", where)
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise BadRequestError(f"{where}.role is missing or no text.", f"{where}.role")
        copy = dict(message)
        if role == "developer" and not developer_role:
            copy["role"] = "system"
        _check_content(copy.get("content"), f"{where}.content")
        if "tool_calls" in copy and not copy["tool_calls"]:
            del copy["tool_calls"]  # an empty list is no call, which templates do not expect
        if isinstance(copy.get("tool_calls"), Sequence) and not isinstance(copy["tool_calls"], str):
            copy["tool_calls"] = [_with_arguments(call, _as_object) for call in copy["tool_calls"]]
        conversation.append(copy)
    return conversation


def linked(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """With an id for each call that came without, as Ollama's clients send them, and for its result: that of the
    name, or the next one."""
    result: list[Mapping[str, Any]] = []
    waiting: dict[str, str] = {}  # calls without a result: id, name
    for message in messages:
        if calls := message.get("tool_calls"):
            waiting = {}
            named: list[Any] = []
            for call in calls:
                function = call.get("function") if isinstance(call, Mapping) else None
                if isinstance(function, Mapping):
                    id = call.get("id") or f"call{len(result):03}{len(named) % 100:02}"
                    waiting[id] = function.get("name", "")
                    call = {**call, "id": id}
                named.append(call)
            message = {**message, "tool_calls": named}
        elif message.get("role") == "tool":
            id = message.get("tool_call_id")
            if id is None and waiting:
                name = message.get("name")
                id = next((one for one in waiting if waiting[one] == name), next(iter(waiting)))
                message = {"name": waiting[id], **message, "tool_call_id": id}
            waiting.pop(id or "", None)
        result.append(message)
    return result


def check_depth(value: Any, where: str) -> None:
    """Raises `BadRequestError` where lists and objects are nested deeper than `MAX_DEPTH`."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for outer in level
            if isinstance(outer, (Mapping, list, tuple))
            for item in (outer.values() if isinstance(outer, Mapping) else outer)
        ]
        if not level:
            return
    raise BadRequestError(f"{where} is nested deeper than {MAX_DEPTH} levels.", where)


def adaptations(conversation: Conversation) -> Iterator[tuple[Conversation, bool]]:
    """The conversation as it is and as changed by each of the steps that change it; with it, whether they
    change the form of the conversation (4 to 7) and not only how content is written."""
    yield conversation, False
    for step in (_joined, _filled):
        changed = step(conversation)
        if changed != conversation:
            conversation = changed
            yield conversation, False
    steps = [step for step in _OF_FORM if step(conversation) != conversation]
    for count in range(1, len(steps) + 1):
        for chosen in combinations(steps, count):
            changed = conversation
            for step in chosen:
                changed = step(changed)
            yield changed, True


def in_parts(conversation: Conversation) -> Conversation:
    """With each content as a list of parts, for templates that take nothing else."""
    changed = []
    for message in conversation:
        content = message.get("content") or ""
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        changed.append({**message, "content": parts})
    return changed


def described(tools: Sequence[Any]) -> list[Any]:
    """Tools with a description and parameters, which many templates read without looking."""
    changed = []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping):
            changed.append(tool)
            continue
        given = function.get("parameters")
        parameters = {"type": "object", "properties": {}}
        parameters |= given if isinstance(given, Mapping) else {}
        properties = parameters["properties"]
        if isinstance(properties, Mapping):
            parameters["properties"] = {
                name: _described_property(one) if isinstance(one, Mapping) else one
                for name, one in properties.items()
            }
        filled = {"description": "", **function, "parameters": parameters}
        changed.append({**tool, "function": filled})
    return changed


def _described_property(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Objects say what their values are too, which Command R+'s template reads."""
    filled = {"description": "", **schema}
    if schema.get("type") == "object":
        filled.setdefault("additionalProperties", {})
    return filled


def notation_count(prompt: str, conversation: Conversation) -> int:
    """How often the prompt shows Python's notation of a content that is no text."""
    contents = [message.get("content") for message in conversation]
    notations = {repr(content) for content in contents if not isinstance(content, str)}
    return sum(prompt.count(notation) for notation in notations)


def _check_content(content: Any, where: str) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise BadRequestError(f"{where} is neither text nor a list of parts.", where)
    for index, part in enumerate(content):
        place = f"{where}[{index}]"
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text":
            raise BadRequestError(
                f"{place} is of type {kind!r}; this model takes parts of type 'text' only.", place
            )
        if not isinstance(part.get("text"), str):
            raise BadRequestError(f"{place}.text is missing or no text.", f"{place}.text")


def _joined(conversation: Conversation) -> Conversation:
    return [
        {**message, "content": "\n".join(part["text"] for part in message["content"])}
        if isinstance(message.get("content"), list)
        else message
        for message in conversation
    ]


def _filled(conversation: Conversation) -> Conversation:
    return [
        {**message, "content": ""} if message.get("content") is None else message
        for message in conversation
    ]


def _arguments_as_text(conversation: Conversation) -> Conversation:
    return [
        {
            **message,
            "tool_calls": [_with_arguments(call, _as_text) for call in message["tool_calls"]],
        }
        if isinstance(message.get("tool_calls"), list)
        else message
        for message in conversation
    ]


def _short_ids(conversation: Conversation) -> Conversation:
    changed = []
    for message in conversation:
        copy = dict(message)
        if isinstance(message.get("tool_calls"), list):
            copy["tool_calls"] = [_with_short_id(call, "id") for call in message["tool_calls"]]
        changed.append(_with_short_id(copy, "tool_call_id"))
    return changed


def _one_thought(conversation: Conversation) -> Conversation:
    changed = []
    for message in conversation:
        key = next((key for key in REASONING_NAMES if message.get(key)), "")
        thought, said = message.get(key), message["content"]
        if message.get("tool_calls") and isinstance(thought, str) and said:
            message = {**message, key: f"{thought}\n\n{said}", "content": ""}
        changed.append(message)
    return changed


def _with_short_id(value: Any, key: str) -> Any:
    id = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(id, str) or re.fullmatch("[A-Za-z0-9]{9}", id):
        return value
    return {**value, key: hashlib.sha256(id.encode("utf-8", "replace")).hexdigest()[:9]}


def _folded(conversation: Conversation) -> Conversation:
    folded: Conversation = []
    waiting: list[str] = []
    for message in conversation:
        if message["role"] == "system":
            waiting.append(message["content"])
        elif message["role"] == "user" and waiting:
            folded.append({**message, "content": "\n\n".join([*waiting, message["content"]])})
            waiting = []
        else:
            folded.append(message)
    if waiting:
        folded.append({"role": "user", "content": "\n\n".join(waiting)})
    return folded


_OF_FORM = (_arguments_as_text, _short_ids, _one_thought, _folded)


def _with_arguments(call: Any, convert: Callable[[Any], Any]) -> Any:
    """A tool call, of either usual shape, with its arguments converted."""
    if not isinstance(call, Mapping):
        return call
    if isinstance(function := call.get("function"), Mapping) and "arguments" in function:
        return {**call, "function": {**function, "arguments": convert(function["arguments"])}}
    return {**call, "arguments": convert(call["arguments"])} if "arguments" in call else dict(call)


def _as_object(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments)
        check_depth(parsed, "arguments")
    except (ValueError, RecursionError, BadRequestError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _as_text(arguments: Any) -> Any:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
