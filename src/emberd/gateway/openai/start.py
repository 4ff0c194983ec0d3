"""What the generating routes share: a generation from a body's fields, and its answer, streamed or whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from ...models.loaded import LoadedModel
from ..body import read_keep_alive
from ..generate import Generation
from ..priority import TIERS, priority_of
from ..requests import answer_digits
from ..routing import caller_of, service_of
from ..sampling import Sampling
from ..service import PromptIds, Wish
from ..stream import EventStream, while_connected
from .schema import SamplingFields
from .shape import Answer, Shape

DEFAULTS: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0}


async def start(
    request: Request,
    body: SamplingFields,
    sampling: Sampling,
    read_prompts: Callable[[LoadedModel], PromptIds],
    *,
    prompt_logprobs: int | None = None,
    tell_end: bool = False,
    progress: bool = False,
) -> Generation:
    """Raises what Service.start does. `prompt_logprobs`, `tell_end`, `progress`: as in Wish."""
    keep_alive = read_keep_alive(body.keep_alive)
    context_length, context_param = body.context_wish()
    caller = caller_of(request)
    wish = Wish(
        sampling,
        DEFAULTS,
        body.stops(),
        context_length,
        context_param,
        prompt_logprobs=prompt_logprobs,
        tell_end=tell_end,
        cache_salt=body.salt(),
        priority=priority_of(caller, body),
        progress=progress,
    )
    work = service_of(request).start(caller, body.model, keep_alive, wish, read_prompts)
    return await while_connected(request, work)


def new_answer(shape: Shape, body: SamplingFields, generation: Generation) -> Answer:
    """The answer to be filled from `generation`, with what is the same in all of its chunks."""
    tier = TIERS[generation.priority] if body.service_tier is not None else None
    return Answer(shape, body.model, answer_digits(generation.request_id), tier)


async def respond(
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
