"""Embeddings for every protocol alike: texts to ids, ids to vectors through the worker, vectors made to order.

Knows nothing of HTTP. Vectors are arrays of 32-bit floats.
"""

from __future__ import annotations

import asyncio
import math
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..errors import BadRequestError, ContextOverflowError, EmberdError
from ..models.loaded import LoadedModel
from ..protocol import EmbedRequest
from ..text.lengths import beginning

Vector: TypeAlias = "array[float]"
Input = str | Sequence[int]
MAX_INPUTS = 2048
_IN_FLIGHT = 128  # texts of one request that the worker has at a time: enough to fill its steps


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors in the order of the inputs, as the model made them."""

    vectors: tuple[Vector, ...]
    num_prompt_tokens: int
    load_ns: int  # what the request waited for its model


def read_inputs(
    model: LoadedModel, inputs: Sequence[Input], *, truncate: bool, param: str = "input"
) -> tuple[tuple[int, ...], ...]:
    """Ids of each input: texts between the model's own marks, ids as they are. Blocks.

    With `truncate` the end of what is too long is left out, and a mark at the end stays. Raises
    BadRequestError for an empty input and an unknown id, ContextOverflowError for a long one.
    """
    read = []
    for index, one in enumerate(inputs):
        where = param if len(inputs) == 1 else f"{param}[{index}]"
        if isinstance(one, str):
            begun = beginning(model.tokenizer, one, model.context_length)
            ids, partial = tuple(model.embed_ids(begun)), len(begun) < len(one)
            closing = ids[-1:] if model.tokenizer.add_eos else ()
        else:
            ids, closing, partial = model.known_ids(one, where), (), False
        if not ids:
            raise BadRequestError(f"'{where}' is empty; there is nothing to embed", where)
        if len(ids) > model.context_length:
            if not truncate:
                raise ContextOverflowError(len(ids), model.context_length, where, at_least=partial)
            ids = ids[: model.context_length - len(closing)] + closing
        read.append(ids)
    return tuple(read)


async def embed_all(
    model: LoadedModel, request_id: str, inputs: Sequence[tuple[int, ...]]
) -> tuple[Vector, ...]:
    """One vector an input. Cancelling it, or a failure of one, cancels what the worker still has."""
    pooling = model.stored.facts.pooling
    assert pooling is not None
    places = asyncio.Semaphore(_IN_FLIGHT)

    async def embed(index: int, ids: tuple[int, ...]) -> Vector:
        async with places:
            raw = await model.worker.embed(EmbedRequest(f"{request_id}-{index}", ids, pooling))
        vector = array("f", raw)
        if sys.byteorder == "big":
            vector.byteswap()
        if not math.isfinite(math.hypot(*vector)):
            raise EmberdError("the model's numbers overflowed on this input; no embedding was made")
        return vector

    tasks = [asyncio.ensure_future(embed(index, ids)) for index, ids in enumerate(inputs)]
    try:
        return tuple(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def shortened(vector: Vector, dimensions: int | None) -> Vector:
    """The first `dimensions` values, for models that were trained for that. Raises BadRequestError."""
    if dimensions is None:
        return vector
    if dimensions > len(vector):
        raise BadRequestError(
            f"'dimensions' is {dimensions}, and this model's embeddings have {len(vector)}",
            "dimensions",
        )
    return vector[:dimensions]


def normalised(vector: Vector) -> Vector:
    """The vector at length 1; zeros stay."""
    length = math.hypot(*vector)
    return array("f", (value / length for value in vector)) if length else vector


def little_endian(vector: Vector) -> bytes:
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return vector.tobytes()
