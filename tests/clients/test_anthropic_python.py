"""The anthropic package against a real daemon: models, messages, stream, stop, tools, thinking, counts, errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic

from daemon import Daemon, running_daemon, wait_until
from tiny_gguf import random_model, script_model

TEXT = "A B C D E F G"
TEMPLATE = (
    "{% for t in tools or () %}{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}{{ m['content'] }}{% endfor %}{# <think></think> <tool_call> #}"
)
SCRIPTS: dict[str, list[str | bytes | int]] = {
    "1": ["A B", " C D", " E F", " G"],
    "2": [" on", " and"],
    "3": [
        *("<think>", "two", " calls", "</think>", "Sure.", "<tool", "_call>"),
        *('{"name": "w", "arguments":', ' {"p": "a"}}', "</tool_call>\n<tool_call>"),
        *('{"name": "v", "arg', 'uments": {}}', "</tool_call>"),
    ],
}
W: Any = {
    "name": "w",
    "description": "tells the weather",
    "input_schema": {"type": "object", "properties": {"p": {"type": "string"}}},
}
V: Any = {"name": "v", "input_schema": {"type": "object"}}


def said(text: str) -> Any:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """`script` says TEXT after "1", goes on for ever after "2", thinks and calls w and v after "3"."""
    folder: Path = tmp_path_factory.mktemp("anthropic")
    models = folder / "models"
    models.mkdir()
    metadata = {"tokenizer.chat_template": TEMPLATE}
    script_model(models / "script.gguf", SCRIPTS, endless="2", metadata=metadata)
    random_model(models / "random.gguf", context_length=128)
    settings = {"kv_memory": "32MiB", "aliases": "claude-*=script"}
    with running_daemon(models, folder / "daemon", **settings) as started:
        yield started


@pytest.fixture(scope="module")
def client(site: Daemon) -> Iterator[Anthropic]:
    with Anthropic(base_url=site.url, api_key="none", max_retries=0) as opened:
        yield opened


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_lists_and_retrieves_models(client: Anthropic) -> None:
    """AN-26, OM-02."""
    models = list(client.models.list())
    assert sorted(model.id for model in models) == ["random", "script"]
    assert {model.id: model.max_input_tokens for model in models}["random"] == 128
    assert all(model.created_at.year >= 2024 for model in models)
    assert client.models.retrieve("claude-sonnet-4-5").display_name == "script"
    with pytest.raises(anthropic.NotFoundError, match="not found"):
        client.models.retrieve("nobody")


def test_message(client: Anthropic) -> None:
    """AN-07: also by an alias, with system blocks of both kinds and mixed content."""
    message = client.messages.create(
        model="claude-anything",
        max_tokens=100,
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
            {"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}},
        ],
        messages=[{"role": "user", "content": [{"type": "text", "text": "1"}]}],
    )
    assert (message.type, message.role, message.model) == (
        "message",
        "assistant",
        "claude-anything",
    )
    assert text_of(message) == TEXT
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    usage = message.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == 3
    assert usage.output_tokens == 5
    assert message._request_id is not None and message._request_id.startswith("req_")


def test_raw_stream(client: Anthropic) -> None:
    """AN-20."""
    stream = client.messages.create(model="script", max_tokens=99, messages=said("1"), stream=True)
    events = list(stream)
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    deltas: list[Any] = [event for event in events if event.type == "content_block_delta"]
    assert "".join(event.delta.text for event in deltas) == TEXT


def test_the_streaming_helper_puts_the_message_together(client: Anthropic) -> None:
    with client.messages.stream(model="script", max_tokens=99, messages=said("1")) as stream:
        pieces = list(stream.text_stream)
        message = stream.get_final_message()
    whole = client.messages.create(model="script", max_tokens=99, messages=said("1"))
    assert "".join(pieces) == text_of(message) == TEXT
    assert message.stop_reason == whole.stop_reason == "end_turn"
    assert message.usage.output_tokens == whole.usage.output_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_stop_sequence(client: Anthropic, stream: bool) -> None:
    """AN-25."""
    request: Any = {"model": "script", "max_tokens": 99, "messages": said("1")}
    request["stop_sequences"] = ["D E"]
    if stream:
        with client.messages.stream(**request) as opened:
            message: Any = opened.get_final_message()
    else:
        message = client.messages.create(**request)
    assert text_of(message) == "A B C "
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "D E")


def test_token_limit(client: Anthropic) -> None:
    """AN-08, HT-33: a limit beyond the context is cut to what fits."""
    message = client.messages.create(model="script", max_tokens=5, messages=said("2"))
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 5)
    request: Any = {"model": "random", "max_tokens": 32000, "messages": said("hello")}
    with client.messages.stream(**request) as stream:
        message = stream.get_final_message()
    assert message.stop_reason in ("model_context_window_exceeded", "end_turn")


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_and_tools_in_a_loop(client: Anthropic, stream: bool) -> None:
    """AN-04, AN-09, AN-10, K06, K07: the history, signatures included, goes back as it came."""
    request: Any = {"model": "script", "max_tokens": 500, "tools": [W, V]}
    request["thinking"] = {"type": "adaptive"}
    messages = said("3")
    if stream:
        with client.messages.stream(messages=messages, **request) as opened:
            message: Any = opened.get_final_message()
    else:
        message = client.messages.create(messages=messages, **request)
    assert message.stop_reason == "tool_use"
    thought, said_first, first, second = message.content
    assert (thought.type, thought.thinking) == ("thinking", "two calls") and thought.signature
    assert (said_first.type, said_first.text) == ("text", "Sure.")
    assert (first.type, first.name, first.input) == ("tool_use", "w", {"p": "a"})
    assert (second.type, second.name, second.input) == ("tool_use", "v", {})
    assert first.id.startswith("toolu_") and first.id != second.id
    assert message.usage.output_tokens_details.thinking_tokens == 4
    results = [
        {
            "type": "tool_result",
            "tool_use_id": first.id,
            "content": [{"type": "text", "text": "x"}],
        },
        {"type": "tool_result", "tool_use_id": second.id, "content": "y", "is_error": True},
        {"type": "text", "text": "1"},
    ]
    messages += [
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results},
    ]
    answer = client.messages.create(messages=messages, **request)
    assert (text_of(answer), answer.stop_reason) == (TEXT, "end_turn")


def test_one_call_where_the_caller_wants_one(client: Anthropic) -> None:
    message = client.messages.create(
        model="script",
        max_tokens=500,
        messages=said("3"),
        tools=[W, V],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
    )
    assert [block.name for block in message.content if block.type == "tool_use"] == ["w"]
    assert message.stop_reason == "tool_use"


def test_without_tools_tags_are_text(client: Anthropic) -> None:
    """K07."""
    message = client.messages.create(model="script", max_tokens=500, messages=said("3"))
    assert "<tool_call>" in text_of(message) and message.stop_reason == "end_turn"


def test_counts_tokens_as_a_message_does(client: Anthropic) -> None:
    """AN-23."""
    request: Any = {"model": "script", "system": "be", "tools": [W], "messages": said("11")}
    counted = client.messages.count_tokens(**request)
    usage = client.messages.create(max_tokens=1, **request).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_the_beta_client_is_served_too(client: Anthropic) -> None:
    """AN-01: `?beta=true`, and fields that only it sends."""
    message = client.beta.messages.create(
        model="script",
        max_tokens=99,
        messages=said("1"),
        betas=["context-management-2025-06-27"],
        context_management={"edits": []},
        metadata={"user_id": "me"},
    )
    assert text_of(message) == TEXT


def test_a_bearer_key_does_as_well(site: Daemon) -> None:
    """C17."""
    with Anthropic(base_url=site.url, auth_token="none", api_key=None) as client:
        message = client.messages.create(model="script", max_tokens=9, messages=said("1"))
    assert text_of(message) == TEXT


def test_closing_a_stream_cancels(client: Anthropic, site: Daemon) -> None:
    stream = client.messages.create(
        model="script", max_tokens=4000, messages=said("2"), stream=True
    )
    assert [event.type for event in islice(stream, 2)] == ["message_start", "content_block_start"]
    assert site.num_active("script") == 1
    stream.close()
    wait_until(lambda: site.num_active("script") == 0, 4)


def test_the_async_client_streams_side_by_side_and_cancels(site: Daemon) -> None:
    async def scenario() -> list[str]:
        async with AsyncAnthropic(base_url=site.url, api_key="none") as client:

            async def one(count: int) -> str:
                async with client.messages.stream(
                    model="script", max_tokens=count, messages=said("2")
                ) as stream:
                    return "".join([text async for text in stream.text_stream])

            doomed = asyncio.ensure_future(one(4000))
            texts = await asyncio.gather(*(one(2 * count) for count in range(1, 9)))
            doomed.cancel()
            await asyncio.gather(doomed, return_exceptions=True)
            return texts

    assert asyncio.run(scenario()) == [" on and" * count for count in range(1, 9)]
    wait_until(lambda: site.num_active("script") == 0, 4)


def test_errors_are_the_packages_own(client: Anthropic) -> None:
    """AN-22, HT-31."""
    with pytest.raises(anthropic.NotFoundError) as not_found:
        client.messages.create(model="nobody", max_tokens=9, messages=said("1"))
    body: Any = not_found.value.body
    assert body["error"]["type"] == "not_found_error" and "nobody" in body["error"]["message"]
    with pytest.raises(anthropic.BadRequestError, match="messages"):
        client.messages.create(model="script", max_tokens=9, messages=[])
    for stream in (False, True):
        with pytest.raises(
            anthropic.BadRequestError, match=r"prompt is too long: 200 tokens > 128"
        ):
            client.messages.create(
                model="random", max_tokens=9, messages=said("x" * 200), stream=stream
            )
