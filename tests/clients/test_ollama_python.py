"""The ollama package against a real daemon: list, show, ps, chat, generate, stream, stop, cancel, errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Any

import ollama
import pytest
from ollama import AsyncClient, Client

from daemon import Daemon, wait_until

TEXT = "A B C D E F G"


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def client(served: Daemon) -> Iterator[Client]:
    with Client(host=served.url) as opened:
        yield opened


def test_lists_and_shows_models(client: Client) -> None:
    models = client.list().models
    assert sorted(str(model.model) for model in models) == ["random:latest", "script:latest"]
    assert all(model.size and model.digest and model.details for model in models)
    shown = client.show("script")
    assert shown.capabilities == ["completion", "tools"]
    info: Any = shown.modelinfo
    assert info["general.architecture"] == "llama" and info["llama.context_length"] == 4096
    assert shown.details is not None and shown.details.format == "gguf"


def test_loads_unloads_and_lists_what_runs(client: Client) -> None:
    loaded = client.generate("random", "", keep_alive="10m")
    assert (loaded.done, loaded.done_reason) == (True, "load")
    running = {model.name: model for model in client.ps().models}["random:latest"]
    assert running.context_length == 128 and running.expires_at is not None
    unloaded = client.generate("random", "", keep_alive=0)
    assert unloaded.done_reason == "unload"
    assert "random:latest" not in {model.name for model in client.ps().models}


def test_chat(client: Client) -> None:
    reply = client.chat("script", said("1"), options={"temperature": 0})
    assert reply.message.role == "assistant" and reply.message.content == TEXT
    assert (reply.done, reply.done_reason) == (True, "stop")
    assert (reply.prompt_eval_count, reply.eval_count) == (1, 5)
    assert reply.total_duration and reply.eval_duration


def test_chat_stream(client: Client) -> None:
    parts = list(client.chat("script", said("1"), stream=True))
    assert "".join(part.message.content or "" for part in parts) == TEXT
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].done_reason == "stop" and parts[-1].eval_count == 5


@pytest.mark.parametrize("stream", [False, True])
def test_generate(client: Client, stream: bool) -> None:
    if stream:
        parts = list(client.generate("script", "1", stream=True))
        text, last = "".join(part.response or "" for part in parts), parts[-1]
    else:
        last = client.generate("script", "1")
        text = last.response or ""
    assert text == TEXT and last.done_reason == "stop"
    assert last.context is not None and len(last.context) == 1 + 5


def test_generate_continues_a_context(client: Client) -> None:
    first = client.generate("script", "1")
    second = client.generate("script", "1", context=first.context)
    assert second.response == TEXT and second.prompt_eval_count == 1 + 5 + 1


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string(client: Client, stream: bool) -> None:
    options = {"stop": ["D E"]}
    if stream:
        parts = list(client.chat("script", said("1"), stream=True, options=options))
        text, last = "".join(part.message.content or "" for part in parts), parts[-1]
    else:
        last = client.chat("script", said("1"), options=options)
        text = last.message.content or ""
    assert (text, last.done_reason) == ("A B C ", "stop")


def test_token_limit(client: Client) -> None:
    reply = client.chat("script", said("2"), options={"num_predict": 5})
    assert (reply.message.content, reply.done_reason) == (" on and on and on", "length")
    assert reply.eval_count == 5


def test_closing_a_stream_cancels(client: Client, served: Daemon) -> None:
    stream: Any = client.chat("script", said("2"), stream=True, options={"num_predict": 4000})
    assert all(part.message.content for part in islice(stream, 4))
    assert served.num_active("script") == 1
    stream.close()
    wait_until(lambda: served.num_active("script") == 0, 4)
    assert client.chat("script", said("1")).message.content == TEXT


def test_the_async_client_streams_side_by_side_and_cancels(served: Daemon) -> None:
    async def one(client: AsyncClient, count: int) -> str:
        stream = await client.chat("script", said("2"), stream=True, options={"num_predict": count})
        return "".join([part.message.content or "" async for part in stream])

    async def scenario() -> list[str]:
        async with AsyncClient(host=served.url) as client:
            doomed = asyncio.ensure_future(one(client, 4000))
            texts = await asyncio.gather(*(one(client, 2 * count) for count in range(1, 9)))
            doomed.cancel()
            await asyncio.gather(doomed, return_exceptions=True)
            return texts

    assert asyncio.run(scenario()) == [" on and" * count for count in range(1, 9)]
    wait_until(lambda: served.num_active("script") == 0, 4)


def test_errors_are_the_packages_own(client: Client) -> None:
    for stream in (False, True):
        with pytest.raises(ollama.ResponseError, match="not found") as not_found:
            list(client.chat("nobody", said("1"), stream=stream))
        assert not_found.value.status_code == 404
    with pytest.raises(ollama.ResponseError) as overflow:
        client.generate("random", "x" * 200)
    assert overflow.value.status_code == 400 and "128 tokens" in overflow.value.error
    with pytest.raises(ollama.ResponseError, match="num_predict"):
        client.chat("script", said("1"), options={"num_predict": 0})


def test_logprobs_ol11(client: Client) -> None:
    request: Any = {"options": {"temperature": 0}, "logprobs": True, "top_logprobs": 2}
    whole = client.chat("script", said("1"), **request)
    parts = list(client.chat("script", said("1"), stream=True, **request))
    assert whole.logprobs is not None
    assert [entry.token for entry in whole.logprobs] == ["A B", " C D", " E F", " G"]
    assert [entry for part in parts for entry in part.logprobs or ()] == list(whole.logprobs)
