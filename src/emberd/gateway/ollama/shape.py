"""Ollama answers from a generation: lines of a stream and whole objects, for generate and chat alike."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Protocol

from ...errors import EmberdError
from ...protocol import TokenLogprobs
from ..cutting import Cut
from ..errors import ollama_error
from ..events import (
    Finish,
    Progress,
    ReasoningDelta,
    Reply,
    TextDelta,
    ToolCall,
    ToolCallArguments,
    pieces,
)
from ..generate import Generation
from ..logprobs import entries
from ..progress import told as progress_told

Json = dict[str, Any]
MAX_CONTEXT_BYTES = 32 * 1024  # of `context` as JSON: clients' line buffers end at 64 KiB


class Place(Protocol):
    """Where a route puts a reply's parts."""

    def __call__(self, text: str, thinking: str = "", calls: Sequence[Json] = ()) -> Json: ...


@dataclass(slots=True)
class Answer:
    """One answer. `place` puts text where the route has it: `response`, or `message.content`."""

    model: str  # as asked for
    place: Place
    with_context: bool = False
    with_logprobs: bool = False
    cut: Cut = field(default_factory=Cut)
    started_ns: int = field(default_factory=time.perf_counter_ns)

    async def lines(self, generation: Generation, ping: float) -> AsyncIterator[Json]:
        """Pieces and the closing line; an empty piece after each `ping` seconds of silence. A call is told
        whole, once its arguments are complete."""
        reply, num_told = Reply(), 0
        try:
            while not generation.finished:
                news = await generation.take(ping)
                if not news:
                    yield self._piece("")
                for _, event, logprobs in pieces(news):
                    told = self._logprobs(logprobs, generation) if logprobs else {}
                    if isinstance(event, Progress):
                        yield self._piece("") | {"emberd": progress_told(event)}
                        continue
                    if not isinstance(event, ToolCallArguments):
                        for one in reply.calls[num_told:]:
                            yield self._piece("", calls=calls([one], num_told))
                        num_told = len(reply.calls)
                    if event is not None:
                        reply.add(event)
                    match event:
                        case TextDelta(text):
                            yield self._piece(text) | told
                        case ReasoningDelta(text):
                            yield self._piece("", text) | told
                        case Finish():
                            yield self._closing(Reply(reason=event.reason), generation)
                        case _ if told:
                            yield self._piece("") | told
        except EmberdError as error:
            yield ollama_error(error)

    async def whole(self, generation: Generation) -> Json:
        """Raises EmberdError."""
        (reply,) = await generation.whole()
        told = self._logprobs(reply.logprobs, generation) if self.with_logprobs else {}
        return self._closing(reply, generation) | told

    def _logprobs(self, logprobs: Iterable[TokenLogprobs], generation: Generation) -> Json:
        return {"logprobs": entries(generation.model.tokenizer, logprobs)}

    def bare(self, done_reason: str) -> Json:
        """The answer to a request that only loads or unloads."""
        return {**self._head(), **self.place(""), "done": True, "done_reason": done_reason}

    def _piece(self, text: str, thinking: str = "", calls: Sequence[Json] = ()) -> Json:
        return {**self._head(), **self.place(text, thinking, calls), "done": False}

    def _closing(self, reply: Reply, generation: Generation) -> Json:
        counts = generation.usage
        line = {
            **self._head(),
            **self.place(reply.text, reply.reasoning, calls(reply.calls)),
            "done": True,
            "done_reason": "length" if reply.reason == "length" else "stop",
            "total_duration": max(1, time.perf_counter_ns() - self.started_ns),
            "load_duration": generation.load_ns,
            "prompt_eval_count": counts.num_prompt_tokens,
            "prompt_eval_duration": generation.prompt_ns,
            "eval_count": counts.num_completion_tokens,
            "eval_duration": generation.decode_ns,
            "emberd": {"cached_tokens": counts.num_cached_tokens},
        }
        if counts.num_drafted_tokens:
            line["emberd"]["drafted_tokens"] = counts.num_drafted_tokens
            line["emberd"]["accepted_tokens"] = counts.num_accepted_tokens
        if self.cut.num_messages:
            line["emberd"] |= self.cut.facts
        if self.with_context:
            context = [*generation.prompt_ids(0), *generation.completion_ids(0)]
            if sum(len(str(token_id)) + 1 for token_id in context) <= MAX_CONTEXT_BYTES:
                line["context"] = context
        return line

    def headers(self) -> dict[str, str]:
        return self.cut.headers

    def _head(self) -> Json:
        return {"model": self.model, "created_at": rfc3339(datetime.now(timezone.utc))}


def response_text(text: str, thinking: str = "", calls: Sequence[Json] = ()) -> Json:
    """Of generate, which has no tools."""
    return {"response": text} | ({"thinking": thinking} if thinking else {})


def message_text(text: str, thinking: str = "", calls: Sequence[Json] = ()) -> Json:
    message: Json = {"role": "assistant", "content": text}
    if thinking:
        message["thinking"] = thinking
    if calls:
        message["tool_calls"] = list(calls)
    return {"message": message}


def calls(made: Sequence[ToolCall], first: int = 0) -> list[Json]:
    """Calls as this API writes them; those whose arguments the token limit cut are left out."""
    return [
        {
            "id": f"call_{call.id}",
            "function": {"index": index, "name": call.name, "arguments": arguments},
        }
        for index, call in enumerate(made, first)
        if (arguments := call.parsed()) is not None
    ]


def rfc3339(time: datetime) -> str:
    """UTC, six digits after the point: more of them fail in older clients."""
    return time.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
