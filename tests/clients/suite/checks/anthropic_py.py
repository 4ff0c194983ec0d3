"""The anthropic package for Python."""

import anthropic
from anthropic import Anthropic
from check import BASE, CITY, MODEL, WEATHER_QUESTION, run, step

client = Anthropic(base_url=BASE, api_key="none", max_retries=0, timeout=300)
TOOLS = [
    {"name": "get_weather", "description": "Get the weather of a city.", "input_schema": CITY},
    {"name": "get_time", "description": "Get the local time of a city.", "input_schema": CITY},
]
GREEDY = {"temperature": 0}


def said(text):
    return [{"role": "user", "content": text}]


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


@step
def models():
    ids = [model.id for model in client.models.list()]
    assert MODEL in ids, ids
    return ids


@step
def message():
    reply = client.messages.create(
        model=MODEL,
        max_tokens=8,
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=said("Count from one to twenty."),
        extra_body=GREEDY,
    )
    assert reply.stop_reason == "max_tokens" and text_of(reply), reply
    return text_of(reply)


@step
def stop_sequence():
    reply = client.messages.create(
        model=MODEL,
        max_tokens=40,
        stop_sequences=["4"],
        messages=said("Count: 1 2 3 4 5 6 7. Repeat these digits."),
        extra_body=GREEDY,
    )
    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", "4"), reply
    return text_of(reply)


@step
def stream():
    with client.messages.stream(
        model=MODEL, max_tokens=12, messages=said("Count from one to twenty in words.")
    ) as opened:
        pieces = list(opened.text_stream)
        reply = opened.get_final_message()
    assert len(pieces) > 1 and "".join(pieces) == text_of(reply)
    assert 0 < reply.usage.output_tokens <= 12, reply.usage
    return f"{len(pieces)} pieces"


@step
def tool_loop():
    request = {"model": MODEL, "max_tokens": 40, "tools": TOOLS, "extra_body": GREEDY}
    messages = said(WEATHER_QUESTION)
    asked = client.messages.create(messages=messages, **request)
    assert asked.stop_reason == "tool_use", asked
    call = next(block for block in asked.content if block.type == "tool_use")
    assert (call.name, call.input) == ("get_weather", {"city": "Paris"}), call
    messages += [
        {"role": "assistant", "content": asked.content},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": call.id, "content": "18 degrees"},
                {"type": "text", "text": "Now answer my question in one sentence."},
            ],
        },
    ]
    text = text_of(client.messages.create(messages=messages, **request))
    assert "18" in text, text
    return text


@step
def forced_tool():
    reply = client.messages.create(
        model=MODEL,
        max_tokens=60,
        tools=TOOLS,
        tool_choice={"type": "any"},
        messages=said("Hello."),
    )
    assert reply.stop_reason == "tool_use", reply
    call = next(block for block in reply.content if block.type == "tool_use")
    assert set(call.input) == {"city"}, call
    return f"{call.name}({call.input})"


@step
def count_tokens():
    request = {"model": MODEL, "messages": said("Say hi."), "tools": TOOLS}
    counted = client.messages.count_tokens(**request).input_tokens
    usage = client.messages.create(max_tokens=1, **request).usage
    seen = usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert counted == seen, (counted, usage)
    return counted


@step
def errors():
    try:
        client.messages.create(model="nobody", max_tokens=4, messages=said("hi"))
    except anthropic.NotFoundError as error:
        assert error.body["type"] == "error", error.body
    else:
        raise AssertionError("an unknown model was served")
    try:
        client.messages.create(model=MODEL, max_tokens=4, messages=said("word " * 40000))
    except anthropic.BadRequestError as error:
        told = error.body["error"]["message"]
        assert told.startswith("prompt is too long:"), told
        return told
    raise AssertionError("a prompt beyond the context was served")


run()
