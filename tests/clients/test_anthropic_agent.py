"""An agent's loop with two tools: the anthropic package and Qwen2.5-Coder behind a daemon."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic import Anthropic

from daemon import Daemon

pytestmark = [pytest.mark.model, pytest.mark.slow]

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [
    {"name": "get_weather", "description": "Get the weather of a city.", "input_schema": CITY},
    {"name": "get_time", "description": "Get the local time of a city.", "input_schema": CITY},
]
RESULTS = {"get_weather": "18 degrees and sunny", "get_time": "14:05"}


@pytest.mark.timeout(3600)
def test_a_model_calls_tools_and_answers_from_their_results(qwen: Daemon) -> None:
    """Issue 4, 5: the model writes the call, the package carries it, and its result is in the answer."""
    request: Any = {"model": "claude-sonnet", "max_tokens": 40, "tools": TOOLS}
    request["extra_body"] = {"temperature": 0}
    with Anthropic(base_url=qwen.url, api_key="none", max_retries=0, timeout=1800) as client:
        for question, tool in (
            ("What is the weather in Paris?", "get_weather"),
            ("What is the local time in Paris?", "get_time"),
        ):
            messages: Any = [{"role": "user", "content": question}]
            with client.messages.stream(messages=messages, **request) as stream:
                asked = stream.get_final_message()
            assert asked.stop_reason == "tool_use", asked
            calls = [block for block in asked.content if block.type == "tool_use"]
            assert [(call.name, call.input) for call in calls] == [(tool, {"city": "Paris"})]
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": RESULTS[call.name]}
                for call in calls
            ]
            ask: Any = {"type": "text", "text": "Now answer my question in one sentence."}
            messages += [
                {"role": "assistant", "content": asked.content},
                {"role": "user", "content": [*results, ask]},
            ]
            answer = client.messages.create(messages=messages, **request)
            assert answer.stop_reason == "end_turn", answer
            text = "".join(block.text for block in answer.content if block.type == "text")
            assert RESULTS[tool].split()[0] in text
