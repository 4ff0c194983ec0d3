"""K01-K05 of bug_kinds.md against a real daemon: frames, chunks, characters, stop strings, ends."""

from __future__ import annotations

import json

import pytest

from chain_models import FAMILY
from daemon import Daemon, wait_until
from dialects import CHAT, COMPLETION, OLLAMA_CHAT, OLLAMA_GENERATE, ROUTES, ask, body, refused

BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
ENDED_SECONDS = 4.0
EVERY_ROUTE = pytest.mark.parametrize("route", ROUTES)


@pytest.mark.parametrize("route", [CHAT, COMPLETION])
def test_k01_openai_streams_only_when_asked(daemon: Daemon, route: str) -> None:
    """K01."""
    asked = body(route, "script", "1", stream=False)
    silent = {name: value for name, value in asked.items() if name != "stream"}
    for request in (silent, asked, silent | {"stream": None}):
        whole = daemon.http.post(route, json=request)
        assert whole.headers["content-type"] == "application/json"
        assert whole.json()["choices"][0]["finish_reason"] == "stop"
    streamed = daemon.http.post(route, json=asked | {"stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    for line in streamed.text.split("\n"):
        assert line == "" or line.startswith((":", "data: {", "data: [DONE]")), line
    assert streamed.text.endswith("}\n\ndata: [DONE]\n\n")


@pytest.mark.parametrize("route", [OLLAMA_CHAT, OLLAMA_GENERATE])
def test_k01_ollama_streams_unless_told_not_to(daemon: Daemon, route: str) -> None:
    """K01."""
    asked = body(route, "script", "1", stream=True)
    silent = {name: value for name, value in asked.items() if name != "stream"}
    for request in (silent, asked):
        streamed = daemon.http.post(route, json=request)
        assert streamed.headers["content-type"] == "application/x-ndjson"
        values = [json.loads(line) for line in streamed.text.splitlines()]
        assert len(values) > 1 and values[-1]["done"] is True
        assert not any(value["done"] for value in values[:-1])
    whole = daemon.http.post(route, json=asked | {"stream": False})
    assert whole.headers["content-type"] == "application/json"
    assert whole.json()["done"] is True


@pytest.mark.parametrize("with_usage", [False, True])
def test_k02_chunk_shape(daemon: Daemon, with_usage: bool) -> None:
    """K02."""
    request = body(CHAT, "script", "1", stream=True)
    if not with_usage:
        del request["stream_options"]
    text = daemon.http.post(CHAT, json=request).text
    data = [frame.removeprefix("data: ") for frame in text.removesuffix("\n\n").split("\n\n")]
    assert data.pop() == "[DONE]"
    chunks = [json.loads(value) for value in data]
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    if with_usage:
        last = chunks.pop()
        whole = daemon.http.post(CHAT, json=body(CHAT, "script", "1", stream=False)).json()
        assert last["choices"] == [] and last["usage"] == whole["usage"]
    assert all(len(chunk["choices"]) == 1 and not chunk.get("usage") for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"]["role"] == "assistant"
    assert not any("role" in choice["delta"] for choice in choices[1:])
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert choices[-1]["delta"] == {}


@EVERY_ROUTE
@BOTH_WAYS
def test_k03_characters_of_several_tokens(daemon: Daemon, route: str, stream: bool) -> None:
    """K03: smile, e acute, a Korean syllable, and a family of three cut inside its characters."""
    for prompt, text in (("3", "\U0001f642!"), ("4", "é"), ("5", "한"), ("6", FAMILY)):
        reply = ask(daemon.http, route, "script", prompt, stream=stream)
        assert (reply.text, reply.reason) == (text, "stop")
        assert not any("\ufffd" in piece for piece in reply.pieces)


@EVERY_ROUTE
@BOTH_WAYS
@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (["D E"], "A B C "),
        ("D E", "A B C "),
        (["D Z"], "A B C D E F G"),
        (["A B"], ""),
        (["Z", "F G", "E F G"], "A B C D "),
    ],
)
def test_k04_stop_strings(
    daemon: Daemon, route: str, stream: bool, stop: str | list[str], text: str
) -> None:
    """K04."""
    reply = ask(daemon.http, route, "script", "1", stream=stream, stop=stop)
    assert (reply.text, reply.reason) == (text, "stop")
    heads = ["".join(reply.pieces[: i + 1]) for i in range(len(reply.pieces))]
    assert all(text.startswith(head) for head in heads)


@EVERY_ROUTE
def test_k04_generation_ends_within_one_token_of_the_match(daemon: Daemon, route: str) -> None:
    """K04: of an endless script, the stop string is complete with its second token."""
    reply = ask(daemon.http, route, "script", "2", stop=["n an"], max_tokens=4000)
    assert (reply.text, reply.reason) == (" o", "stop")
    assert reply.num_completion_tokens == 2
    wait_until(lambda: not daemon.computes(), ENDED_SECONDS)


@EVERY_ROUTE
@BOTH_WAYS
def test_k05_why_it_ended(daemon: Daemon, route: str, stream: bool) -> None:
    """K05."""
    names = ["max_tokens", "max_completion_tokens"] if route == CHAT else ["max_tokens"]
    for name in names:
        reply = ask(daemon.http, route, "script", "2", stream=stream, **{name: 5})
        assert (reply.text, reply.reason) == (" on and on and on", "length")
        assert reply.num_completion_tokens == 5
    reply = ask(daemon.http, route, "script", "1", stream=stream, max_tokens=50)
    assert (reply.text, reply.reason) == ("A B C D E F G", "stop")


@EVERY_ROUTE
@BOTH_WAYS
def test_k05_zero_tokens_is_refused(daemon: Daemon, route: str, stream: bool) -> None:
    """K05: never an endless reply."""
    message = refused(daemon.http, route, body(route, "script", "2", stream=stream, max_tokens=0))
    assert ("num_predict" if route.startswith("/api") else "max_tokens") in message


def test_streams_are_sent_as_they_are_made(daemon: Daemon) -> None:
    """C2: the first events of an endless reply arrive while it is still being made."""
    request = body(CHAT, "script", "2", stream=True, max_tokens=2000)
    with daemon.http.stream("POST", CHAT, json=request) as response:
        lines = response.iter_lines()  # kept: httpx hangs up when it is dropped
        seen = [next(lines) for _ in range(8)]
        assert daemon.num_active("script") == 1
    assert sum(line.startswith("data: {") for line in seen) == 4
