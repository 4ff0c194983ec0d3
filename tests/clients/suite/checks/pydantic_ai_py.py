"""Pydantic AI: text, a tool of its own loop, typed output by tool and by JSON schema."""

from check import MODEL, PERSON_TEXT, V1, run, step
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, UsageLimitExceeded, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.ollama import OllamaProvider
from pydantic_ai.providers.openai import OpenAIProvider

TWO = UsageLimits(request_limit=2)
SETTINGS = {"max_tokens": 60, "temperature": 0, "timeout": 300}


class Person(BaseModel):
    name: str
    age: int


def model(provider=OpenAIProvider):
    key = {"api_key": "none"} if provider is OpenAIProvider else {}
    return OpenAIChatModel(MODEL, provider=provider(base_url=V1, **key))


@step
def text():
    reply = Agent(model(), model_settings={**SETTINGS, "max_tokens": 8}).run_sync("Say hi.")
    assert reply.output and reply.usage.output_tokens <= 8, reply
    return reply.output


@step
def ollama_provider():
    settings = {**SETTINGS, "max_tokens": 8}
    return Agent(model(OllamaProvider), model_settings=settings).run_sync("Say hi.").output


@step
def tool_loop():
    """Forced: so small a model writes calls of strict tools in a way of its own."""
    agent = Agent(model(), model_settings={**SETTINGS, "extra_body": {"tool_choice": "required"}})
    asked = []

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Get the weather of a city."""
        asked.append(city)
        return "18 degrees and sunny"

    try:
        told = agent.run_sync("What is the weather in Paris?", usage_limits=TWO).output
    except UsageLimitExceeded:  # a small model asks again, with the result before its eyes
        told = "the result went back"
    assert asked and "Paris" in asked[0], f"{asked}: {told}"
    return told


@step
def typed_by_tool():
    reply = Agent(model(), output_type=Person, model_settings=SETTINGS).run_sync(PERSON_TEXT)
    assert (reply.output.name, reply.output.age) == ("John", 30), reply.output
    return reply.output


@step
def typed_by_schema():
    agent = Agent(model(), output_type=NativeOutput(Person), model_settings=SETTINGS)
    reply = agent.run_sync(PERSON_TEXT)
    assert (reply.output.name, reply.output.age) == ("John", 30), reply.output
    return reply.output


run()
