"""Ollama's two embedding routes: their shapes to the internal request and back, nothing else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from ..body import Flag, Number, Schema, Text, Whole, ignored_header, read_keep_alive
from ..embeddings import MAX_INPUTS, Embedded, normalised, read_inputs, shortened
from ..routing import caller_of, documented, read_body, service_of
from ..stream import while_connected

router = APIRouter(prefix="/api")


class NoOptions(Schema):
    """No option changes an embedding: all are listed as ignored."""


class EmbeddingFields(Schema):
    """What both routes take."""

    model: Text
    options: NoOptions | None = None
    keep_alive: Number | Text | None = None

    def keep_alive_seconds(self) -> float | None:
        """Raises BadRequestError."""
        return read_keep_alive(self.keep_alive)


class EmbedRequest(EmbeddingFields):
    input: Text | Annotated[list[Text], Field(max_length=MAX_INPUTS)] | None = None
    truncate: Flag | None = None
    dimensions: Annotated[Whole, Field(ge=1)] | None = None


class OldEmbeddingsRequest(EmbeddingFields):
    prompt: Text | None = None


BODIES = (EmbedRequest, OldEmbeddingsRequest)


@router.post("/embed", openapi_extra=documented(EmbedRequest))
async def embed(request: Request) -> Response:
    started_ns = time.perf_counter_ns()
    body, raw = await read_body(request, EmbedRequest)
    inputs = body.input or []
    if isinstance(inputs, str):
        inputs = [inputs]
    done = await _embed(request, body, inputs, body.truncate is not False, "input")
    vectors = [normalised(shortened(vector, body.dimensions)) for vector in done.vectors]
    answer = {
        "model": body.model,
        "embeddings": [vector.tolist() for vector in vectors],
        "total_duration": max(1, time.perf_counter_ns() - started_ns),
        "load_duration": done.load_ns,
        "prompt_eval_count": done.num_prompt_tokens,
    }
    return JSONResponse(answer, headers=ignored_header(raw, EmbedRequest, options=NoOptions))


@router.post("/embeddings", openapi_extra=documented(OldEmbeddingsRequest))
async def embeddings(request: Request) -> Response:
    """The older route: one text, and its vector as the model made it."""
    body, raw = await read_body(request, OldEmbeddingsRequest)
    done = await _embed(request, body, [body.prompt] if body.prompt else [], True, "prompt")
    vector = done.vectors[0].tolist() if done.vectors else []
    headers = ignored_header(raw, OldEmbeddingsRequest, options=NoOptions)
    return JSONResponse({"embedding": vector}, headers=headers)


async def _embed(
    request: Request, body: EmbeddingFields, inputs: Sequence[str], truncate: bool, param: str
) -> Embedded:
    """With no input the model is loaded all the same."""
    work = service_of(request).embed(
        caller_of(request),
        body.model,
        body.keep_alive_seconds(),
        lambda model: read_inputs(model, inputs, truncate=truncate, param=param),
    )
    return await while_connected(request, work)
