"""The openai package for Python."""

import json

import openai
from check import EMBED_MODEL, MODEL, PERSON, PERSON_TEXT, TOOLS, V1, WEATHER_QUESTION, run, step
from openai import OpenAI

client = OpenAI(base_url=V1, api_key="none", max_retries=0, timeout=300)


def said(text):
    return [{"role": "user", "content": text}]


@step
def models():
    ids = [model.id for model in client.models.list()]
    assert MODEL in ids, ids
    assert client.models.retrieve(MODEL).id == MODEL
    return ids


@step
def chat():
    reply = client.chat.completions.create(
        model=MODEL, messages=said("Say hi."), max_completion_tokens=4, seed=1
    )
    assert reply.choices[0].message.content, reply
    assert reply.usage.completion_tokens <= 4, reply.usage
    return reply.choices[0].message.content


@step
def stream():
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=said("Count from one to twenty in words."),
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    pieces = [
        c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content
    ]
    assert len(pieces) > 1, pieces
    assert chunks[-1].usage.completion_tokens <= 12 and not chunks[-1].choices, chunks[-1]
    return f"{len(pieces)} pieces"


@step
def tool_loop():
    messages = said(WEATHER_QUESTION)
    request = {"model": MODEL, "tools": TOOLS, "temperature": 0, "max_tokens": 40}
    asked = client.chat.completions.create(messages=messages, **request).choices[0]
    assert asked.finish_reason == "tool_calls", asked
    call = asked.message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "get_weather",
        {"city": "Paris"},
    )
    messages += [asked.message, {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}]
    messages += said("Now answer my question in one sentence.")
    text = client.chat.completions.create(messages=messages, **request).choices[0].message.content
    assert "18" in text, text
    return text


@step
def forced_tool():
    reply = client.chat.completions.create(
        model=MODEL, messages=said("Hello."), tools=TOOLS, tool_choice="required", max_tokens=60
    ).choices[0]
    assert reply.finish_reason == "tool_calls" and reply.message.tool_calls, reply
    call = reply.message.tool_calls[0].function
    assert set(json.loads(call.arguments)) == {"city"}, call
    named = {"type": "function", "function": {"name": "get_time"}}
    with client.chat.completions.stream(
        model=MODEL, messages=said("Hello."), tools=TOOLS, tool_choice=named, max_tokens=60
    ) as opened:
        reply = opened.get_final_completion().choices[0]
    assert reply.message.tool_calls[0].function.name == "get_time", reply
    return f"{call.name}({call.arguments})"


@step
def json_schema():
    schema = {"name": "person", "strict": True, "schema": PERSON}
    reply = client.chat.completions.create(
        model=MODEL,
        messages=said(PERSON_TEXT),
        response_format={"type": "json_schema", "json_schema": schema},
        temperature=0,
        max_tokens=60,
    )
    person = json.loads(reply.choices[0].message.content)
    assert person == {"name": "John", "age": 30}, person
    return person


@step
def json_object():
    reply = client.chat.completions.create(
        model=MODEL,
        messages=said(PERSON_TEXT),
        response_format={"type": "json_object"},
        temperature=0,
        max_tokens=80,
    )
    value = json.loads(reply.choices[0].message.content)
    assert isinstance(value, dict), value
    return value


@step
def logprobs():
    reply = client.chat.completions.create(
        model=MODEL, messages=said("Say hi."), max_tokens=3, logprobs=True, top_logprobs=2
    )
    content = reply.choices[0].logprobs.content
    assert content and all(one.logprob <= 0 and len(one.top_logprobs) == 2 for one in content)
    return [one.token for one in content]


@step
def completion():
    reply = client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=4, temperature=0, stop=["."]
    )
    assert "Paris" in reply.choices[0].text, reply
    return reply.choices[0].text


@step
def fill_in_the_middle():
    reply = client.completions.create(
        model=MODEL,
        prompt="def add(a, b):\n    return ",
        suffix="\n\nprint(add(1, 2))\n",
        max_tokens=8,
        temperature=0,
    )
    assert "a + b" in reply.choices[0].text, reply
    return reply.choices[0].text


@step
def responses():
    reply = client.responses.create(model=MODEL, input="Say hi.", max_output_tokens=16)
    assert reply.output_text, reply
    follow = client.responses.create(
        model=MODEL, input="And again.", previous_response_id=reply.id, max_output_tokens=16
    )
    assert follow.output_text, follow
    kinds = [
        event.type
        for event in client.responses.create(
            model=MODEL, input="Say hi.", max_output_tokens=16, stream=True
        )
    ]
    assert kinds[0] == "response.created", kinds
    assert kinds[-1] in ("response.completed", "response.incomplete"), kinds
    assert "response.output_text.delta" in kinds, kinds
    return reply.output_text


@step
def embeddings():
    reply = client.embeddings.create(model=EMBED_MODEL, input=["a cat", "a kitten", "a tax form"])
    cat, kitten, tax = (one.embedding for one in reply.data)

    def cosine(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True))

    assert abs(cosine(cat, cat) - 1) < 1e-3
    assert cosine(cat, kitten) > cosine(cat, tax)
    return f"{len(cat)} dimensions"


@step
def errors():
    try:
        client.chat.completions.create(model="nobody", messages=said("hi"))
    except openai.NotFoundError as error:
        assert error.code == "model_not_found", error
    else:
        raise AssertionError("an unknown model was served")
    try:
        client.chat.completions.create(model=MODEL, messages=said("word " * 40000))
    except openai.BadRequestError as error:
        assert error.code == "context_length_exceeded" and "16384" in error.message, error
        return error.message
    raise AssertionError("a prompt beyond the context was served")


run()
