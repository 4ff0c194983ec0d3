"""Ollama routes: their shapes to the internal request and back, nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from ... import __version__, values
from ...errors import BadRequestError
from ...models.loaded import LoadedModel
from ..body import ignored_header
from ..generate import Generation
from ..priority import priority_of
from ..routing import caller_of, documented, read_body, service_of
from ..service import PromptIds, Wish
from ..stream import LineStream, while_connected
from .describe import list_item, running_item, show
from .prompts import chat_prompt, generate_prompt
from .schema import ChatRequest, GenerateRequest, GeneratingFields, Options, ShowRequest
from .shape import Answer, message_text, response_text

router = APIRouter(prefix="/api")
BODIES = (GenerateRequest, ChatRequest, ShowRequest)
DEFAULTS: dict[str, Any] = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.9,
    "repetition_penalty": 1.0,
    "penalty_window": 64,
}
OLLAMA_VERSION = "0.12.6"  # the one whose API this is; clients compare it


@router.post("/generate", openapi_extra=documented(GenerateRequest))
async def generate(request: Request) -> Response:
    body, raw = await read_body(request, GenerateRequest)
    body.refuse_unserved()
    answer = Answer(
        body.model,
        response_text,
        with_context=not (body.raw or body.suffix),
        with_logprobs=bool(body.logprobs),
    )
    if not body.prompt and not body.suffix:
        return await _load_or_unload(request, body, answer)
    return await _generate(request, body, raw, answer, lambda model: generate_prompt(model, body))


@router.post("/chat", openapi_extra=documented(ChatRequest))
async def chat(request: Request) -> Response:
    body, raw = await read_body(request, ChatRequest)
    body.refuse_unserved()
    answer = Answer(body.model, message_text, with_logprobs=bool(body.logprobs))
    if not body.messages:
        return await _load_or_unload(request, body, answer)
    return await _generate(
        request, body, raw, answer, lambda model: chat_prompt(model, body, answer.cut)
    )


@router.get("/version")
async def version() -> Response:
    return JSONResponse({"version": OLLAMA_VERSION, "emberd": __version__})


@router.get("/tags")
async def tags(request: Request) -> Response:
    manager = service_of(request).manager
    stored = await asyncio.to_thread(manager.store.models)
    items = [list_item(model, manager.context_length(model)) for model in stored]
    return JSONResponse({"models": items})


@router.get("/ps")
async def running(request: Request) -> Response:
    models = service_of(request).manager.loaded()
    return JSONResponse({"models": [running_item(model) for model in models]})


@router.get("/fit")
async def fit(request: Request, model: str | None = None, num_ctx: str | None = None) -> Response:
    """Whether the model would fit, alone and with so many tokens of context, and what it takes. Loads nothing."""
    context = None if num_ctx is None else _context(num_ctx)
    manager = service_of(request).manager
    stored, found = await while_connected(request, manager.fit(model, context))
    return JSONResponse({"model": stored.name, **found.description()})


def _context(text: str) -> int:
    try:
        return values.whole(1, 1 << 30)(text)
    except ValueError as error:
        raise BadRequestError(f"'num_ctx': {error}", "num_ctx") from None


@router.post("/show", openapi_extra=documented(ShowRequest))
async def show_model(request: Request) -> Response:
    body, _ = await read_body(request, ShowRequest)
    manager = service_of(request).manager
    stored = await manager.find(body.wanted())
    context_length = manager.context_length(stored)
    description = await asyncio.to_thread(
        show, manager.store, stored, context_length, bool(body.verbose)
    )
    if note := manager.context_note(stored):
        description["emberd"]["context"] = note
    return JSONResponse(description)


async def _generate(
    request: Request,
    body: GeneratingFields,
    raw: dict[str, Any],
    answer: Answer,
    read_prompts: Callable[[LoadedModel], PromptIds],
) -> Response:
    generation = await _start(request, body, read_prompts)
    known = {**raw, **dict.fromkeys(generation.unheld, True)}
    headers = {**ignored_header(known, type(body), options=Options), **answer.headers()}
    if body.stream is not False:
        lines = answer.lines(generation, service_of(request).config.ping)
        return LineStream(lines, generation.close, headers)
    try:
        whole = await while_connected(request, answer.whole(generation))
    finally:
        generation.close()
    return JSONResponse(whole, headers=headers)


async def _start(
    request: Request, body: GeneratingFields, read_prompts: Callable[[LoadedModel], PromptIds]
) -> Generation:
    options, caller = body.options or Options(), caller_of(request)
    wish = Wish(
        options.sampling(body.num_logprobs),
        DEFAULTS,
        options.stops(),
        options.num_ctx,
        priority=priority_of(caller, body),
        task="chat" if isinstance(body, ChatRequest) else "generate",
        progress=body.stream is not False and bool(body.return_progress),
    )
    start = service_of(request).start(
        caller, body.model, body.keep_alive_seconds(), wish, read_prompts
    )
    return await while_connected(request, start)


async def _load_or_unload(request: Request, body: GeneratingFields, answer: Answer) -> Response:
    """One JSON object, also where a stream was asked for."""
    service, keep_alive = service_of(request), body.keep_alive_seconds()
    if keep_alive == 0:
        await service.manager.unload(body.model)
        return JSONResponse(answer.bare("unload"))
    await while_connected(request, service.load(caller_of(request), body.model, keep_alive))
    return JSONResponse(answer.bare("load"))
