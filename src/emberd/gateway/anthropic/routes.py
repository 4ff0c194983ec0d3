"""Anthropic routes: their shapes to the internal request and back, nothing else."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from ...errors import BadRequestError
from ...models.loaded import LoadedModel, ModelText
from ...text.reasoning import thinking_of
from ..body import ignored_header, read_keep_alive, refuse_ignored
from ..conversation import Conversation, ForcedCalls, ThinkingWish, unheld_strict
from ..priority import priority_of
from ..requests import answer_digits
from ..routing import caller_of, documented, read_body, service_of
from ..service import PromptIds, Wish
from ..stream import EventStream, while_connected
from .messages import continued_text, template_messages
from .schema import CountTokensRequest, MessagesRequest, ToolChoice
from .shape import PING, Answer
from .tools import Tools, read_tools

router = APIRouter(prefix="/v1/messages")
BODIES = (MessagesRequest, CountTokensRequest)
DEFAULTS: dict[str, Any] = {"temperature": 1.0}


@router.post("", openapi_extra=documented(MessagesRequest))
async def messages(request: Request) -> Response:
    body, raw = await read_body(request, MessagesRequest)
    tools = read_tools(body.tools, body.tool_choice)
    conversation = _conversation(body, tools)

    def read_prompts(model: LoadedModel) -> PromptIds:
        if service.config.strict:
            refuse_ignored(_unused(body, tools, model))
        ids, form = conversation.read(model.text, body.model, model.context_length)
        return PromptIds((ids,), form=form)

    service = service_of(request)
    caller = caller_of(request)
    priority = priority_of(caller, body)
    wish = Wish(body.sampling(), DEFAULTS, body.stops(), priority=priority)
    keep_alive = read_keep_alive(body.keep_alive)
    start = service.start(caller, body.model, keep_alive, wish, read_prompts)
    generation = await while_connected(request, start)
    digits = answer_digits(generation.request_id)
    answer = Answer(body.model, f"msg_{digits}", body.max_tokens, body.shows_thinking)
    unused = [*_unused(body, tools, generation.model), *generation.unheld]
    headers = ignored_header({**raw, **dict.fromkeys(unused, True)}, type(body))
    if body.stream:
        events = answer.events(generation)
        ping = service.config.ping
        return EventStream(events, generation.close, ping, headers, named=True, ping_value=PING)
    try:
        whole = await while_connected(request, answer.whole(generation))
    finally:
        generation.close()
    return JSONResponse(whole, headers=headers)


@router.post("/count_tokens", openapi_extra=documented(CountTokensRequest))
async def count_tokens(request: Request) -> Response:
    """The prompt's exact length. Needs no worker: it neither loads the model nor waits for replies."""
    body, _ = await read_body(request, CountTokensRequest)
    conversation = _conversation(body, read_tools(body.tools, body.tool_choice))

    def num_tokens(text: ModelText, context_length: int) -> int:
        return len(conversation.read(text, body.model, context_length)[0])

    return JSONResponse({"input_tokens": await service_of(request).count(body.model, num_tokens)})


def _conversation(body: CountTokensRequest, tools: Tools) -> Conversation:
    conversation = template_messages(body.system, body.messages)
    continued = continued_text(conversation)
    choice = body.tool_choice
    return Conversation(
        conversation,
        tools.functions,
        _thinking(body),
        continued=continued,
        one_call=choice is not None and choice.disable_parallel_tool_use is True,
        constraint=body.constraint() if isinstance(body, MessagesRequest) else None,
        forced=_forced(choice),
        schema_paths={
            tool.name: f"tools[{index}].input_schema"
            for index, tool in enumerate(body.tools or ())
            if tool.name
        },
    )


def _forced(choice: ToolChoice | None) -> ForcedCalls | None:
    """Raises BadRequestError."""
    if choice is None or choice.type not in ("any", "tool"):
        return None
    if choice.type == "any":
        return ForcedCalls("tool_choice")
    if not choice.name:
        raise BadRequestError("'tool_choice.name' is required", "tool_choice.name")
    return ForcedCalls("tool_choice.name", choice.name)


def _unused(body: MessagesRequest, tools: Tools, model: LoadedModel) -> list[str]:
    """Names what was asked for and cannot be done here, or not with this model."""
    template, unused = model.text.template.source, [*tools.left_out]
    if body.thinking and body.thinking.type == "enabled" and not thinking_of(template):
        unused.append("thinking.type")
    if not (_forced(body.tool_choice) or body.constraint()):
        unused += unheld_strict(tools.functions, template)
    return unused


def _thinking(body: CountTokensRequest) -> ThinkingWish:
    """A model that cannot think answers without: agents ask for thinking whatever the model is."""
    effort = body.output_config.effort if body.output_config else None
    asked = body.thinking
    if asked is None or asked.type in ("adaptive", "between_tools"):
        return ThinkingWish(effort=effort, param="output_config.effort")
    mode = asked.type == "enabled"
    return ThinkingWish(mode, effort, asked.budget_tokens, param="thinking")
