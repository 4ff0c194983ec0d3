"""Ollama requests to prompt ids: messages for the template, continued contexts.

Blocks; runs in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...models.loaded import LoadedModel
from ..choice import chosen_tools, schema_paths
from ..conversation import Conversation, plain_form
from ..cutting import Cut, Ids, Messages, read_fitting
from ..service import PromptIds
from .schema import ChatRequest, GenerateRequest, Message, ToolCall


def generate_prompt(model: LoadedModel, body: GenerateRequest) -> PromptIds:
    """Raises BadRequestError."""
    prompt = body.prompt or ""
    if body.suffix or body.raw:
        form = plain_form(body.constraint(), model.tokenizer)
        if body.suffix:
            ids = model.fill_ids(prompt, body.suffix, "suffix")
        else:
            ids = tuple(model.raw_ids(prompt))
        return PromptIds((ids,), param="prompt", form=form)
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    if body.system:
        messages.insert(0, {"role": "system", "content": body.system})
    conversation = Conversation(
        messages,
        thinking=body.thinking(),
        template=body.template or None,
        constraint=body.constraint(),
    )
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
    tools, forced = chosen_tools(body.tools, body.tool_choice)

    def read(kept: Messages) -> Ids:
        conversation = Conversation(
            kept,
            tools,
            body.thinking(),
            one_call=body.parallel_tool_calls is False,
            constraint=body.constraint(),
            forced=forced,
            schema_paths=schema_paths(body.tools),
        )
        return conversation.read(model.text, body.model, model.context_length)

    ids, form = read_fitting(model, messages, read, cut if body.truncate else None)
    return PromptIds((ids,), form=form)


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
