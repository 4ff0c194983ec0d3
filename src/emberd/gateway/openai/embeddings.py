"""OpenAI's embeddings route: its shapes to the internal request and back, nothing else."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BeforeValidator, Field

from ...errors import BadRequestError
from ..body import Flag, Number, Schema, Text, Whole, ignored_header, read_keep_alive
from ..embeddings import (
    MAX_INPUTS,
    Input,
    Vector,
    little_endian,
    normalised,
    read_inputs,
    shortened,
)
from ..routing import caller_of, documented, read_body, service_of
from ..stream import while_connected

router = APIRouter(prefix="/v1")


def _text_or_list(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise ValueError("must be a text, a list of texts, token ids, or a list of those")
    return value


class EmbeddingsRequest(Schema):
    model: Text
    input: Annotated[
        Text | list[Text] | list[Whole] | list[list[Whole]], BeforeValidator(_text_or_list)
    ]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[Whole, Field(ge=1)] | None = None
    truncate: Flag | None = None
    keep_alive: Number | Text | None = None

    def inputs(self) -> Sequence[Input]:
        """Raises BadRequestError."""
        if isinstance(self.input, str):
            inputs: list[Any] = [self.input]
        elif self.input and isinstance(self.input[0], int):
            inputs = [self.input]
        else:
            inputs = list(self.input)
        if not 1 <= len(inputs) <= MAX_INPUTS:
            raise BadRequestError(
                f"'input' holds {len(inputs)} inputs; send 1 to {MAX_INPUTS}", "input"
            )
        for index, one in enumerate(inputs):
            if not one:
                where = "input" if isinstance(self.input, str) else f"input[{index}]"
                raise BadRequestError(f"'{where}' is empty; there is nothing to embed", where)
        return inputs

    def keep_alive_seconds(self) -> float | None:
        """Raises BadRequestError."""
        return read_keep_alive(self.keep_alive)


BODIES = (EmbeddingsRequest,)


@router.post("/embeddings", openapi_extra=documented(EmbeddingsRequest))
async def embeddings(request: Request) -> Response:
    body, raw = await read_body(request, EmbeddingsRequest)
    inputs, truncate = body.inputs(), bool(body.truncate)
    work = service_of(request).embed(
        caller_of(request),
        body.model,
        body.keep_alive_seconds(),
        lambda model: read_inputs(model, inputs, truncate=truncate),
    )
    done = await while_connected(request, work)
    vectors = [normalised(shortened(vector, body.dimensions)) for vector in done.vectors]
    as_base64 = body.encoding_format == "base64"
    answer = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _encoded(vector, as_base64)}
            for index, vector in enumerate(vectors)
        ],
        "model": body.model,
        "usage": {
            "prompt_tokens": done.num_prompt_tokens,
            "total_tokens": done.num_prompt_tokens,
        },
    }
    return JSONResponse(answer, headers=ignored_header(raw, EmbeddingsRequest))


def _encoded(vector: Vector, as_base64: bool) -> str | list[float]:
    if as_base64:
        return base64.b64encode(little_endian(vector)).decode()
    return vector.tolist()
