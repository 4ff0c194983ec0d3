"""Ollama requests to prompt ids: messages for the template, continued contexts, and cutting where it is allowed.

Blocks; runs in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import ContextOverflowError
from ...models.loaded import LoadedModel
from ...text.reply import ReplyFormat
from ..conversation import Conversation
from ..service import PromptIds, fits
from .schema import ChatRequest, GenerateRequest, Message, ToolCall

Messages = list[dict[str, Any]]


@dataclass(slots=True)
class Cut:
    """What was left out of a conversation to make it fit."""

    num_messages: int = 0
    num_tokens: int = 0


def generate_prompt(model: LoadedModel, body: GenerateRequest) -> PromptIds:
    """Raises BadRequestError."""
    prompt = body.prompt or ""
    if body.raw:
        return PromptIds((tuple(model.raw_ids(prompt)),), param="prompt")
    messages: Messages = [{"role": "user", "content": prompt}]
    if body.system:
        messages.insert(0, {"role": "system", "content": body.system})
    conversation = Conversation(messages, thinking=body.thinking(), template=body.template or None)
    ids, form = conversation.read(model.text, body.model, model.context_length)
    if body.context:
        bos = model.tokenizer.bos_id
        ids = ids[1:] if bos is not None and ids[:1] == (bos,) else ids  # the context has it
        ids = (*model.known_ids(body.context, "context"), *ids)
    return PromptIds((ids,), param="prompt", form=form)


def chat_prompt(model: LoadedModel, body: ChatRequest, cut: Cut) -> PromptIds:
    """Raises BadRequestError. What `truncate` leaves out is counted in `cut`."""
    names = {c.id: c.function.name for m in body.messages for c in m.tool_calls or () if c.id}
    messages = [_message(message, names) for message in body.messages]

    def read(kept: Messages) -> tuple[tuple[int, ...], ReplyFormat]:
        conversation = Conversation(kept, body.tools or None, body.thinking())
        ids, form = conversation.read(model.text, body.model, model.context_length)
        if not fits(model, len(ids)):
            raise ContextOverflowError(len(ids), model.context_length)
        return ids, form

    try:
        ids, form = read(messages)
    except ContextOverflowError as error:
        if not body.truncate:
            raise
        kept, ids, form = _newest_turns(messages, read)
        cut.num_messages = len(messages) - len(kept)
        # Or more: a prompt that is far too long is not counted to its end.
        cut.num_tokens = error.num_prompt_tokens - len(ids)
    return PromptIds((ids,), form=form)


def _newest_turns(
    messages: Messages,
    read: Callable[[Messages], tuple[tuple[int, ...], ReplyFormat]],
) -> tuple[Messages, tuple[int, ...], ReplyFormat]:
    """The most turns, counted from the end, that fit.

    A turn begins with a user message. System messages belong to none and always stay. Raises
    ContextOverflowError, as `read` does, where not even the last turn fits.
    """
    starts = [i for i, message in enumerate(messages) if message["role"] == "user"][1:]

    def without(num_turns: int) -> Messages:
        first = starts[num_turns - 1]
        return [m for i, m in enumerate(messages) if i >= first or m["role"] == "system"]

    if not starts:
        return messages, *read(messages)
    low, high = 1, len(starts)
    while low < high:
        middle = (low + high) // 2
        try:
            read(without(middle))
            high = middle
        except ContextOverflowError:
            low = middle + 1
    return without(low), *read(without(low))


def _message(message: Message, names: Mapping[str, str]) -> dict[str, Any]:
    result: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.thinking is not None:
        result["reasoning_content"] = message.thinking
    if message.tool_calls:
        result["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        result["tool_call_id"] = message.tool_call_id
    if name := message.tool_name or message.name or names.get(message.tool_call_id or ""):
        result["name"] = name
    return result


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": call.function.arguments or {}}
    return {"type": "function", "function": function} | ({"id": call.id} if call.id else {})
