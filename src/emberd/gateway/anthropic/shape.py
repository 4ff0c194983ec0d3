"""Anthropic answers from a generation: whole messages and stream events.

Knows nothing of requests beyond what an answer repeats.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from ...errors import EmberdError
from ..errors import anthropic_error
from ..events import Finish
from ..generate import Generation
from .blocks import Blocks

Json = dict[str, Any]
PING = {"type": "ping"}


@dataclass(frozen=True, slots=True)
class Answer:
    """One message. `max_tokens` is what was asked for, None: no limit."""

    model: str  # as asked for
    id: str
    max_tokens: int | None = None
    show_thinking: bool = True

    async def whole(self, generation: Generation) -> Json:
        """Raises EmberdError."""
        blocks, ending = Blocks(show_thinking=self.show_thinking), Finish("stop")
        async for _, event in generation:
            blocks.push(event)
            if isinstance(event, Finish):
                ending = event
        return {
            **self._message(blocks.content),
            **self._ending(ending, generation),
            "usage": usage(generation),
        }

    async def events(self, generation: Generation) -> AsyncIterator[Json]:
        """The message as a stream; once it fails, an error in place of the rest."""
        blocks = Blocks(show_thinking=self.show_thinking)
        try:
            start = {**self._message([]), "stop_reason": None, "stop_sequence": None}
            yield {"type": "message_start", "message": {**start, "usage": usage(generation)}}
            async for _, event in generation:
                for value in blocks.push(event):
                    yield value
                if isinstance(event, Finish):
                    delta = self._ending(event, generation)
                    yield {"type": "message_delta", "delta": delta, "usage": usage(generation)}
            yield {"type": "message_stop"}
        except EmberdError as error:
            yield anthropic_error(error, generation.request_id)

    def _message(self, content: list[Json]) -> Json:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
        }

    def _ending(self, ending: Finish, generation: Generation) -> Json:
        reason = self._stop_reason(ending, generation)
        matched = ending.stop_sequence if reason == "stop_sequence" else None
        return {"stop_reason": reason, "stop_sequence": matched}

    def _stop_reason(self, ending: Finish, generation: Generation) -> str:
        if ending.reason == "tool_calls":
            return "tool_use"
        if ending.stop_sequence is not None:
            return "stop_sequence"
        if ending.reason == "stop":
            return "end_turn"
        num_tokens = generation.usage.num_completion_tokens
        if self.max_tokens is not None and num_tokens >= self.max_tokens:
            return "max_tokens"
        return "model_context_window_exceeded"


def usage(generation: Generation) -> Json:
    """Tokens from the prefix cache are not among `input_tokens` here, unlike in OpenAI's counts."""
    counts = generation.usage
    return {
        "input_tokens": counts.num_prompt_tokens - counts.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.num_cached_tokens,
        "output_tokens": counts.num_completion_tokens,
        "output_tokens_details": {"thinking_tokens": counts.num_reasoning_tokens},
    }
