"""Schemas and forced calls: the openai, ollama and anthropic packages and Qwen2.5-Coder behind a daemon."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from anthropic import Anthropic
from ollama import Client
from openai import OpenAI
from pydantic import BaseModel

from daemon import Daemon

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(3600)]

TEXT = "Extract the facts: Anna Berg is 31 years old and lives in Oslo. She plays chess and the violin."


class Person(BaseModel):
    name: str
    age: int
    city: str
    hobbies: list[str]


SCHEMA: Any = Person.model_json_schema()
ANNA = ("Anna Berg", 31, "Oslo")
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": CITY}}
    for name in ("get_weather", "get_time")
]
GREETING: Any = [{"role": "user", "content": "Hello! How are you? I am from Paris."}]


def facts(person: Person) -> tuple[str, int, str]:
    return person.name, person.age, person.city


def test_openai_parses_what_was_extracted_oc10(qwen: Daemon) -> None:
    messages: Any = [{"role": "user", "content": TEXT}]
    with OpenAI(base_url=f"{qwen.url}/v1", api_key="none", max_retries=0, timeout=1800) as client:
        answer = client.chat.completions.parse(
            model="qwen", messages=messages, response_format=Person, temperature=0, max_tokens=120
        )
        (choice,) = answer.choices
        assert choice.finish_reason == "stop"
        person = choice.message.parsed
        assert person is not None and facts(person) == ANNA
        response = client.responses.parse(
            model="qwen", input=TEXT, text_format=Person, temperature=0, max_output_tokens=120
        )
        assert response.output_parsed is not None and facts(response.output_parsed) == ANNA


def test_ollama_writes_what_the_schema_says_ol09(qwen: Daemon) -> None:
    messages = [{"role": "user", "content": TEXT}]
    with Client(host=qwen.url) as client:
        answer = client.chat(
            "qwen", messages, format=SCHEMA, options={"temperature": 0, "num_predict": 120}
        )
    assert answer.done_reason == "stop"
    assert facts(Person.model_validate_json(answer.message.content or "")) == ANNA


def test_anthropic_writes_what_the_schema_says_an02(qwen: Daemon) -> None:
    schema = {"type": "json_schema", "schema": SCHEMA}
    with Anthropic(base_url=qwen.url, api_key="none", max_retries=0, timeout=1800) as client:
        answer = client.messages.create(
            model="qwen",
            max_tokens=120,
            messages=[{"role": "user", "content": TEXT}],
            extra_body={"output_config": {"format": schema}, "temperature": 0},
        )
    (block,) = answer.content
    assert block.type == "text"
    assert facts(Person.model_validate_json(block.text)) == ANNA


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_time"}}]
)
def test_openai_forces_a_call_oc11(qwen: Daemon, choice: Any) -> None:
    """To a greeting, which no tool answers."""
    with OpenAI(base_url=f"{qwen.url}/v1", api_key="none", max_retries=0, timeout=1800) as client:
        answer = client.chat.completions.create(
            model="qwen",
            messages=GREETING,
            tools=TOOLS,
            tool_choice=choice,
            parallel_tool_calls=False,
            temperature=0,
            max_tokens=60,
        )
    (made,) = answer.choices
    assert made.finish_reason == "tool_calls" and not made.message.content
    ((name, arguments),) = [
        (c.function.name, c.function.arguments) for c in made.message.tool_calls or ()
    ]  # type: ignore[union-attr]
    assert name == "get_time" or choice == "required"
    jsonschema.validate(json.loads(arguments), CITY)


def test_anthropic_forces_a_call_an02(qwen: Daemon) -> None:
    tools: Any = [{"name": "get_weather", "input_schema": CITY}]
    with Anthropic(base_url=qwen.url, api_key="none", max_retries=0, timeout=1800) as client:
        answer = client.messages.create(
            model="qwen",
            max_tokens=60,
            messages=GREETING,
            tools=tools,
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
            extra_body={"temperature": 0},
        )
    assert answer.stop_reason == "tool_use"
    (block,) = answer.content
    assert block.type == "tool_use" and block.name == "get_weather"
    jsonschema.validate(block.input, CITY)
