"""OpenAI's Agents SDK, over chat completions and over responses."""

import asyncio
import os

os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"

from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
)
from check import MODEL, V1, run, step
from openai import AsyncOpenAI

asked = []


@function_tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    asked.append(city)
    return "18 degrees and sunny"


@function_tool
def get_time(city: str) -> str:
    """Get the local time of a city."""
    return "14:05"


def agent(kind, **options):
    client = AsyncOpenAI(base_url=V1, api_key="none", max_retries=0, timeout=300)
    return Agent(
        name="helper",
        model=kind(model=MODEL, openai_client=client),
        model_settings=ModelSettings(temperature=0, max_tokens=160, **options),
        tools=[get_weather, get_time],
    )


def loop_with(kind, **options):
    asked.clear()
    question = "What is the weather in Paris?"
    try:
        reply = asyncio.run(Runner.run(agent(kind, **options), question, max_turns=2))
        told = reply.final_output
    except MaxTurnsExceeded:  # a small model asks again, with the result before its eyes
        told = "the result went back"
    except ModelBehaviorError as error:  # or never comes to an end
        assert "max_output_tokens" in str(error), error
        told = "the result went back, the answer was cut"
    assert asked, told
    return f"{asked[0]}: {told}"


@step
def chat_tool_loop():
    """Forced: so small a model writes calls of strict tools in a way of its own."""
    return loop_with(OpenAIChatCompletionsModel, tool_choice="required")


@step
def responses_tool_loop():
    return loop_with(OpenAIResponsesModel, tool_choice="required")


@step
def responses_stream():
    async def stream():
        one = agent(OpenAIResponsesModel)
        one.tools = []
        result = Runner.run_streamed(one, "Count from one to twenty in words.")
        kinds = [
            e.data.type async for e in result.stream_events() if e.type == "raw_response_event"
        ]
        return kinds

    kinds = asyncio.run(stream())
    assert kinds.count("response.output_text.delta") > 1, kinds
    return f"{len(kinds)} events"


run()
