"""The openai package's responses API against a real daemon: create, stream, chains, tools, thinking, counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from daemon import Daemon, running_daemon, wait_until
from tiny_gguf import CHAT_TEMPLATE, script_model

TEXT = "A B C D E F G"
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALLS = [
    "Sure.",
    "\n<tool",
    '_call>\n{"name": "weather", "argu',
    'ments": {"city": "Paris"}}\n</tool_call>\n',
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
]
THOUGHT = ["<think>", "Hm", ", well", "</think>", "\n\nYes."]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """`script` says "A B C D E F G" after "1", goes on for ever after "2", asks for the weather after "c" and
    is content after "r"; `thinks` thinks after "t"."""
    folder: Path = tmp_path_factory.mktemp("responses")
    (folder / "models").mkdir()
    scripts = {
        "1": ["A B", " C D", " E F", " G"],
        "2": [" on", " and"],
        "c": CALLS,
        "r": ["Mild", " and dry."],
    }
    for name, script, comment in (
        ("script", scripts, "{# <tool_call> #}{% if tools %}{% endif %}"),
        ("thinks", {"t": THOUGHT}, "{# </think> #}"),
    ):
        metadata = {"tokenizer.chat_template": comment + CHAT_TEMPLATE}
        script_model(folder / "models" / f"{name}.gguf", script, endless="2", metadata=metadata)
    with running_daemon(folder / "models", folder / "daemon", kv_memory="32MiB") as started:
        yield started


@pytest.fixture(scope="module")
def client(daemon: Daemon) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def test_create_reads_a_text_or04(client: OpenAI) -> None:
    response = client.responses.create(model="script", input="1", temperature=0)
    assert response.output_text == TEXT and response.status == "completed"
    assert response.usage is not None and response.usage.total_tokens == 1 + 5
    assert response.usage.output_tokens_details.reasoning_tokens == 0
    limited = client.responses.create(model="script", input="2", max_output_tokens=16)
    assert limited.status == "incomplete" and limited.incomplete_details is not None
    assert limited.incomplete_details.reason == "max_output_tokens"


def test_a_raw_stream_has_all_events_in_order_or06(client: OpenAI) -> None:
    events = list(client.responses.create(model="script", input="1", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == TEXT and events[-1].response.output_text == TEXT


def test_the_streaming_helper_puts_the_response_together_or07(client: OpenAI) -> None:
    with client.responses.stream(model="script", input="c", tools=[WEATHER]) as stream:
        snapshots = [
            event.snapshot
            for event in stream
            if event.type == "response.function_call_arguments.delta"
        ]
        final = stream.get_final_response()
    assert json.loads(snapshots[-1]) == {"city": "Oslo"}
    calls = [item for item in final.output if item.type == "function_call"]
    assert [json.loads(call.arguments) for call in calls] == [{"city": "Paris"}, {"city": "Oslo"}]
    assert final.output_text == "Sure."
    with client.responses.stream(model="thinks", input="t") as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.reasoning_summary_text.delta" in kinds
    assert [item.type for item in final.output] == ["reasoning", "message"]


def test_an_agents_loop_by_items_and_by_previous_response_or03_or09(client: OpenAI) -> None:
    items: Any = [{"role": "user", "content": "c"}]
    asked = client.responses.create(model="script", input=items, tools=[WEATHER])
    calls = [item for item in asked.output if item.type == "function_call"]
    outputs: Any = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "dry, sir"}
        for call in calls
    ]
    items += [*asked.output, *outputs]
    for fields in (
        {"input": items, "store": False},
        {"input": outputs, "previous_response_id": asked.id},
    ):
        answer: Any = client.responses.create(model="script", tools=[WEATHER], **fields)  # type: ignore[call-overload]
        assert answer.output_text == "Mild and dry."


def test_parse_reads_what_the_schema_binds_oc10(client: OpenAI) -> None:
    class Answer(BaseModel):
        sure: bool
        color: Literal["red", "blue"]

    asked: Any = {"model": "script", "input": "1", "temperature": 0, "text_format": Answer}
    response = client.responses.parse(**asked)
    assert isinstance(response.output_parsed, Answer) and response.text is not None
    with client.responses.stream(**asked) as stream:
        final = stream.get_final_response()
    assert final.output_parsed == response.output_parsed


def test_forced_calls_oc11(client: OpenAI) -> None:
    city = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tools: Any = [{**WEATHER, "parameters": city}, {**WEATHER, "name": "other"}]
    named: Any = {"type": "function", "name": "weather"}
    response = client.responses.create(
        model="script", input="1", tools=tools, tool_choice=named, temperature=0
    )
    (call,) = response.output
    assert call.type == "function_call" and call.name == "weather"
    assert json.loads(call.arguments) == {"city": "Paris"}


def test_what_is_stored_is_read_listed_and_deleted_or09(client: OpenAI) -> None:
    first = client.responses.create(model="script", input="1")
    second = client.responses.create(model="script", input="1", previous_response_id=first.id)
    assert client.responses.retrieve(first.id).output_text == TEXT
    listed = list(client.responses.input_items.list(second.id, limit=1, order="asc"))
    assert [item.content[0].text for item in listed] == ["1", TEXT, "1"]  # type: ignore[union-attr]
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(first.id)
    client.responses.delete(first.id)
    for call in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError, match="not found"):
            call(first.id)
    with pytest.raises(openai.NotFoundError) as gone:
        client.responses.create(model="script", input="1", previous_response_id=first.id)
    assert gone.value.code == "previous_response_not_found"


def test_a_response_of_the_background_is_cancelled_or02(client: OpenAI, daemon: Daemon) -> None:
    begun = client.responses.create(model="script", input="2", background=True)
    assert begun.status == "in_progress" and daemon.num_active("script") == 1
    assert client.responses.cancel(begun.id).status == "cancelled"
    wait_until(lambda: daemon.num_active("script") == 0, 4)
    assert client.responses.retrieve(begun.id).status == "cancelled"


def test_input_tokens_are_counted(client: OpenAI) -> None:
    counted = client.responses.input_tokens.count(model="script", input="1", instructions="be")
    made = client.responses.create(model="script", input="1", instructions="be")
    assert made.usage is not None and counted.input_tokens == made.usage.input_tokens == 3


def test_a_prompt_over_the_context_is_known_by_its_code_ht30(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as overflow:
        client.responses.create(model="script", input="x" * 5000, stream=True)
    assert overflow.value.code == "context_length_exceeded" and overflow.value.param == "input"


def test_closing_a_stream_cancels_ht14(client: OpenAI, daemon: Daemon) -> None:
    stream = client.responses.create(model="script", input="2", stream=True)
    with stream:
        assert len(list(islice(stream, 8))) == 8
        assert daemon.num_active("script") == 1
    wait_until(lambda: daemon.num_active("script") == 0, 4)
