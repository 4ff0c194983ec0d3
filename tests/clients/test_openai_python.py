"""The openai package against a real daemon: list, chat, completions, stream, stop, cancel, errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from daemon import Daemon, wait_until

Messages = Any
TEXT = "A B C D E F G"


def said(text: str) -> Messages:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def client(served: Daemon) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def test_lists_and_retrieves_models(client: OpenAI) -> None:
    models = client.models.list().data
    assert sorted(model.id for model in models) == ["random", "script"]
    assert all(model.object == "model" and model.created > 0 for model in models)
    assert client.models.retrieve("script").id == "script"
    assert client.models.retrieve("script:latest").id == "script:latest"
    with pytest.raises(openai.NotFoundError, match="not found"):
        client.models.retrieve("nobody")


def test_chat(client: OpenAI) -> None:
    reply = client.chat.completions.create(model="script", messages=said("1"), temperature=0)
    assert reply.object == "chat.completion" and reply.model == "script"
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].message.content == TEXT
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None and reply.usage.total_tokens == 1 + 5
    assert reply.usage.prompt_tokens_details is not None


def test_chat_with_several_choices_and_a_conversation(client: OpenAI) -> None:
    messages: Messages = [
        {"role": "system", "content": [{"type": "text", "text": "be"}]},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "1"},
    ]
    reply = client.chat.completions.create(model="script", messages=messages, n=3, seed=1)
    assert [choice.message.content for choice in reply.choices] == [TEXT] * 3
    assert [choice.index for choice in reply.choices] == [0, 1, 2]


def test_stream(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="script",
        messages=said("1"),
        stream=True,
        stream_options={"include_usage": True},
        temperature=0,
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == TEXT
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5


def test_the_streaming_helper_puts_the_reply_together(client: OpenAI) -> None:
    with client.chat.completions.stream(model="script", messages=said("1")) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == TEXT


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string(client: OpenAI, stream: bool) -> None:
    if stream:
        chunks = client.chat.completions.create(
            model="script", messages=said("1"), stop=["D E"], stream=True
        )
        choices = [chunk.choices[0] for chunk in chunks]
        text, reason = "".join(c.delta.content or "" for c in choices), choices[-1].finish_reason
    else:
        reply = client.chat.completions.create(model="script", messages=said("1"), stop="D E")
        text, reason = reply.choices[0].message.content or "", reply.choices[0].finish_reason
    assert (text, reason) == ("A B C ", "stop")


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_token_limit(client: OpenAI, name: str) -> None:
    limits: Any = {name: 5}
    reply = client.chat.completions.create(model="script", messages=said("2"), **limits)
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None and reply.usage.completion_tokens == 5


def test_completions(client: OpenAI) -> None:
    reply = client.completions.create(model="script", prompt=["x1", "2"], max_tokens=6)
    assert [choice.text for choice in reply.choices] == [TEXT, " on and" * 3]
    assert [choice.finish_reason for choice in reply.choices] == ["stop", "length"]
    stream = client.completions.create(model="script", prompt="1", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == TEXT


def test_closing_a_stream_cancels(client: OpenAI, served: Daemon) -> None:
    with client.chat.completions.create(
        model="script", messages=said("2"), stream=True, max_tokens=4000
    ) as stream:
        pieces = [chunk.choices[0].delta.content for chunk in islice(stream, 4)]
        assert served.num_active("script") == 1
    assert pieces[0] == "" and all(pieces[1:])
    wait_until(lambda: served.num_active("script") == 0, 4)
    reply = client.chat.completions.create(model="script", messages=said("1"))
    assert reply.choices[0].message.content == TEXT


def test_the_async_client_streams_side_by_side_and_cancels(served: Daemon) -> None:
    async def scenario() -> list[str]:
        async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as client:

            async def one(count: int) -> str:
                stream = await client.chat.completions.create(
                    model="script", messages=said("2"), stream=True, max_tokens=count
                )
                return "".join([c.choices[0].delta.content or "" async for c in stream])

            doomed = asyncio.ensure_future(one(4000))
            texts = await asyncio.gather(*(one(2 * count) for count in range(1, 9)))
            doomed.cancel()
            await asyncio.gather(doomed, return_exceptions=True)
            return texts

    assert asyncio.run(scenario()) == [" on and" * count for count in range(1, 9)]
    wait_until(lambda: served.num_active("script") == 0, 4)


def test_errors_are_the_packages_own(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as not_found:
        client.chat.completions.create(model="nobody", messages=said("1"))
    assert not_found.value.code == "model_not_found" and "nobody" in not_found.value.message
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="script", messages=[])
    assert bad.value.param == "messages" and bad.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="script", messages=said("1"), temperature=-1)


def test_a_prompt_over_the_context_is_known_by_its_code(client: OpenAI) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as overflow:
            client.chat.completions.create(model="random", messages=said("x" * 200), stream=stream)
        assert overflow.value.code == "context_length_exceeded"
        assert "200" in overflow.value.message and "128" in overflow.value.message


def test_request_ids_are_read(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="script", messages=said("1"))
    assert raw.request_id and raw.request_id.startswith("req_")
    assert raw.parse().choices[0].message.content == TEXT


def test_logprobs_are_put_together_by_the_streaming_helper_oc26(client: OpenAI) -> None:
    request: Any = {"model": "script", "messages": said("1"), "temperature": 0}
    request |= {"logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**request).choices[0].logprobs
    with client.chat.completions.stream(**request) as stream:
        streamed = stream.get_final_completion().choices[0].logprobs
    assert whole is not None and whole.content is not None and streamed is not None
    assert [entry.token for entry in whole.content] == ["A B", " C D", " E F", " G"]
    assert all(len(entry.top_logprobs) == 2 for entry in whole.content)
    assert streamed.content == whole.content


def test_a_prompt_is_scored_by_echo_ok01(client: OpenAI) -> None:
    options: Any = {"echo": True, "logprobs": 1, "max_tokens": 0}
    (choice,) = client.completions.create(model="script", prompt=[49, 256, 257], **options).choices
    assert choice.text == "1A B C D"
    assert choice.logprobs is not None
    first, *rest = choice.logprobs.token_logprobs or []
    assert first is None and rest == pytest.approx([0, 0], abs=1e-4)
