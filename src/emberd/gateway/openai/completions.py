"""OpenAI's completions route: text or ids go on, without a template.

With `echo` the prompt is a part of the answer, and its log-probabilities are told where they are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ...errors import BadRequestError
from ...models.loaded import LoadedModel
from ..body import ignored_header
from ..conversation import plain_form
from ..routing import documented, read_body
from ..service import PromptIds
from .completion_shape import CompletionShape
from .schema import CompletionRequest, refuse_unserved_completion
from .start import new_answer, respond, start

router = APIRouter(prefix="/v1")
BODIES = (CompletionRequest,)
_MAX_PROMPTS = 256


@router.post("/completions", openapi_extra=documented(CompletionRequest))
async def completions(request: Request) -> Response:
    body, raw = await read_body(request, CompletionRequest)
    refuse_unserved_completion(body)
    prompts, echo = _prompts(body), bool(body.echo)
    constraint = body.constraint()

    def read_prompts(model: LoadedModel) -> PromptIds:
        def ids(prompt: str | list[int]) -> tuple[int, ...]:
            known = prompt if isinstance(prompt, str) else model.known_ids(prompt, "prompt")
            if body.suffix:
                return model.fill_ids(known, body.suffix, "suffix")
            return tuple(model.raw_ids(known)) if isinstance(known, str) else known

        form = plain_form(constraint, model.tokenizer)
        return PromptIds(tuple(map(ids, prompts)), body.n or 1, "prompt", form)

    generation = await start(
        request,
        body,
        body.sampling(body.max_tokens, body.logprobs),
        read_prompts,
        prompt_logprobs=body.logprobs if echo else None,
        tell_end=echo,
        progress=bool(body.stream and body.return_progress),
    )
    shape = CompletionShape(
        [generation.prompt_ids(index) for index in range(len(generation))] if echo else None,
        [one if isinstance(one, str) else None for one in prompts for _ in range(body.n or 1)],
        with_logprobs=body.logprobs is not None,
        tokenizer=generation.model.tokenizer,
    )
    answer = new_answer(shape, body, generation)
    return await respond(request, body, answer, generation, ignored_header(raw, type(body)))


def _prompts(body: CompletionRequest) -> Sequence[str | list[int]]:
    """Raises BadRequestError."""
    prompt: Any = body.prompt
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        return [prompt]
    if not 1 <= len(prompt) <= _MAX_PROMPTS:
        raise BadRequestError(
            f"'prompt' holds {len(prompt)} prompts; send 1 to {_MAX_PROMPTS}", "prompt"
        )
    return list(prompt)
