"""LangChain for Python: ChatOpenAI and ChatOllama."""

from check import BASE, EMBED_MODEL, MODEL, V1, WEATHER_QUESTION, run, step
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"18 degrees in {city}"


class Person(BaseModel):
    name: str
    age: int


def openai(**options):
    return ChatOpenAI(
        base_url=V1, api_key="none", model=MODEL, temperature=0, timeout=300, **options
    )


def ollama(**options):
    return ChatOllama(base_url=BASE, model=MODEL, temperature=0, **options)


def chat_with(model):
    reply = model.invoke("Say hi.")
    assert reply.content and reply.usage_metadata["output_tokens"] <= 8, reply
    pieces = [
        chunk.content
        for chunk in model.stream("Count from one to twenty in words.")
        if chunk.content
    ]
    assert len(pieces) > 1, pieces
    return f"{len(pieces)} pieces"


@step
def openai_chat():
    return chat_with(openai(max_tokens=8))


@step
def ollama_chat():
    return chat_with(ollama(num_predict=8))


def call_with(model):
    reply = model.bind_tools([get_weather]).invoke(WEATHER_QUESTION)
    assert [(c["name"], c["args"]) for c in reply.tool_calls] == [
        ("get_weather", {"city": "Paris"})
    ]
    return reply.tool_calls[0]["args"]


@step
def openai_tools():
    return call_with(openai(max_tokens=40))


@step
def ollama_tools():
    return call_with(ollama(num_predict=40))


def structured_with(model, method):
    person = model.with_structured_output(Person, method=method).invoke("John is 30 years old.")
    assert person.name == "John" and person.age == 30, person
    return person


@step
def openai_structured():
    return structured_with(openai(max_tokens=60), "json_schema")


@step
def ollama_structured():
    return structured_with(ollama(num_predict=60), "json_schema")


@step
def embeddings():
    vectors = OllamaEmbeddings(base_url=BASE, model=EMBED_MODEL).embed_documents(["a", "b"])
    assert [len(one) for one in vectors] == [384, 384]
    return "384 dimensions"


run()
