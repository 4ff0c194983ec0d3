"""An agent's loop with two tools: the openai and ollama packages and Qwen2.5-Coder behind a daemon."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ollama import Client
from openai import OpenAI

from daemon import Daemon

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(3600)]

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": CITY},
    }
    for name, description in (
        ("get_weather", "Get the weather of a city."),
        ("get_time", "Get the local time of a city."),
    )
]
RESULTS = {"get_weather": "18 degrees and sunny", "get_time": "14:05"}
QUESTIONS = [
    ("What is the weather in Paris?", "get_weather", "18"),
    ("What is the local time in Paris?", "get_time", "14:05"),
]
ASK: Any = {"role": "user", "content": "Now answer my question in one sentence."}


@pytest.mark.parametrize(("question", "tool", "fact"), QUESTIONS)
def test_openai(qwen: Daemon, question: str, tool: str, fact: str) -> None:
    """Issue 4, 5: the model writes the call, the package carries it, and its result is in the answer."""
    messages: Any = [{"role": "user", "content": question}]
    request: Any = {"model": "qwen", "tools": TOOLS, "temperature": 0, "max_tokens": 40}
    with OpenAI(base_url=f"{qwen.url}/v1", api_key="none", max_retries=0, timeout=1800) as client:
        with client.chat.completions.stream(messages=messages, **request) as stream:
            asked = stream.get_final_completion().choices[0]
        assert asked.finish_reason == "tool_calls", asked
        calls: Any = asked.message.tool_calls
        assert [(c.function.name, json.loads(c.function.arguments)) for c in calls] == [
            (tool, {"city": "Paris"})
        ]
        results = [
            {"role": "tool", "tool_call_id": c.id, "content": RESULTS[c.function.name]}
            for c in calls
        ]
        messages += [asked.message.to_dict(), *results, ASK]
        answer = client.chat.completions.create(messages=messages, **request)
    assert fact in (answer.choices[0].message.content or ""), answer


@pytest.mark.parametrize(("question", "tool", "fact"), QUESTIONS)
def test_openai_responses(qwen: Daemon, question: str, tool: str, fact: str) -> None:
    """The same over /v1/responses, streamed, going on from the stored response (OR-09)."""
    tools = [{"type": "function", **one["function"]} for one in TOOLS]
    request: Any = {"model": "qwen", "tools": tools, "temperature": 0, "max_output_tokens": 40}
    with OpenAI(base_url=f"{qwen.url}/v1", api_key="none", max_retries=0, timeout=1800) as client:
        with client.responses.stream(input=question, **request) as stream:
            asked = stream.get_final_response()
        calls = [item for item in asked.output if item.type == "function_call"]
        assert [(c.name, json.loads(c.arguments)) for c in calls] == [(tool, {"city": "Paris"})]
        results: Any = [
            {"type": "function_call_output", "call_id": c.call_id, "output": RESULTS[c.name]}
            for c in calls
        ]
        answer = client.responses.create(
            input=[*results, ASK], previous_response_id=asked.id, **request
        )
    assert fact in answer.output_text, answer


@pytest.mark.parametrize(("question", "tool", "fact"), QUESTIONS)
def test_ollama(qwen: Daemon, question: str, tool: str, fact: str) -> None:
    messages: Any = [{"role": "user", "content": question}]
    request: Any = {"tools": TOOLS, "options": {"temperature": 0, "num_predict": 40}}
    with Client(host=qwen.url) as client:
        asked = client.chat("qwen", messages, **request)
        calls = list(asked.message.tool_calls or ())
        assert [(c.function.name, dict(c.function.arguments)) for c in calls] == [
            (tool, {"city": "Paris"})
        ], asked
        results = [
            {"role": "tool", "tool_name": c.function.name, "content": RESULTS[c.function.name]}
            for c in calls
        ]
        messages += [asked.message, *results, ASK]
        answer = client.chat("qwen", messages, **request)
    assert fact in (answer.message.content or ""), answer


FILLED = [
    ("import ", "\n\nprint(math.pi)\n", "math"),
    ("import ", "\n\nprint(json.dumps(1))\n", "json"),
]


@pytest.mark.parametrize(("before", "behind", "middle"), FILLED)
def test_openai_fills_in_the_middle(qwen: Daemon, before: str, behind: str, middle: str) -> None:
    """Issue 4, 5: what stands between is made for what follows."""
    with OpenAI(base_url=f"{qwen.url}/v1", api_key="none", max_retries=0, timeout=1800) as client:
        options: Any = {"model": "qwen", "temperature": 0, "max_tokens": 8, "stop": "\n"}
        whole = client.completions.create(prompt=before, suffix=behind, **options).choices[0]
        pieces = client.completions.create(prompt=before, suffix=behind, stream=True, **options)
        assert "".join(piece.choices[0].text for piece in pieces) == whole.text
    assert (whole.text, whole.finish_reason) == (middle, "stop")


@pytest.mark.parametrize(("before", "behind", "middle"), FILLED)
def test_ollama_fills_in_the_middle(qwen: Daemon, before: str, behind: str, middle: str) -> None:
    with Client(host=qwen.url) as client:
        assert "insert" in (client.show("qwen").capabilities or [])
        options = {"temperature": 0, "num_predict": 8, "stop": ["\n"]}
        reply = client.generate("qwen", before, suffix=behind, options=options)
    assert (reply.response, reply.done_reason) == (middle, "stop")
