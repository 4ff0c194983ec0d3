"""The four generating routes as one, for end-to-end tests: build a request, read the reply strictly.

Knows the wire shapes of both APIs and nothing of emberd's code.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import httpx

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
OLLAMA_CHAT, OLLAMA_GENERATE = "/api/chat", "/api/generate"
ROUTES = (CHAT, COMPLETION, OLLAMA_CHAT, OLLAMA_GENERATE)
Json = dict[str, Any]
_OLLAMA_NAMES = {"max_tokens": "num_predict"}


@dataclass(frozen=True)
class Reply:
    """What a reply says, whichever route it came by."""

    text: str
    reason: str
    num_prompt_tokens: int
    num_completion_tokens: int
    pieces: tuple[str, ...] = ()  # of a stream, in order


def body(route: str, model: str, prompt: str, *, stream: bool, **options: Any) -> Json:
    """A request for `route`. `options` in OpenAI's names: max_tokens, stop, seed, temperature (0), ..."""
    options.setdefault("temperature", 0)
    message = {"messages": [{"role": "user", "content": prompt}]}
    asked = message if route in (CHAT, OLLAMA_CHAT) else {"prompt": prompt}
    request: Json = {"model": model, "stream": stream, **asked}
    if route.startswith("/v1"):
        usage = {"stream_options": {"include_usage": True}} if stream else {}
        return request | usage | options
    return request | {"options": {_OLLAMA_NAMES.get(k, k): v for k, v in options.items()}}


def ask(
    http: httpx.Client, route: str, model: str, prompt: str, *, stream: bool = False, **options: Any
) -> Reply:
    """One request, and its whole reply. The status must be 200."""
    response = http.post(route, json=body(route, model, prompt, stream=stream, **options))
    return read_reply(route, response, stream=stream)


async def ask_async(
    http: httpx.AsyncClient,
    route: str,
    model: str,
    prompt: str,
    *,
    stream: bool = False,
    **options: Any,
) -> Reply:
    response = await http.post(route, json=body(route, model, prompt, stream=stream, **options))
    return read_reply(route, response, stream=stream)


def read_reply(route: str, response: httpx.Response, *, stream: bool) -> Reply:
    assert response.status_code == 200, (response.status_code, response.text)
    if stream:
        values = events(response) if route.startswith("/v1") else lines(response)
        return _joined(route, values)
    assert response.headers["content-type"] == "application/json"
    value = response.json()
    if route.startswith("/api"):
        return _ollama(value, (_ollama_text(value),), streamed=False)
    choice, usage = value["choices"][0], value["usage"]
    text = choice["message"]["content"] if route == CHAT else choice["text"]
    return Reply(text, choice["finish_reason"], usage["prompt_tokens"], usage["completion_tokens"])


def events(response: httpx.Response) -> list[Json]:
    """The values of an SSE reply; the frames must be those that the weakest client reads."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.content.endswith(b"\n\n")
    values = []
    frames = response.content.decode().removesuffix("\n\n").split("\n\n")
    assert frames[-1] == "data: [DONE]", frames[-1]
    for frame in frames[:-1]:
        if frame.startswith(":"):
            continue  # a comment: it keeps the connection alive
        assert frame.startswith("data: {") and "\n" not in frame, frame
        values.append(json.loads(frame.removeprefix("data: ")))
    return values


def lines(response: httpx.Response) -> list[Json]:
    """The values of an NDJSON reply."""
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.content.endswith(b"\n")
    values = [json.loads(line) for line in response.content[:-1].split(b"\n")]
    assert [value["done"] for value in values] == [False] * (len(values) - 1) + [True]
    return values


def message_of(route: str, response: httpx.Response) -> str:
    """The text of an error, whose shape must be the API's own."""
    value = response.json()
    if route.startswith("/api"):
        assert set(value) == {"error"} and isinstance(value["error"], str), value
        return value["error"]
    error = value["error"]
    assert {"message", "type", "param", "code"} <= set(error), value
    assert isinstance(error["message"], str) and error["message"], value
    return str(error["message"])


def refused(
    http: httpx.Client, route: str, request: Json | bytes, *, status: Iterable[int] = (400,)
) -> str:
    """The message of a refusal, which must be one of `status`."""
    content = request if isinstance(request, bytes) else json.dumps(request).encode()
    response = http.post(route, content=content)
    assert response.status_code in status, (response.status_code, response.text[:500])
    return message_of(route, response)


def _joined(route: str, values: list[Json]) -> Reply:
    if route.startswith("/api"):
        pieces = tuple(text for value in values if (text := _ollama_text(value)))
        return _ollama(values[-1], pieces, streamed=True)
    assert [value["choices"] for value in values[-1:]] == [[]], "no usage chunk at the end"
    choices = [value["choices"][0] for value in values[:-1]]
    texts = [c["delta"].get("content") if route == CHAT else c["text"] for c in choices]
    reasons = [choice["finish_reason"] for choice in choices]
    assert reasons[:-1] == [None] * (len(reasons) - 1) and reasons[-1] is not None
    usage = values[-1]["usage"]
    pieces = tuple(text for text in texts if text)
    counts = usage["prompt_tokens"], usage["completion_tokens"]
    return Reply("".join(pieces), reasons[-1], *counts, pieces)


def _ollama(last: Json, pieces: tuple[str, ...], *, streamed: bool) -> Reply:
    counts = last["prompt_eval_count"], last["eval_count"]
    return Reply("".join(pieces), last["done_reason"], *counts, pieces if streamed else ())


def _ollama_text(value: Json) -> str:
    text = value["message"]["content"] if "message" in value else value["response"]
    assert isinstance(text, str)
    return text
