"""OpenAI routes: their shapes to the internal request and back, nothing else."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from ...config import keep_alive_seconds
from ...errors import BadRequestError
from ...models.loaded import LoadedModel
from ...models.names import short_name
from ...models.store import StoredModel
from ..anthropic import describe as anthropic
from ..body import ignored_header, refuse_ignored
from ..conversation import Conversation, plain_form
from ..generate import Generation
from ..routing import documented, read_body, request_id_of, service_of
from ..service import PromptIds, Wish
from ..stream import EventStream, while_connected
from .choice import chosen_tools
from .messages import template_messages
from .reasoning import reasoning_names, thinking_wish, unused_fields
from .schema import (
    ChatCompletionRequest,
    CompletionRequest,
    SamplingFields,
    refuse_unserved_chat,
    refuse_unserved_completion,
)
from .shape import Answer, ChatShape, CompletionShape

router = APIRouter(prefix="/v1")
BODIES = (ChatCompletionRequest, CompletionRequest)
DEFAULTS: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0}
_MAX_PROMPTS = 256
_TEMPLATE_NAMES = {"messages", "tools", "documents", "add_generation_prompt", "template"}


@router.post("/chat/completions", openapi_extra=documented(ChatCompletionRequest))
async def chat_completions(request: Request) -> Response:
    body, raw = await read_body(request, ChatCompletionRequest)
    refuse_unserved_chat(body)
    tools, forced = chosen_tools(body.tools, body.tool_choice)
    conversation = Conversation(
        template_messages(body.messages),
        tools,
        thinking_wish(body),
        _template_variables(body),
        one_call=body.parallel_tool_calls is False,
        constraint=body.constraint(),
        forced=forced,
    )

    def read_prompts(model: LoadedModel) -> PromptIds:
        if service_of(request).config.strict:
            refuse_ignored(unused_fields(raw, model.text.template.source))
        ids, form = conversation.read(model.text, body.model, model.context_length)
        return PromptIds((ids,), body.n or 1, form=form)

    limit = body.max_completion_tokens or body.max_tokens
    generation = await start(request, body, body.sampling(limit), read_prompts)
    answer = Answer(
        ChatShape(reasoning_names(body, service_of(request).config.reasoning_keys)), body.model
    )
    headers = ignored_header(raw, type(body))
    if unused := unused_fields(raw, generation.model.text.template.source):
        known = headers.get("x-emberd-ignored")
        headers["x-emberd-ignored"] = ", ".join([*([known] if known else []), *unused])
    return await _respond(request, body, answer, generation, headers)


@router.post("/completions", openapi_extra=documented(CompletionRequest))
async def completions(request: Request) -> Response:
    body, raw = await read_body(request, CompletionRequest)
    refuse_unserved_completion(body)
    constraint = body.constraint()

    def read_prompts(model: LoadedModel) -> PromptIds:
        prompts = _raw_prompts(model, body.prompt)
        form = plain_form(constraint, model.tokenizer)
        return PromptIds(prompts, body.n or 1, "prompt", form)

    generation = await start(request, body, body.sampling(body.max_tokens), read_prompts)
    answer = Answer(CompletionShape(), body.model)
    return await _respond(request, body, answer, generation, ignored_header(raw, type(body)))


@router.get("/models")
async def list_models(request: Request) -> Response:
    service = service_of(request)
    stored = await asyncio.to_thread(service.manager.store.models)
    items = [_model(request, model) for model in stored]
    if anthropic.asked_for(request):
        return JSONResponse(anthropic.listing(items))
    return JSONResponse({"object": "list", "data": items})


@router.get("/models/{name:path}")
async def show_model(request: Request, name: str) -> Response:
    stored = await service_of(request).manager.find(name)
    return JSONResponse({**_model(request, stored), "id": name})


async def start(
    request: Request, body: SamplingFields, sampling: Any, read_prompts: Any
) -> Generation:
    """A generation of what `read_prompts` reads, as `body` wants it. Raises EmberdError."""
    keep_alive = None
    if body.keep_alive is not None:
        try:
            keep_alive = keep_alive_seconds(body.keep_alive)
        except ValueError as error:
            raise BadRequestError(f"'keep_alive': {error}", "keep_alive") from None
    wish = Wish(sampling, DEFAULTS, body.stops())
    starting = service_of(request).start(
        request_id_of(request), body.model, keep_alive, wish, read_prompts
    )
    return await while_connected(request, starting)


async def _respond(
    request: Request,
    body: SamplingFields,
    answer: Answer,
    generation: Generation,
    headers: Mapping[str, str],
) -> Response:
    if body.stream:
        chunks = answer.chunks(generation, body.include_usage)
        return EventStream(chunks, generation.close, service_of(request).config.ping, headers)
    try:
        whole = await while_connected(request, answer.whole(generation))
    finally:
        generation.close()
    return JSONResponse(whole, headers=dict(headers))


def _template_variables(body: ChatCompletionRequest) -> dict[str, Any]:
    variables = body.chat_template_kwargs or {}
    if taken := sorted(_TEMPLATE_NAMES & set(variables)):
        path = f"chat_template_kwargs.{taken[0]}"
        raise BadRequestError(f"'{path}' cannot be set: the conversation sets it", path)
    return variables


def _raw_prompts(
    model: LoadedModel, prompt: str | list[str] | list[int] | list[list[int]]
) -> tuple[tuple[int, ...], ...]:
    """Ids of each prompt: text is tokenized, ids are taken as they are."""
    prompts: list[Any]
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        prompts = [prompt]
    else:
        prompts = list(prompt)
    if not 1 <= len(prompts) <= _MAX_PROMPTS:
        raise BadRequestError(
            f"'prompt' holds {len(prompts)} prompts; send 1 to {_MAX_PROMPTS}", "prompt"
        )
    return tuple(
        tuple(model.raw_ids(one)) if isinstance(one, str) else model.known_ids(one, "prompt")
        for one in prompts
    )


def _model(request: Request, stored: StoredModel) -> dict[str, Any]:
    service = service_of(request)
    loaded = service.manager.loaded_as(stored)
    facts, context_length = stored.facts, service.manager.context_length(stored)
    if anthropic.asked_for(request):
        return anthropic.model_item(stored, context_length)
    return {
        "id": short_name(stored.name),
        "object": "model",
        "created": math.floor(stored.modified.timestamp()),
        "owned_by": "emberd",
        "max_model_len": context_length,
        "context_length": context_length,
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        "capabilities": list(facts.capabilities),
        "loaded": loaded is not None,
        "meta": {
            "n_ctx": context_length,
            "n_ctx_train": facts.context_length,
            "n_params": facts.num_parameters,
            "n_vocab": facts.vocab_size,
            "n_embd": facts.embedding_length,
            "size": stored.size,
        },
    }
