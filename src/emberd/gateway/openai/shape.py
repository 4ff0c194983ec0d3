"""OpenAI answers from a generation: whole objects and stream chunks, for chat and for plain completions.

Knows nothing of requests beyond what an answer repeats.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from ... import __version__
from ...errors import EmberdError
from ..errors import openai_error
from ..generate import Delta, Generation
from ..stream import DONE

Json = dict[str, Any]
FINGERPRINT = f"emberd-{__version__}"


class Shape(Protocol):
    """How one of the two routes writes its choices."""

    prefix: str
    object: str
    chunk_object: str

    def opening(self) -> Json | None:
        """What a choice of the first chunk holds; None: the route has no such chunk."""

    def piece(self, text: str) -> Json: ...

    def closing(self) -> Json: ...

    def whole(self, text: str) -> Json: ...


class ChatShape:
    prefix = "chatcmpl"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self) -> Json | None:
        return {"delta": {"role": "assistant", "content": ""}}

    def piece(self, text: str) -> Json:
        return {"delta": {"content": text}}

    def closing(self) -> Json:
        return {"delta": {}}

    def whole(self, text: str) -> Json:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}


class CompletionShape:
    prefix = "cmpl"
    object = "text_completion"
    chunk_object = "text_completion"

    def opening(self) -> Json | None:
        return None

    def piece(self, text: str) -> Json:
        return {"text": text}

    def closing(self) -> Json:
        return {"text": ""}

    def whole(self, text: str) -> Json:
        return {"text": text}


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: its shape, and the fields that are the same in all of its chunks."""

    shape: Shape
    model: str  # as asked for
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    async def whole(self, generation: Generation) -> Json:
        """The answer in one object. Raises EmberdError."""
        choices = [
            _choice(delta.index, self.shape.whole(delta.text), delta.finish_reason)
            for delta in await generation.whole()
        ]
        return {
            **self._head(self.shape.object, choices),
            "usage": usage(generation),
            "timings": timings(generation),
        }

    async def chunks(self, generation: Generation, include_usage: bool) -> AsyncIterator[Any]:
        """The answer's chunks and the closing mark; or, once it fails, an error in place of the rest."""
        try:
            if (opening := self.shape.opening()) is not None:
                for index in range(len(generation)):
                    yield self._chunk([_choice(index, opening)], include_usage)
            async for delta in generation:
                if delta.text:
                    piece = self.shape.piece(delta.text)
                    yield self._chunk([_choice(delta.index, piece)], include_usage)
                if delta.finish_reason is not None:
                    yield self._closing_chunk(generation, delta, include_usage)
            if include_usage:
                head = self._head(self.shape.chunk_object, [])
                yield head | {"usage": usage(generation), "timings": timings(generation)}
            yield DONE
        except EmberdError as error:
            yield openai_error(error)

    def _closing_chunk(self, generation: Generation, delta: Delta, include_usage: bool) -> Json:
        choice = _choice(delta.index, self.shape.closing(), delta.finish_reason)
        chunk = self._chunk([choice], include_usage)
        return chunk | {"timings": timings(generation)} if generation.finished else chunk

    def _chunk(self, choices: list[Json], include_usage: bool) -> Json:
        chunk = self._head(self.shape.chunk_object, choices)
        return chunk | {"usage": None} if include_usage else chunk

    def _head(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": f"{self.shape.prefix}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
        }


def usage(generation: Generation) -> Json:
    counts = generation.usage
    return {
        "prompt_tokens": counts.num_prompt_tokens,
        "completion_tokens": counts.num_completion_tokens,
        "total_tokens": counts.num_prompt_tokens + counts.num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": counts.num_cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def timings(generation: Generation) -> Json:
    """In llama-server's names, which user interfaces read."""
    counts = generation.usage
    prompt_ms, predicted_ms = generation.prompt_ns / 1e6, generation.decode_ns / 1e6
    num_new = counts.num_prompt_tokens - counts.num_cached_tokens
    return {
        "prompt_n": num_new,
        "cache_n": counts.num_cached_tokens,
        "prompt_ms": prompt_ms,
        "prompt_per_second": num_new / prompt_ms * 1e3,
        "predicted_n": counts.num_completion_tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_second": counts.num_completion_tokens / predicted_ms * 1e3,
    }


def _choice(index: int, content: Json, finish_reason: str | None = None) -> Json:
    return {"index": index, **content, "logprobs": None, "finish_reason": finish_reason}
