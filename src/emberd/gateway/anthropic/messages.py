"""Anthropic messages and system blocks to the messages that chat templates read.

Blocks that are no text for the model are refused by field path. Knows nothing of tokens.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ...errors import BadRequestError
from ...text.messages import check_depth
from .schema import Blocks, Message

Json = dict[str, Any]
Block = tuple[str, Json]  # with its path

_BILLING_HEADER = re.compile(r"x-anthropic-billing-header:[^\n]*\n*")
_ENCRYPTED = re.compile(r"encrypted_")


def template_messages(system: str | Blocks | None, messages: Sequence[Message]) -> list[Json]:
    """In OpenAI's form. Raises BadRequestError.

    Neighbours of one role are one turn. Of a user's turn the tool results come first, then system messages
    that follow it, then all of its text: the last word is the user's.
    """
    conversation: list[Json] = []
    if texts := _system_texts(system):
        conversation.append({"role": "system", "content": _content(texts)})
    names: dict[str, str] = {}  # tool use id -> tool name
    for role, blocks in _turns(messages):
        match role:
            case "user":
                _add_user_turn(conversation, blocks, names)
            case "assistant":
                conversation += _assistant_turn(blocks, names)
            case _:
                texts = [_text_of(block, path) for path, block in blocks]
                place = len(conversation) - _ends_with_user(conversation)
                conversation.insert(place, {"role": "system", "content": _content(texts)})
    return conversation


def continued_text(conversation: list[Json]) -> str:
    """Takes a last message of the assistant that is text alone off the conversation, and returns its text: the
    reply goes on from there. "" where there is none."""
    last = conversation[-1]
    alone = len(conversation) == 1
    if alone or last["role"] != "assistant" or set(last) != {"role", "content"}:
        return ""
    conversation.pop()
    return str(last["content"])


def _system_texts(system: str | Blocks | None) -> list[str]:
    """Without the billing header, which differs in each request of one conversation: what follows it in the
    prompt could never be found in the prefix cache."""
    blocks: Blocks = [{"type": "text", "text": system}] if isinstance(system, str) else system or []
    texts = [_text_of(block, f"system[{i}]") for i, block in enumerate(blocks)]
    kept = (
        text[header.end() :] if (header := _BILLING_HEADER.match(text)) else text for text in texts
    )
    return [text for text in kept if text]


def _turns(messages: Sequence[Message]) -> Iterator[tuple[str, list[Block]]]:
    """Neighbours of one role together, with the path of each block."""
    role, turn = "", list[Block]()
    for index, message in enumerate(messages):
        if turn and message.role != role:
            yield role, turn
            turn = []
        role, path = message.role, f"messages[{index}].content"
        if isinstance(message.content, str):
            turn.append((path, {"type": "text", "text": message.content}))
        else:
            turn += [(f"{path}[{i}]", block) for i, block in enumerate(message.content)]
            if not message.content:
                turn.append((path, {"type": "text", "text": ""}))
    yield role, turn


def _add_user_turn(
    conversation: list[Json], blocks: Iterable[Block], names: dict[str, str]
) -> None:
    results, texts = [], []
    for path, block in blocks:
        if block.get("type") == "tool_result":
            results.append(_tool_result(block, path, names))
        else:
            texts.append(_text_of(block, path))
    if not results and _ends_with_user(conversation):  # a system message stood between the two
        before = conversation.pop()["content"]
        parts = [before] if isinstance(before, str) else [part["text"] for part in before]
        texts = [*parts, *texts]
    conversation += results
    if texts:
        conversation.append({"role": "user", "content": _content(texts)})


def _ends_with_user(conversation: Sequence[Json]) -> bool:
    return bool(conversation) and conversation[-1]["role"] == "user"


def _assistant_turn(blocks: Iterable[Block], names: dict[str, str]) -> list[Json]:
    """One message; more where results of tools that Anthropic's servers ran stand between its blocks."""
    turn: list[Json] = []
    message: Json = {"role": "assistant", "content": ""}
    for path, block in blocks:
        kind = block.get("type")
        if kind == "thinking":
            thinking = _string(block, "thinking", path)
            message["reasoning_content"] = message.get("reasoning_content", "") + thinking
        elif kind == "redacted_thinking":
            continue  # encrypted: nobody but its maker can read it
        elif kind in ("tool_use", "server_tool_use"):
            message.setdefault("tool_calls", []).append(_call(block, path, names))
        elif isinstance(kind, str) and kind.endswith("_tool_result"):
            turn += [message, _server_result(block, path, names)]
            message = {"role": "assistant", "content": ""}
        else:
            message["content"] += _text_of(block, path)
    if not turn or message != {"role": "assistant", "content": ""}:
        turn.append(message)
    return turn


