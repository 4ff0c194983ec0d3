"""Items of /v1/responses to the messages that chat templates read.

Neighbours of the assistant are one turn; the outputs of a turn's calls stand right behind it, wherever they came
(OR-03). Items that are no text for the model are refused by path, those of OpenAI's own tools are left out.
"""

from __future__ import annotations

import base64
import binascii
import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....errors import BadRequestError
from .tools import Tools

Json = dict[str, Any]
Item = tuple[str, Json]
"""With its path."""

_OURS = "emberd."
_ROLES = ("user", "assistant", "system", "developer")
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_CALLS = ("function_call", "custom_tool_call", "local_shell_call")
_OUTPUTS = tuple(f"{kind}_output" for kind in _CALLS)


def kind_of(item: Json, path: str) -> str:
    """The item's type, which messages and references may leave out. Raises BadRequestError."""
    kind = item.get("type")
    if kind is None:
        kind = "message" if "role" in item else "item_reference" if "id" in item else None
    if not isinstance(kind, str):
        raise BadRequestError(f"'{path}.type' is required and must be a text", f"{path}.type")
    return kind


def template_messages(
    instructions: str | None, items: Iterable[Item], tools: Tools
) -> tuple[list[Json], list[str]]:
    """The messages, and the types of items that were left out. Raises BadRequestError."""
    turns = _Turns(tools)
    if instructions:
        turns.add({"role": "system", "content": instructions})
    left_out: dict[str, None] = {}
    for path, item in items:
        kind = kind_of(item, path)
        if kind == "message":
            turns.add_message(item, path)
        elif kind == "reasoning":
            turns.assistant().reasoning.append(reasoning_text(item))
        elif kind in _CALLS:
            turns.add_call(item, path, kind)
        elif kind in _OUTPUTS:
            turns.add_output(item, path)
        else:
            left_out[f"input.{kind}"] = None
    return turns.messages(), list(left_out)


@dataclass(slots=True)
class _Turn:
    """One message, and the outputs of its calls."""

    message: Json
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    outputs: list[Json] = field(default_factory=list)

    def messages(self) -> list[Json]:
        message = self.message
        if message["role"] == "assistant":
            message = {**message, "content": _content(self.texts)}
            if reasoning := "\n".join(filter(None, self.reasoning)):
                message["reasoning_content"] = reasoning
        return [message, *self.outputs]


class _Turns:
    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._turns: list[_Turn] = []
        self._open: _Turn | None = None  # the assistant's, while its items come one after the other
        self._calls: dict[str, tuple[_Turn, str]] = {}  # by call id, with the function's name

    def add(self, message: Json) -> None:
        self._open = None
        self._turns.append(_Turn(message))

    def assistant(self) -> _Turn:
        if self._open is None:
            self._open = _Turn({"role": "assistant"})
            self._turns.append(self._open)
        return self._open

    def add_message(self, item: Json, path: str) -> None:
        role = item.get("role")
        if role not in _ROLES:
            raise BadRequestError(
                f"'{path}.role' must be one of {', '.join(_ROLES)}; got {reprlib.repr(role)}",
                f"{path}.role",
            )
        texts = _texts(item.get("content"), f"{path}.content", may_lack=role == "assistant")
        if role == "assistant":
            self.assistant().texts += texts
        else:
            self.add({"role": role, "content": _content(texts)})

    def add_call(self, item: Json, path: str, kind: str) -> None:
        arguments: Any
        if kind == "local_shell_call":
            name, arguments = "local_shell", item.get("action")
        else:
            name = self._tools.shown_name(_string(item, "name", path), item.get("namespace"))
            if kind == "custom_tool_call":
                arguments = {"input": _string(item, "input", path)}
            else:
                arguments = item.get("arguments")
        id, turn = _call_id(item, path), self.assistant()
        function = {"name": name, "arguments": arguments or {}}
        turn.message.setdefault("tool_calls", []).append(
            {"type": "function", "id": id, "function": function}
        )
        self._calls[id] = turn, name

    def add_output(self, item: Json, path: str) -> None:
        self._open = None
        id = _call_id(item, path)
        texts = _texts(item.get("output"), f"{path}.output", may_lack=False)
        message: Json = {"role": "tool", "tool_call_id": id, "content": _content(texts)}
        turn, name = self._calls.get(id, (None, item.get("name")))
        if isinstance(name, str):
            message["name"] = name
        if turn is None:
            self._turns.append(_Turn(message))
        else:
            turn.outputs.append(message)

    def messages(self) -> list[Json]:
        return [message for turn in self._turns for message in turn.messages()]


def reasoning_text(item: Json) -> str:
    """What an item tells of reasoning. Only its maker can read what is encrypted, but for ours."""
    encrypted = item.get("encrypted_content")
    if isinstance(encrypted, str) and encrypted.startswith(_OURS):
        try:
            return base64.b64decode(encrypted[len(_OURS) :], validate=True).decode()
        except (binascii.Error, ValueError):
            pass
    parts = item.get("content") or item.get("summary")
    if isinstance(parts, str):
        return parts
    listed = parts if isinstance(parts, list) else ()
    texts = [part.get("text") for part in listed if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def encrypted_reasoning(text: str) -> str:
    """No secret: what a client that keeps no reasoning sends back, so that the model finds it again."""
    return _OURS + base64.b64encode(text.encode()).decode()


def _call_id(item: Json, path: str) -> str:
    """Of a call or its output; old clients know a call by its `id` alone."""
    return _string(item, "call_id" if "call_id" in item or "id" not in item else "id", path)


def _texts(content: Any, path: str, *, may_lack: bool) -> list[str]:
    """Of a message's or an output's content. Raises BadRequestError where a part is no text."""
    if isinstance(content, str):
        return [content]
    if content is None and may_lack:
        return []
    if not isinstance(content, list):
        raise BadRequestError(f"'{path}' is required: a text or a list of parts", path)
    texts = []
    for index, part in enumerate(content):
        where = f"{path}[{index}]"
        kind = part.get("type") if isinstance(part, dict) else None
        key = _TEXTS.get(kind) if isinstance(kind, str) else None
        if key is None:
            raise BadRequestError(
                f"'{where}' is of type {reprlib.repr(kind)}; this model takes text: input_text, output_text, refusal",
                where,
            )
        texts.append(_string(part, key, where))
    return texts


def _content(texts: Sequence[str]) -> str | list[Json]:
    """One text as it is; several stay parts, which the text package joins as the template needs it."""
    kept = [text for text in texts if text]
    if len(kept) < 2:
        return "".join(kept)
    return [{"type": "text", "text": text} for text in kept]


def _string(holder: Json, key: str, path: str) -> str:
    value = holder.get(key)
    if not isinstance(value, str):
        raise BadRequestError(f"'{path}.{key}' is required and must be a text", f"{path}.{key}")
    return value
