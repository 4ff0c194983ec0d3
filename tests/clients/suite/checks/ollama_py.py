"""The ollama package for Python."""

import json

import ollama
from check import BASE, EMBED_MODEL, MODEL, PERSON, PERSON_TEXT, TOOLS, WEATHER_QUESTION, run, step

client = ollama.Client(host=BASE, timeout=300)
GREEDY = {"temperature": 0, "num_predict": 40}


def said(text):
    return [{"role": "user", "content": text}]


@step
def listing():
    models = client.list().models
    model = next(one for one in models if one.model.split(":")[0] == MODEL)
    assert model.size > 0 and model.digest and model.modified_at and model.details.family
    return [one.model for one in models]


@step
def show():
    shown = client.show(MODEL)
    architecture = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{architecture}.context_length"] > 0
    assert {"completion", "tools"} <= set(shown.capabilities), shown.capabilities
    return shown.capabilities


@step
def load_and_ps():
    loaded = client.generate(MODEL, "", keep_alive=-1)
    assert loaded.done_reason == "load", loaded
    running = [one.model.split(":")[0] for one in client.ps().models]
    assert MODEL in running, running
    return running


@step
def chat_stream():
    parts = list(
        client.chat(
            MODEL,
            said("Count from one to twenty in words."),
            stream=True,
            options={**GREEDY, "num_predict": 6},
        )
    )
    pieces = [part.message.content for part in parts if part.message.content]
    last = parts[-1]
    assert len(pieces) > 1 and last.done and last.done_reason == "length", last
    assert last.eval_count == 6 and last.prompt_eval_count > 0 and last.total_duration > 0
    return f"{len(pieces)} pieces"


@step
def generate():
    reply = client.generate(
        MODEL, "The capital of France is", raw=True, options={"temperature": 0, "num_predict": 4}
    )
    assert "Paris" in reply.response, reply
    return reply.response


@step
def fill_in_the_middle():
    reply = client.generate(
        MODEL,
        "def add(a, b):\n    return ",
        suffix="\n\nprint(add(1, 2))\n",
        options={"temperature": 0, "num_predict": 8},
    )
    assert "a + b" in reply.response, reply
    return reply.response


@step
def tool_loop():
    messages = said(WEATHER_QUESTION)
    asked = client.chat(MODEL, messages, tools=TOOLS, options=GREEDY).message
    call = asked.tool_calls[0].function
    assert (call.name, dict(call.arguments)) == ("get_weather", {"city": "Paris"}), asked
    messages += [asked, {"role": "tool", "tool_name": call.name, "content": "18 degrees"}]
    messages += said("Now answer my question in one sentence.")
    text = client.chat(MODEL, messages, tools=TOOLS, options=GREEDY).message.content
    assert "18" in text, text
    return text


@step
def schema_format():
    reply = client.chat(MODEL, said(PERSON_TEXT), format=PERSON, options=GREEDY)
    person = json.loads(reply.message.content)
    assert person == {"name": "John", "age": 30}, person
    return person


@step
def json_format():
    options = {"temperature": 0, "num_predict": 80}
    reply = client.generate(MODEL, PERSON_TEXT, format="json", options=options)
    assert isinstance(json.loads(reply.response), dict), reply.response
    return reply.response


@step
def embed():
    reply = client.embed(EMBED_MODEL, ["a cat", "a tax form"])
    assert [len(one) for one in reply.embeddings] == [384, 384]
    assert len(client.embeddings(EMBED_MODEL, "a cat").embedding) == 384
    return "384 dimensions"


@step
def errors():
    try:
        client.chat("nobody", said("hi"))
    except ollama.ResponseError as error:
        assert error.status_code == 404 and "not found" in error.error, error
        return error.error
    raise AssertionError("an unknown model was served")


run()