def _call(block: Json, path: str, names: dict[str, str]) -> Json:
    id, name = _string(block, "id", path), _string(block, "name", path)
    arguments = block.get("input")
    if arguments is not None and not isinstance(arguments, dict):
        raise BadRequestError(f"'{path}.input' must be an object", f"{path}.input")
    names[id] = name
    function = {"name": name, "arguments": arguments or {}}
    return {"type": "function", "id": id, "function": function}


def _tool_result(block: Json, path: str, names: dict[str, str]) -> Json:
    content = block.get("content")
    if content is None or isinstance(content, str):
        texts = [content or ""]
    elif isinstance(content, list):
        texts = [_text_of(part, f"{path}.content[{i}]") for i, part in enumerate(content)]
    else:
        raise BadRequestError(f"'{path}.content' must be text or blocks", f"{path}.content")
    if block.get("is_error") is True:
        texts = ["Error:", *texts]  # templates have no other word for it
    return _tool_message(_string(block, "tool_use_id", path), _content(texts), names)


def _server_result(block: Json, path: str, names: dict[str, str]) -> Json:
    """As JSON, without what only Anthropic can read."""
    check_depth(block.get("content"), f"{path}.content")
    content = json.dumps(_without_encrypted(block.get("content")), ensure_ascii=False)
    return _tool_message(_string(block, "tool_use_id", path), content, names)


def _tool_message(id: str, content: Any, names: dict[str, str]) -> Json:
    message = {"role": "tool", "tool_call_id": id, "content": content}
    return message | ({"name": names[id]} if id in names else {})


def _text_of(block: Any, path: str) -> str:
    """The text that a block stands for. Raises BadRequestError where it is none."""
    kind = block.get("type") if isinstance(block, dict) else None
    match kind:
        case "text":
            return _string(block, "text", path)
        case "document":
            return _document(block, path)
        case "search_result":
            lines = [block.get("title"), block.get("source"), _texts(block, "content", path)]
            return "\n".join(line for line in lines if isinstance(line, str) and line)
        case "tool_reference":
            return _string(block, "tool_name", path)
    raise BadRequestError(
        f"'{path}' is of type {reprlib.repr(kind)}; this model takes text, and blocks that hold text",
        path,
    )


def _document(block: Json, path: str) -> str:
    source = block.get("source")
    kind = source.get("type") if isinstance(source, dict) else None
    if kind == "text":
        text = _string(source, "data", f"{path}.source")
    elif kind == "content":
        text = _texts(source, "content", f"{path}.source")
    else:
        raise BadRequestError(
            f"'{path}.source' is of type {reprlib.repr(kind)}; send the document's text (type 'text')",
            f"{path}.source",
        )
    lines = [block.get("title"), block.get("context"), text]
    return "\n".join(line for line in lines if isinstance(line, str) and line)


def _texts(holder: Any, key: str, path: str) -> str:
    content = holder.get(key)
    if isinstance(content, list):
        return "\n".join(_text_of(part, f"{path}.{key}[{i}]") for i, part in enumerate(content))
    return _string(holder, key, path)


def _string(holder: Any, key: str, path: str) -> str:
    value = holder.get(key)
    if not isinstance(value, str):
        raise BadRequestError(f"'{path}.{key}' is required and must be a text", f"{path}.{key}")
    return value


def _content(texts: Sequence[str]) -> str | Blocks:
    """One text as it is; several stay parts, which the text package joins as the template needs it."""
    kept = [text for text in texts if text]
    if len(kept) < 2:
        return "".join(kept)
    return [{"type": "text", "text": text} for text in kept]


def _without_encrypted(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_encrypted(item) for item in value]
    if isinstance(value, dict):
        return {k: _without_encrypted(v) for k, v in value.items() if not _ENCRYPTED.match(k)}
    return value
