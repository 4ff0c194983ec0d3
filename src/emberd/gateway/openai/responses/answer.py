"""Response objects and their streams from a generation. Knows nothing of requests beyond what an answer repeats."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from ....errors import EmberdError
from ...cutting import Cut
from ...errors import openai_error
from ...events import Finish
from ...generate import Generation
from .output import Output

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """One response. `echo` are the fields that repeat the request; `keep` is called with what it became where it
    ended by itself or by a limit."""

    output: Output
    echo: Json
    keep: Callable[[Json], None]
    cut: Cut = field(default_factory=Cut)
    id: str = field(default_factory=lambda: f"resp_{secrets.token_hex(24)}")
    created_at: int = field(default_factory=lambda: int(time.time()))

    async def whole(self, generation: Generation) -> Json:
        """Raises EmberdError."""
        ending = Finish("stop")
        async for piece in generation.pieces():
            self.output.push(piece)
            if isinstance(piece.event, Finish):
                ending = piece.event
        return self._kept(self._ended(ending, generation))

    async def events(self, generation: Generation) -> AsyncIterator[Json]:
        """The response as a stream; once it fails, `response.failed` in place of the rest."""
        numbers = itertools.count()
        async for value in self._events(generation):
            yield {"type": value["type"], "sequence_number": next(numbers), **value}

    async def _events(self, generation: Generation) -> AsyncIterator[Json]:
        try:
            for name in ("created", "in_progress"):
                yield {"type": f"response.{name}", "response": self.in_progress()}
            async for piece in generation.pieces():
                for value in self.output.push(piece):
                    yield value
                if isinstance(piece.event, Finish):
                    response = self._kept(self._ended(piece.event, generation))
                    yield {"type": f"response.{response['status']}", "response": response}
        except EmberdError as error:
            yield {"type": "response.failed", "response": self.failed(error, generation)}

    def in_progress(self) -> Json:
        """With the items that are done."""
        return self._response("in_progress")

    def failed(self, error: Exception, generation: Generation) -> Json:
        told = openai_error(error)["error"]
        failure = {"code": told["code"] or "server_error", "message": told["message"]}
        return self._response("failed", error=failure, usage=usage(generation))

    def cancelled(self, generation: Generation) -> Json:
        return self._response("cancelled", usage=usage(generation))

    def _ended(self, ending: Finish, generation: Generation) -> Json:
        facts: Json = {"usage": usage(generation)}
        if self.cut.num_messages:
            facts["emberd"] = self.cut.facts
        if ending.reason == "length":
            reason = {"reason": "max_output_tokens"}
            return self._response("incomplete", incomplete_details=reason, **facts)
        return self._response("completed", completed_at=int(time.time()), **facts)

    def _kept(self, response: Json) -> Json:
        self.keep(response)
        return response

    def _response(self, status: str, **facts: Any) -> Json:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            **self.echo,
            "output": list(self.output.items),
            "usage": None,
            **facts,
        }


def usage(generation: Generation) -> Json:
    counts = generation.usage
    return {
        "input_tokens": counts.num_prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": counts.num_cached_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": counts.num_completion_tokens,
        "output_tokens_details": {"reasoning_tokens": counts.num_reasoning_tokens},
        "total_tokens": counts.num_prompt_tokens + counts.num_completion_tokens,
    }
