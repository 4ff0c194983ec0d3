"""Routes of /v1/responses: requests to the internal one and back, and what is stored of them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from ....errors import BadRequestError
from ....models.loaded import LoadedModel, ModelText
from ....text.reasoning import thinking_of
from ...body import ignored_header, refuse_ignored
from ...conversation import unheld_strict
from ...generate import Generation
from ...logprobs import entries
from ...priority import TIERS
from ...routing import documented, read_body, service_of
from ...service import PromptIds
from ...stream import EventStream, while_connected
from ..start import DEFAULTS, start
from .answer import Answer
from .background import Background
from .listing import page_of
from .output import Output
from .prompts import asked_of
from .schema import (
    ENCRYPTED_REASONING,
    LOGPROBS,
    InputTokensRequest,
    ResponsesRequest,
    refuse_unserved,
)
from .store import ResponseStore
from .tools import Tools

router = APIRouter(prefix="/v1/responses")
BODIES = (ResponsesRequest, InputTokensRequest)
Json = dict[str, Any]


@router.post("", openapi_extra=documented(ResponsesRequest))
async def create(request: Request) -> Response:
    """A response to items, and to those of an earlier response where one is named."""
    body, raw = await read_body(request, ResponsesRequest)
    refuse_unserved(body)
    store, service = _store(request), service_of(request)
    asked = asked_of(body, store)
    unused = [*asked.left_out, *_unused(body)]

    def read_prompts(model: LoadedModel) -> PromptIds:
        if service.config.strict:
            refuse_ignored([*unused, *_unheld(body, asked.tools, model.text)])
        return asked.prompt(model)

    sampling = body.sampling(body.max_output_tokens or body.max_tokens, body.num_logprobs)
    generation = await start(request, body, sampling, read_prompts)

    def keep(response: Json) -> None:
        if body.store is not False:
            store.put(response, asked.context())

    answer = Answer(
        Output(
            asked.tools.known,
            functools.partial(entries, generation.model.tokenizer),
            encrypted=ENCRYPTED_REASONING in (body.include or ()),
        ),
        _echo(body, raw, generation),
        keep,
        asked.cut,
    )
    nothing = [*unused, *_unheld(body, asked.tools, generation.model.text), *generation.unheld]
    headers = ignored_header({**raw, **dict.fromkeys(nothing, True)}, type(body))
    headers |= asked.cut.headers
    if body.stream:
        events = answer.events(generation)
        return EventStream(events, generation.close, service.config.ping, headers, named=True)
    if body.background:
        return JSONResponse(_background(request).start(answer, generation), headers=headers)
    try:
        whole = await while_connected(request, answer.whole(generation))
    finally:
        generation.close()
    return JSONResponse(whole, headers=headers)


@router.post("/input_tokens", openapi_extra=documented(InputTokensRequest))
async def input_tokens(request: Request) -> Response:
    """The prompt's exact length. Needs no worker: it neither loads the model nor waits for replies."""
    body, _ = await read_body(request, InputTokensRequest)
    refuse_unserved(body)
    asked = asked_of(body, _store(request))
    count = await service_of(request).count(body.model, asked.num_tokens)
    return JSONResponse({"object": "response.input_tokens", "input_tokens": count})


@router.get("/{id}")
async def retrieve(request: Request, id: str) -> Response:
    """A stored response, or one of the background as far as it is."""
    if request.query_params.get("stream") == "true":
        raise BadRequestError("'stream': a stored response comes whole; leave it out", "stream")
    running = _background(request).get(id)
    return JSONResponse(running or _store(request).get(id).response)


@router.delete("/{id}")
async def delete(request: Request, id: str) -> Response:
    """Forgets a response, and ends it if it runs."""
    await _background(request).cancel(id)
    _store(request).delete(id)
    return JSONResponse({"id": id, "object": "response", "deleted": True})


@router.get("/{id}/input_items")
async def input_items(request: Request, id: str) -> Response:
    """What the model was given for a response, earlier responses included."""
    return JSONResponse(page_of(_store(request).get(id).context, request.query_params))


@router.post("/{id}/cancel")
async def cancel(request: Request, id: str) -> Response:
    """Ends a response of the background; one that is done stays as it is."""
    await _background(request).cancel(id)
    response = _store(request).get(id).response
    if not response["background"]:
        raise BadRequestError(
            f"response '{id:.128}' was not made in the background; such a one ends with its connection"
        )
    return JSONResponse(response)


def _store(request: Request) -> ResponseStore:
    return cast(ResponseStore, request.app.state.responses)


def _background(request: Request) -> Background:
    return cast(Background, request.app.state.background)


def _echo(body: ResponsesRequest, raw: Json, generation: Generation) -> Json:
    """What a response repeats of its request, with defaults where it was silent."""
    hints: Mapping[str, float] = {**DEFAULTS, **generation.model.text.sampling_hints}
    reasoning, given = body.reasoning, body.text.format if body.text else None
    return {
        "background": body.background is True,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens or body.max_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata or {},
        "model": body.model,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": reasoning.summary if reasoning else None,
        },
        "service_tier": TIERS[generation.priority],
        "store": body.store is not False,
        "temperature": hints["temperature"] if body.temperature is None else body.temperature,
        "text": {"format": given or {"type": "text"}, "verbosity": "medium"},
        "tool_choice": body.tool_choice or "auto",
        "tools": raw.get("tools") or [],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": hints["top_p"] if body.top_p is None else body.top_p,
        "truncation": body.truncation or "disabled",
    }


def _unused(body: ResponsesRequest) -> list[str]:
    served = (ENCRYPTED_REASONING, LOGPROBS)
    usage = ["stream_options.include_usage"] if body.include_usage else []  # it is told anyway
    return [*usage, *(f"include.{name}" for name in body.include or () if name not in served)]


def _unheld(body: ResponsesRequest, tools: Tools, model: ModelText) -> list[str]:
    """Names what was asked for and what this model cannot do."""
    template, unheld = model.template.source, []
    if body.reasoning and body.reasoning.effort not in (None, "none") and not thinking_of(template):
        unheld.append("reasoning.effort")
    if not (tools.forced or body.constraint()):
        unheld += unheld_strict(tools.functions, template)
    return unheld
