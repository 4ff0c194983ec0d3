"""llama.cpp's route for editors: what stands between two texts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from ...errors import EmberdError
from ...models.loaded import LoadedModel
from ..body import ignored_header
from ..conversation import plain_form
from ..errors import openai_error
from ..events import Finish, Reply, TextDelta
from ..generate import Generation
from ..openai.shape import timings
from ..priority import priority_of
from ..routing import caller_of, documented, read_body, service_of
from ..service import PromptIds, Wish
from ..stream import EventStream, while_connected
from .schema import InfillRequest

router = APIRouter()
BODIES = (InfillRequest,)
DEFAULTS: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
Json = dict[str, Any]


@router.post("/infill", openapi_extra=documented(InfillRequest))
async def infill(request: Request) -> Response:
    body, raw = await read_body(request, InfillRequest)
    service, constraint = service_of(request), body.constraint()
    name = (await service.manager.find_or_only(body.model)).name
    told_name = body.model or name
    files = [(one.filename or "file", one.text) for one in body.input_extra or ()]

    def read_prompts(model: LoadedModel) -> PromptIds:
        before = (body.input_prefix or "") + (body.prompt or "")
        ids = model.fill_ids(before, body.input_suffix or "", "input_suffix", files)
        form = plain_form(constraint, model.tokenizer)
        return PromptIds((ids,), param="input_prefix", form=form)

    caller = caller_of(request)
    wish = Wish(
        body.sampling(),
        DEFAULTS,
        body.stops(),
        cache_salt=body.salt(),
        priority=priority_of(caller, body),
    )
    start = service.start(caller, name, body.keep_alive_seconds(), wish, read_prompts)
    generation = await while_connected(request, start)
    headers = ignored_header(raw, InfillRequest)
    if body.stream:
        return EventStream(
            _chunks(generation, told_name), generation.close, service.config.ping, headers
        )
    try:
        (reply,) = await while_connected(request, generation.whole())
    finally:
        generation.close()
    return JSONResponse(_closing(reply, generation, told_name), headers=headers)


async def _chunks(generation: Generation, name: str) -> AsyncIterator[Json]:
    try:
        async for _, event in generation:
            match event:
                case TextDelta(text):
                    yield {"index": 0, "content": text, "tokens": [], "stop": False}
                case Finish(reason, stop_sequence):
                    ended = Reply(reason=reason, stop_sequence=stop_sequence)
                    yield _closing(ended, generation, name)
    except EmberdError as error:
        yield openai_error(error)


def _closing(reply: Reply, generation: Generation, name: str) -> Json:
    counts = generation.usage
    kind = "limit" if reply.reason == "length" else "word" if reply.stop_sequence else "eos"
    return {
        "index": 0,
        "content": reply.text,
        "tokens": [],
        "stop": True,
        "stop_type": kind,
        "stopping_word": reply.stop_sequence or "",
        "model": name,
        "tokens_predicted": counts.num_completion_tokens,
        "tokens_evaluated": counts.num_prompt_tokens,
        "tokens_cached": counts.num_cached_tokens,
        "truncated": False,
        "timings": timings(generation),
    }
