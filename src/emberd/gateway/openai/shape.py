"""OpenAI answers from a generation: whole objects and stream chunks, for chat and for plain completions.

Knows nothing of requests beyond what an answer repeats.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ... import __version__
from ...errors import EmberdError
from ...protocol import TokenLogprobs
from ...text.tokenizer import Tokenizer
from ..errors import openai_error
from ..events import (
    Event,
    Finish,
    Piece,
    Progress,
    ReasoningDelta,
    Reply,
    TextDelta,
    ToolCallArguments,
    ToolCallStart,
)
from ..generate import Generation
from ..logprobs import entries
from ..progress import told
from ..stream import DONE

Json = dict[str, Any]
FINGERPRINT = f"emberd-{__version__}"


class Shape(Protocol):
    """How one of the two routes writes its choices."""

    @property
    def prefix(self) -> str: ...

    @property
    def object(self) -> str: ...

    @property
    def chunk_object(self) -> str: ...

    def opening(self, index: int) -> Json | None:
        """What a choice of the first chunk holds; None: the route has no such chunk."""

    def piece(self, piece: Piece, tokenizer: Tokenizer) -> Json | None:
        """What a choice holds for an event before the end; None: nothing is told of it."""

    def closing(self) -> Json: ...

    def whole(self, index: int, reply: Reply, tokenizer: Tokenizer) -> Json: ...


@dataclass(frozen=True, slots=True)
class ChatShape:
    """`reasoning_names`: the keys under which reasoning is told; none: it is left out."""

    reasoning_names: tuple[str, ...] = ("reasoning_content",)
    with_logprobs: bool = False
    prefix: str = "chatcmpl"
    object: str = "chat.completion"
    chunk_object: str = "chat.completion.chunk"

    def opening(self, index: int) -> Json | None:
        return {"delta": {"role": "assistant", "content": ""}}

    def piece(self, piece: Piece, tokenizer: Tokenizer) -> Json | None:
        content = self._delta(piece.event)
        if not piece.logprobs:
            return content
        return (content or self.closing()) | self._logprobs(piece.logprobs, tokenizer)

    def _delta(self, event: Event | None) -> Json | None:
        match event:
            case TextDelta(text):
                return {"delta": {"content": text}}
            case ReasoningDelta(text) if self.reasoning_names:
                return {"delta": dict.fromkeys(self.reasoning_names, text)}
            case ToolCallStart(index, id, name):
                return {"delta": {"tool_calls": [{"index": index, **call(id, name, "")}]}}
            case ToolCallArguments(index, fragment):
                function = {"arguments": fragment}
                return {"delta": {"tool_calls": [{"index": index, "function": function}]}}
        return None

    def closing(self) -> Json:
        return {"delta": {}}

    def whole(self, index: int, reply: Reply, tokenizer: Tokenizer) -> Json:
        message: Json = {"role": "assistant", "content": reply.text, "refusal": None}
        if reply.reasoning:
            message |= dict.fromkeys(self.reasoning_names, reply.reasoning)
        if reply.calls:
            message["content"] = reply.text or None
            message["tool_calls"] = [
                {"index": index, **call(one.id, one.name, one.arguments)}
                for index, one in enumerate(reply.calls)
            ]
        told = self._logprobs(reply.logprobs, tokenizer) if self.with_logprobs else {}
        return {"message": message, **told}

    def _logprobs(self, logprobs: Iterable[TokenLogprobs], tokenizer: Tokenizer) -> Json:
        return {"logprobs": {"content": entries(tokenizer, logprobs), "refusal": None}}


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: its shape, and the fields that are the same in all of its chunks."""

    shape: Shape
    model: str  # as asked for
    id: str  # digits, those of the request's id
    tier: str | None = None  # what it was served as, where the request said something of it
    created: int = field(default_factory=lambda: int(time.time()))

    async def whole(self, generation: Generation) -> Json:
        """The answer in one object. Raises EmberdError."""
        tokenizer, replies = generation.model.tokenizer, await generation.whole()

        def choices() -> list[Json]:
            return [
                _choice(index, self.shape.whole(index, reply, tokenizer), reply.reason)
                for index, reply in enumerate(replies)
            ]

        # Of a long prompt there are many log-probabilities to write; others are answered meanwhile.
        large = any(reply.logprobs or reply.prompt_logprobs for reply in replies)
        return {
            **self._head(
                self.shape.object, await asyncio.to_thread(choices) if large else choices()
            ),
            "usage": usage(generation),
            "timings": timings(generation),
        }

    async def chunks(self, generation: Generation, include_usage: bool) -> AsyncIterator[Any]:
        """The answer's chunks and the closing mark; or, once it fails, an error in place of the rest."""
        tokenizer = generation.model.tokenizer
        try:
            for index in range(len(generation)):
                if (opening := self.shape.opening(index)) is not None:
                    yield self._chunk([_choice(index, opening)], include_usage)
            async for piece in generation.pieces():
                index = piece.sequence
                if isinstance(piece.event, Finish):
                    yield self._closing_chunk(generation, index, piece.event, include_usage)
                elif isinstance(piece.event, Progress):
                    empty = self._chunk([_choice(index, self.shape.closing())], include_usage)
                    yield empty | told(piece.event)
                elif (content := self.shape.piece(piece, tokenizer)) is not None:
                    yield self._chunk([_choice(index, content)], include_usage)
            if include_usage:
                head = self._head(self.shape.chunk_object, [])
                yield head | {"usage": usage(generation), "timings": timings(generation)}
            yield DONE
        except EmberdError as error:
            yield openai_error(error)

    def _closing_chunk(
        self, generation: Generation, index: int, finish: Finish, include_usage: bool
    ) -> Json:
        choice = _choice(index, self.shape.closing(), finish.reason)
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
        } | ({"service_tier": self.tier} if self.tier else {})


def call(id: str, name: str, arguments: str) -> Json:
    """A tool call as this API writes it."""
    return {
        "id": f"call_{id}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def usage(generation: Generation) -> Json:
    counts = generation.usage
    return {
        "prompt_tokens": counts.num_prompt_tokens,
        "completion_tokens": counts.num_completion_tokens,
        "total_tokens": counts.num_prompt_tokens + counts.num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": counts.num_cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": counts.num_reasoning_tokens,
            "accepted_prediction_tokens": counts.num_accepted_tokens,
            "rejected_prediction_tokens": counts.num_drafted_tokens - counts.num_accepted_tokens,
        },
    }


def timings(generation: Generation) -> Json:
    """In llama-server's names, which user interfaces read."""
    counts = generation.usage
    prompt_ms, predicted_ms = generation.prompt_ns / 1e6, generation.decode_ns / 1e6
    num_new = counts.num_prompt_tokens - counts.num_cached_tokens
    told = {
        "draft_n": counts.num_drafted_tokens,
        "draft_n_accepted": counts.num_accepted_tokens,
    }
    return {
        "prompt_n": num_new,
        "cache_n": counts.num_cached_tokens,
        "prompt_ms": prompt_ms,
        "prompt_per_second": num_new / prompt_ms * 1e3,
        "predicted_n": counts.num_completion_tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_second": counts.num_completion_tokens / predicted_ms * 1e3,
        **(told if counts.num_drafted_tokens else {}),
    }


def _choice(index: int, content: Json, finish_reason: str | None = None) -> Json:
    logprobs = content.get("logprobs")
    return {"index": index, **content, "logprobs": logprobs, "finish_reason": finish_reason}
