"""What the generating routes share: a generation from a body's fields, and its answer, streamed or whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from ...models.loaded import LoadedModel
from ..body import read_keep_alive
from ..generate import Generation
from ..routing import caller_of, service_of
from ..sampling import Sampling
from ..service import PromptIds, Wish
from ..stream import EventStream, while_connected
from .schema import SamplingFields
from .shape import Answer

DEFAULTS: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0}


async def start(
    request: Request,
    body: SamplingFields,
    sampling: Sampling,
    read_prompts: Callable[[LoadedModel], PromptIds],
    *,
    prompt_logprobs: int | None = None,
    tell_end: bool = False,
) -> Generation:
    """Raises what Service.start does. `prompt_logprobs`, `tell_end`: as in Wish."""
    keep_alive = read_keep_alive(body.keep_alive)
    context_length, context_param = body.context_wish()
    wish = Wish(
        sampling,
        DEFAULTS,
        body.stops(),
        context_length,
        context_param,
        prompt_logprobs=prompt_logprobs,
        tell_end=tell_end,
        cache_salt=body.salt(),
    )
    work = service_of(request).start(caller_of(request), body.model, keep_alive, wish, read_prompts)
    return await while_connected(request, work)


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
