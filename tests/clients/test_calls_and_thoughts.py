"""Tool calls and thinking through the openai and ollama packages, against a daemon with scripted models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ollama
import pytest
from ollama import Client
from openai import OpenAI

from daemon import Daemon, running_daemon
from tiny_gguf import CHAT_TEMPLATE, script_model

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
CALLS = [
    "Sure.",
    "\n<tool",
    "_call>\n",
    '{"name": "weather", "argu',
    'ments": {"city',
    '": "Paris"}}\n</tool',
    '_call>\n<tool_call>\n{"name": "weather",',
    ' "arguments": {"city": "Oslo"}}',
    "\n</tool_call>",
]
CITIES = [{"city": "Paris"}, {"city": "Oslo"}]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """`calls` asks for the weather of two cities after "c", and is content after "r"; `thinks` thinks."""
    folder: Path = tmp_path_factory.mktemp("parts")
    models = folder / "models"
    models.mkdir()
    template = "{# <tool_call> #}{% if tools %}{% endif %}" + CHAT_TEMPLATE
    script_model(
        models / "calls.gguf",
        {"c": CALLS, "r": ["Mild", " and dry."]},
        metadata={"tokenizer.chat_template": template},
    )
    script_model(
        models / "thinks.gguf",
        {
            "t": ["<think>", "Hm", ", well", "</think>", "\n\nYes."],
            "e": ["<think>on", " and"],
            "\n": ["Closed."],
        },
        endless="e",
        metadata={"tokenizer.chat_template": "{# </think> #}" + CHAT_TEMPLATE},
    )
    with running_daemon(models, folder / "daemon", kv_memory="32MiB") as started:
        yield started


@pytest.fixture(scope="module")
def via_openai(daemon: Daemon) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


@pytest.fixture(scope="module")
def via_ollama(daemon: Daemon) -> Iterator[Client]:
    with Client(host=daemon.url) as opened:
        yield opened


def weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name
    """
    return f"dry in {city}r"


def test_openai_calls_and_answers_from_results(via_openai: OpenAI) -> None:
    """K06, OC-05, OC-22, OC-23: a whole turn there and back."""
    messages: Any = [{"role": "user", "content": "c"}]
    asked = via_openai.chat.completions.create(model="calls", messages=messages, tools=[WEATHER])
    choice = asked.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Sure."
    calls: Any = choice.message.tool_calls
    assert [json.loads(call.function.arguments) for call in calls] == CITIES
    messages.append(choice.message)
    messages += [
        {
            "role": "tool",
            "tool_call_id": call.id,
            "content": weather(**json.loads(call.function.arguments)),
        }
        for call in calls
    ]
    answer = via_openai.chat.completions.create(model="calls", messages=messages, tools=[WEATHER])
    assert answer.choices[0].message.content == "Mild and dry."
    assert answer.choices[0].finish_reason == "stop"


def test_openai_streams_calls(via_openai: OpenAI) -> None:
    """OC-28, OC-29: what the package adds up is what the whole reply has."""
    with via_openai.chat.completions.stream(
        model="calls", messages=[{"role": "user", "content": "c"}], tools=[WEATHER]
    ) as stream:
        done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion()
    assert [json.loads(event.arguments) for event in done] == CITIES
    message = final.choices[0].message
    assert message.content == "Sure." and final.choices[0].finish_reason == "tool_calls"
    calls: Any = message.tool_calls
    assert [call.function.name for call in calls] == ["weather", "weather"]
    assert len({call.id for call in calls}) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_openai_reads_reasoning(via_openai: OpenAI, stream: bool) -> None:
    """OC-24."""
    messages: Any = [{"role": "user", "content": "t"}]
    if stream:
        chunks = via_openai.chat.completions.create(
            model="thinks", messages=messages, stream=True, reasoning_effort="high"
        )
        deltas: Any = [chunk.choices[0].delta for chunk in chunks]
        reasoning = "".join(getattr(d, "reasoning_content", None) or "" for d in deltas)
        text = "".join(delta.content or "" for delta in deltas)
    else:
        reply: Any = via_openai.chat.completions.create(model="thinks", messages=messages)
        message = reply.choices[0].message
        reasoning, text = message.reasoning_content, message.content
        assert reply.usage.completion_tokens_details.reasoning_tokens == 4
    assert (reasoning, text) == ("Hm, well", "Yes.")


def test_openai_budget_of_an_endless_thinker(via_openai: OpenAI) -> None:
    """OC-12: the span is closed by force, and the model goes on behind it."""
    reply: Any = via_openai.chat.completions.create(
        model="thinks",
        messages=[{"role": "user", "content": "e"}],
        extra_body={"thinking_token_budget": 7},
    )
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].message.content == "Closed."
    assert reply.choices[0].message.reasoning_content.count("on") == 4


@pytest.mark.parametrize("stream", [False, True])
def test_ollama_calls_a_python_function(via_ollama: Client, stream: bool) -> None:
    """OL-22, OL-23: with the function itself as the tool."""
    messages: list[Any] = [{"role": "user", "content": "c"}]
    if stream:
        parts = list(via_ollama.chat("calls", messages, tools=[weather], stream=True))
        calls = [call for part in parts for call in part.message.tool_calls or ()]
        text = "".join(part.message.content or "" for part in parts)
        assert parts[-1].done and parts[-1].done_reason == "stop"
    else:
        reply = via_ollama.chat("calls", messages, tools=[weather])
        calls, text = list(reply.message.tool_calls or ()), reply.message.content or ""
        assert reply.done_reason == "stop"
    assert text == "Sure."
    assert [(call.function.name, dict(call.function.arguments)) for call in calls] == [
        ("weather", city) for city in CITIES
    ]
    messages.append({"role": "assistant", "content": text, "tool_calls": calls})
    messages += [
        {"role": "tool", "tool_name": "weather", "content": weather(**call.function.arguments)}
        for call in calls
    ]
    answer = via_ollama.chat("calls", messages, tools=[weather])
    assert answer.message.content == "Mild and dry." and not answer.message.tool_calls


def test_ollama_reads_thinking(via_ollama: Client) -> None:
    """OL-10."""
    messages: list[Any] = [{"role": "user", "content": "t"}]
    assert "thinking" in (via_ollama.show("thinks").capabilities or [])
    for think in (True, None, "high"):
        reply = via_ollama.chat("thinks", messages, think=think)  # type: ignore[arg-type]
        assert (reply.message.thinking, reply.message.content) == ("Hm, well", "Yes.")
    parts = list(via_ollama.chat("thinks", messages, think=True, stream=True))
    assert "".join(part.message.thinking or "" for part in parts) == "Hm, well"
    assert "".join(part.message.content or "" for part in parts) == "Yes."
    generated = via_ollama.generate("thinks", "t", think=True)
    assert (generated.thinking, generated.response) == ("Hm, well", "Yes.")
    with pytest.raises(ollama.ResponseError, match="does not support thinking"):
        via_ollama.chat("calls", messages, think=True)
