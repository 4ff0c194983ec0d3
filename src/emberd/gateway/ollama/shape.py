"""Ollama answers from a generation: lines of a stream and whole objects, for generate and chat alike."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from ...errors import EmberdError
from ..errors import ollama_error
from ..generate import Generation
from .prompts import Cut

Json = dict[str, Any]
MAX_CONTEXT_BYTES = 32 * 1024  # of `context` as JSON: clients' line buffers end at 64 KiB


@dataclass(slots=True)
class Answer:
    """One answer. `place` puts text where the route has it: `response`, or `message.content`."""

    model: str  # as asked for
    place: Callable[[str], Json]
    with_context: bool = False
    cut: Cut = field(default_factory=Cut)
    started_ns: int = field(default_factory=time.perf_counter_ns)

    async def lines(self, generation: Generation, ping: float) -> AsyncIterator[Json]:
        """Pieces and the closing line; an empty piece after each `ping` seconds of silence."""
        try:
            while not generation.finished:
                news = await generation.take(ping)
                if not news:
                    yield self.piece("")
                for delta in news:
                    if delta.text:
                        yield self.piece(delta.text)
                    if delta.finish_reason is not None:
                        yield self.closing("", delta.finish_reason, generation)
        except EmberdError as error:
            yield ollama_error(error)

    async def whole(self, generation: Generation) -> Json:
        """Raises EmberdError."""
        (delta,) = await generation.whole()
        return self.closing(delta.text, delta.finish_reason or "stop", generation)

    def piece(self, text: str) -> Json:
        return {**self._head(), **self.place(text), "done": False}

    def bare(self, done_reason: str) -> Json:
        """The answer to a request that only loads or unloads."""
        return {**self._head(), **self.place(""), "done": True, "done_reason": done_reason}

    def closing(self, text: str, done_reason: str, generation: Generation) -> Json:
        counts = generation.usage
        line = {
            **self._head(),
            **self.place(text),
            "done": True,
            "done_reason": done_reason,
            "total_duration": max(1, time.perf_counter_ns() - self.started_ns),
            "load_duration": generation.load_ns,
            "prompt_eval_count": counts.num_prompt_tokens,
            "prompt_eval_duration": generation.prompt_ns,
            "eval_count": counts.num_completion_tokens,
            "eval_duration": generation.decode_ns,
            "emberd": {"cached_tokens": counts.num_cached_tokens},
        }
        if self.cut.num_messages:
            line["emberd"] |= {
                "truncated_messages": self.cut.num_messages,
                "truncated_tokens": self.cut.num_tokens,
            }
        if self.with_context:
            context = [*generation.prompt_ids(0), *generation.completion_ids(0)]
            if sum(len(str(token_id)) + 1 for token_id in context) <= MAX_CONTEXT_BYTES:
                line["context"] = context
        return line

    def headers(self) -> dict[str, str]:
        return {"x-emberd-truncated": str(self.cut.num_tokens)} if self.cut.num_messages else {}

    def _head(self) -> Json:
        return {"model": self.model, "created_at": rfc3339(datetime.now(timezone.utc))}


def response_text(text: str) -> Json:
    return {"response": text}


def message_text(text: str) -> Json:
    return {"message": {"role": "assistant", "content": text}}


def rfc3339(time: datetime) -> str:
    """UTC, six digits after the point: more of them fail in older clients."""
    return time.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
