"""LiteLLM, through its OpenAI provider and both of its Ollama ones."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is fetched at import

import litellm
from check import BASE, EMBED_MODEL, MODEL, TOOLS, V1, WEATHER_QUESTION, run, step

OPENAI = {"model": f"openai/{MODEL}", "api_base": V1, "api_key": "none", "timeout": 300}
OLLAMA_CHAT = {"model": f"ollama_chat/{MODEL}", "api_base": BASE, "timeout": 300}
OLLAMA = {"model": f"ollama/{MODEL}", "api_base": BASE, "timeout": 300}


def said(text):
    return [{"role": "user", "content": text}]


def chat_through(provider):
    reply = litellm.completion(messages=said("Say hi."), max_tokens=6, **provider)
    assert reply.choices[0].message.content and reply.usage.completion_tokens <= 6, reply
    pieces = [
        chunk.choices[0].delta.content
        for chunk in litellm.completion(
            messages=said("Count from one to twenty in words."),
            max_tokens=10,
            stream=True,
            **provider,
        )
        if chunk.choices and chunk.choices[0].delta.content
    ]
    assert len(pieces) > 1, pieces
    return f"{len(pieces)} pieces"


@step
def openai_chat():
    return chat_through(OPENAI)


@step
def ollama_chat():
    return chat_through(OLLAMA_CHAT)


@step
def ollama_generate():
    return chat_through(OLLAMA)


def call_through(provider):
    reply = litellm.completion(
        messages=said(WEATHER_QUESTION), tools=TOOLS, temperature=0, max_tokens=40, **provider
    )
    call = reply.choices[0].message.tool_calls[0].function
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"}), call
    return f"{call.name}({call.arguments})"


@step
def openai_tools():
    return call_through(OPENAI)


@step
def ollama_tools():
    return call_through(OLLAMA_CHAT)


@step
def embedding():
    reply = litellm.embedding(
        model=f"openai/{EMBED_MODEL}", input=["a cat"], api_base=V1, api_key="none"
    )
    assert len(reply.data[0]["embedding"]) == 384
    reply = litellm.embedding(model=f"ollama/{EMBED_MODEL}", input=["a cat"], api_base=BASE)
    assert len(reply.data[0]["embedding"]) == 384
    return "384 dimensions, both ways"


@step
def overflow_is_known():
    try:
        litellm.completion(messages=said("word " * 40000), max_tokens=4, num_retries=0, **OPENAI)
    except litellm.ContextWindowExceededError as error:
        return str(error)
    raise AssertionError("not known as an overflow of the context")


run()
