"""LlamaIndex: Ollama, OpenAILike and Ollama's embeddings."""

from check import BASE, EMBED_MODEL, MODEL, V1, WEATHER_QUESTION, run, step
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.ollama import OllamaEmbedding
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike


def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"18 degrees in {city}"


TOOL = FunctionTool.from_defaults(get_weather)
ollama = Ollama(
    model=MODEL,
    base_url=BASE,
    request_timeout=300,
    temperature=0,
    context_window=8192,
    additional_kwargs={"num_predict": 40},
)
openai = OpenAILike(
    model=MODEL,
    api_base=V1,
    api_key="none",
    is_chat_model=True,
    is_function_calling_model=True,
    temperature=0,
    max_tokens=40,
    timeout=300,
)


def chat_with(model):
    reply = model.chat([ChatMessage(role="user", content="Say hi.")])
    assert reply.message.content, reply
    question = [ChatMessage(role="user", content="Count from one to twenty in words.")]
    pieces = [part.delta for part in model.stream_chat(question) if part.delta]
    assert len(pieces) > 1, pieces
    return f"{len(pieces)} pieces"


@step
def ollama_chat():
    return chat_with(ollama)


@step
def openai_chat():
    return chat_with(openai)


@step
def complete():
    text = openai.complete("Say hi.").text
    assert text
    return text


def call_with(model):
    reply = model.chat_with_tools([TOOL], user_msg=WEATHER_QUESTION)
    calls = model.get_tool_calls_from_response(reply)
    assert [(c.tool_name, c.tool_kwargs) for c in calls] == [("get_weather", {"city": "Paris"})]
    return calls[0].tool_kwargs


@step
def ollama_tools():
    return call_with(ollama)


@step
def openai_tools():
    return call_with(openai)


@step
def embeddings():
    vectors = OllamaEmbedding(model_name=EMBED_MODEL, base_url=BASE).get_text_embedding_batch(
        ["a cat", "a tax form"]
    )
    assert [len(one) for one in vectors] == [384, 384]
    return "384 dimensions"


run()
