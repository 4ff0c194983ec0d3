"""OpenAI routes: their shapes to the internal request and back, nothing else."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from ...errors import BadRequestError
from ...models.loaded import LoadedModel, ModelText
from ...models.names import short_name
from ...models.store import StoredModel
from ..anthropic import describe as anthropic
from ..body import ignored_header, refuse_ignored, shown_names
from ..choice import chosen_tools, schema_paths
from ..conversation import Conversation
from ..routing import documented, read_body, service_of
from ..service import PromptIds
from .messages import template_messages
from .reasoning import reasoning_names, thinking_wish, unused_fields
from .schema import ChatCompletionRequest, refuse_unserved_chat
from .shape import ChatShape
from .start import new_answer, respond, start

router = APIRouter(prefix="/v1")
BODIES = (ChatCompletionRequest,)
_LONGEST_TOKEN = 16  # characters, of nearly all
_TEMPLATE_NAMES = {"messages", "tools", "documents", "add_generation_prompt", "template"}


@router.post("/chat/completions", openapi_extra=documented(ChatCompletionRequest))
async def chat_completions(request: Request) -> Response:
    body, raw = await read_body(request, ChatCompletionRequest)
    conversation = _conversation(body)

    def read_prompts(model: LoadedModel) -> PromptIds:
        if service_of(request).config.strict:
            refuse_ignored(unused_fields(raw, model.text.template.source))
        ids, form = conversation.read(model.text, body.model, model.context_length)
        return PromptIds((ids,), body.n or 1, form=form, expected=_expected(body, model))

    sampling = body.sampling(
        body.max_completion_tokens or body.max_tokens,
        (body.top_logprobs or 0) if body.logprobs else None,
    )
    progress = bool(body.stream and body.return_progress)
    generation = await start(request, body, sampling, read_prompts, progress=progress)
    names = reasoning_names(body, service_of(request).config.reasoning_keys)
    shape = ChatShape(names, with_logprobs=bool(body.logprobs))
    answer = new_answer(shape, body, generation)
    headers = ignored_header(raw, type(body))
    unused = unused_fields(raw, generation.model.text.template.source)
    if unused := [*unused, *shown_names(generation.unheld)]:
        known = headers.get("x-emberd-ignored")
        headers["x-emberd-ignored"] = ", ".join([*([known] if known else []), *unused])
    return await respond(request, body, answer, generation, headers)


@router.post("/chat/completions/input_tokens", openapi_extra=documented(ChatCompletionRequest))
async def input_tokens(request: Request) -> Response:
    """The prompt's exact length. Needs no worker: it neither loads the model nor waits for replies."""
    body, _ = await read_body(request, ChatCompletionRequest)
    conversation = _conversation(body)

    def num_tokens(text: ModelText, context_length: int) -> int:
        return len(conversation.read(text, body.model, context_length)[0])

    count = await service_of(request).count(body.model, num_tokens)
    return JSONResponse({"object": "response.input_tokens", "input_tokens": count})


@router.get("/models")
async def list_models(request: Request) -> Response:
    service = service_of(request)
    stored = await asyncio.to_thread(service.manager.store.models)
    items = [_model(request, model) for model in stored]
    if anthropic.asked_for(request):
        return JSONResponse(anthropic.listing(items, request.query_params))
    return JSONResponse({"object": "list", "data": items})


@router.get("/models/{name:path}")
async def show_model(request: Request, name: str) -> Response:
    stored = await service_of(request).manager.find(name)
    return JSONResponse({**_model(request, stored), "id": name})


def _conversation(body: ChatCompletionRequest) -> Conversation:
    """Raises BadRequestError, NotSupportedError."""
    refuse_unserved_chat(body)
    tools, forced = chosen_tools(body.tools, body.tool_choice)
    return Conversation(
        template_messages(body.messages),
        tools,
        thinking_wish(body),
        _template_variables(body),
        one_call=body.parallel_tool_calls is False,
        constraint=body.constraint(),
        forced=forced,
        schema_paths=schema_paths(body.tools),
    )


def _expected(body: ChatCompletionRequest, model: LoadedModel) -> tuple[int, ...]:
    """Token ids of what is predicted; of a text far longer than a reply can be, its beginning."""
    if body.prediction is None:
        return ()
    text = body.prediction.text()[: _LONGEST_TOKEN * model.context_length]
    return tuple(model.tokenizer.encode(text, add_special=False, parse_special=False))


def _template_variables(body: ChatCompletionRequest) -> dict[str, Any]:
    variables = body.chat_template_kwargs or {}
    if taken := sorted(_TEMPLATE_NAMES & set(variables)):
        path = f"chat_template_kwargs.{taken[0]}"
        raise BadRequestError(f"'{path}' cannot be set: the conversation sets it", path)
    return variables


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
