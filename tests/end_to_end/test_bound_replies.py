"""K08 and K09 of bug_kinds.md, and random schemas: bound replies of real daemons (OC-10, OC-11, OL-09, AN-02)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import numpy as np
import pytest

from daemon import Daemon, running_daemon
from dialects import CHAT, OLLAMA_CHAT, OLLAMA_GENERATE, ask, events, lines
from random_schemas import RandomSchemas
from tiny_gguf import SURE, byte_vocab, chain_model, random_model

Json = dict[str, Any]
MESSAGES = "/v1/messages"
NUM_SEEDS = 50
AT_ONCE = 8
SCHEMA: Json = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
TOOLS_KNOWN = "{# <tool_call> #}{% if tools %}T{% endif %}"  # not what they are: prompts stay short
THINKS = "{# </think> #}" + TOOLS_KNOWN + TEMPLATE


def write_newlines(path: Path) -> Path:
    """Prefers line breaks wherever it is, then what ends an object {"a": 1}."""
    liked = {0x0A: SURE, ord('"'): 10.0, ord("}"): 5.0}
    rows: dict[int, dict[int, float]] = {last: dict(liked) for last in range(256)}
    rows[ord('"')] |= {ord("a"): 15.0, ord(":"): 12.0}
    rows[ord("a")] = {ord('"'): SURE}
    rows[0x0A] |= {ord(":"): 8.0, ord("1"): 7.0}
    return chain_model(path, rows)


@pytest.fixture(scope="module")
def bound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Models: `newlines`; `random`, and `thinks`, `hermes` and `lacks` (a token for "{"), which are random too."""
    folder = tmp_path_factory.mktemp("bound")
    write_newlines(folder / "newlines.gguf")
    random_model(folder / "random.gguf")
    tags = byte_vocab(control=["<think>", "</think>"])
    metadata = {"tokenizer.chat_template": THINKS}
    random_model(folder / "thinks.gguf", vocab=tags, metadata=metadata)
    metadata = {"tokenizer.chat_template": TOOLS_KNOWN + TEMPLATE}
    random_model(folder / "hermes.gguf", metadata=metadata)
    without = byte_vocab()
    without.tokens[ord("{")] = "no-brace"
    random_model(folder / "lacks.gguf", vocab=without)
    with running_daemon(folder, tmp_path_factory.mktemp("daemon"), kv_memory="64MiB") as started:
        yield started


def asked(model: str, seed: int, **fields: Any) -> Json:
    messages = [{"role": "user", "content": f"go {seed}"}]
    common = {"model": model, "messages": messages, "temperature": 1, "seed": seed}
    return {**common, "max_tokens": 150, **fields}


def json_schema(schema: Json) -> Json:
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    }


async def all_replies(daemon: Daemon, path: str, bodies: list[Json]) -> list[httpx.Response]:
    places = asyncio.Semaphore(AT_ONCE)

    async def one(http: httpx.AsyncClient, body: Json) -> httpx.Response:
        async with places:
            return await http.post(path, json=body)

    async with daemon.async_http() as http:
        return await asyncio.gather(*(one(http, body) for body in bodies))


def replies(daemon: Daemon, path: str, bodies: list[Json]) -> list[httpx.Response]:
    found = asyncio.run(all_replies(daemon, path, bodies))
    assert {reply.status_code for reply in found} == {200}, [r.text for r in found][:1]
    return found


@pytest.mark.slow
def test_a_schema_holds_for_all_seeds_k08(bound: Daemon) -> None:
    bodies = [asked("random", seed, **json_schema(SCHEMA)) for seed in range(NUM_SEEDS)]
    num_ended = 0
    for reply in replies(bound, CHAT, bodies):
        (choice,) = reply.json()["choices"]
        if choice["finish_reason"] == "stop":
            num_ended += 1
            jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
    assert num_ended > NUM_SEEDS / 2


@pytest.mark.slow
def test_a_native_format_holds_for_all_seeds_k08_ol09(bound: Daemon) -> None:
    options = {"temperature": 1, "top_k": 0, "top_p": 1, "num_predict": 300}
    bodies = [
        {
            "model": "random",
            "messages": [{"role": "user", "content": "go"}],
            "format": SCHEMA,
            "stream": False,
            "options": {**options, "seed": seed},
        }
        for seed in range(NUM_SEEDS)
    ]
    num_ended = 0
    for reply in replies(bound, OLLAMA_CHAT, bodies):
        if reply.json()["done_reason"] == "stop":
            num_ended += 1
            jsonschema.validate(json.loads(reply.json()["message"]["content"]), SCHEMA)
    assert num_ended > NUM_SEEDS / 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", [CHAT, OLLAMA_CHAT, OLLAMA_GENERATE])
def test_json_mode_ends_k09(bound: Daemon, route: str, stream: bool) -> None:
    """With the closing brace, and blanks within are few; `length` where the limit comes first."""
    mode: Json = {"response_format": {"type": "json_object"}}
    for limit, reason in ((60, "stop"), (3, "length")):
        if route == CHAT:
            reply = ask(bound.http, route, "newlines", "x", stream=stream, max_tokens=limit, **mode)
        else:
            body = {"model": "newlines", "stream": stream, "format": "json"}
            body["options"] = {"temperature": 0, "num_predict": limit}
            body |= (
                {"prompt": "x"}
                if route == OLLAMA_GENERATE
                else {"messages": [{"role": "user", "content": "x"}]}
            )
            response = bound.http.post(route, json=body)
            found = lines(response) if stream else [response.json()]
            texts = [
                one.get("response") or one.get("message", {}).get("content", "") for one in found
            ]
            assert found[-1]["done_reason"] == reason
            text = "".join(texts)
        if route == CHAT:
            assert reply.reason == reason
            text = reply.text
        assert re.search(r"\s{3,}", text) is None
        if reason == "stop":
            assert isinstance(json.loads(text), dict)
            assert text.endswith("}")


TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("f", "g")
]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["hermes", "random"])
@pytest.mark.parametrize("stream", [False, True])
def test_calls_can_be_forced_oc11(bound: Daemon, model: str, stream: bool) -> None:
    """Whatever the model would rather write, and whether its template knows tools or not."""
    body = asked(
        model, 1, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, stream=stream
    )
    bodies = [body | {"seed": seed} for seed in range(6)]
    num_ended = 0
    for reply in replies(bound, CHAT, bodies):
        reason, calls, text = _calls(reply, stream=stream)
        assert not text
        if reason == "tool_calls":
            num_ended += 1
            ((name, arguments),) = calls
            assert name in ("f", "g")
            jsonschema.validate(json.loads(arguments), SCHEMA)
    assert num_ended > 0


@pytest.mark.slow
def test_calls_can_be_forced_by_name_an02(bound: Daemon) -> None:
    tools = [{"name": name, "input_schema": SCHEMA} for name in ("f", "g")]
    choice = {"type": "tool", "name": "g"}
    body = asked("hermes", 1, tools=tools, tool_choice=choice)
    found = [
        r.json()
        for r in replies(bound, MESSAGES, [body | {"max_tokens": n} for n in range(250, 256)])
    ]
    ended = [one for one in found if one["stop_reason"] == "tool_use"]
    assert ended
    for one in ended:
        (block,) = one["content"]
        assert (block["type"], block["name"]) == ("tool_use", "g")
        jsonschema.validate(block["input"], SCHEMA)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["random", "thinks"])
def test_random_schemas_hold_done4(bound: Daemon, model: str, stream: bool) -> None:
    """Fresh ones each run. `thinks` has a budget, or it would hardly ever answer."""
    first = int(np.random.default_rng().integers(1 << 30))
    schemas = [RandomSchemas(first + i, short=True).schema(1) for i in range(8)]
    more = {"thinking_token_budget": 20, "think": True} if model == "thinks" else {}
    bodies = [
        asked(model, seed, **json_schema(schema), **more, stream=stream)
        for schema in schemas
        for seed in range(2)
    ]
    num_ended = 0
    for body, reply in zip(bodies, replies(bound, CHAT, bodies), strict=True):
        reason, _, text = _calls(reply, stream=stream)
        schema = body["response_format"]["json_schema"]["schema"]
        if reason == "stop":
            num_ended += 1
            jsonschema.validate(json.loads(text), schema), f"random schemas from {first}"
    assert num_ended > 0


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["hermes", "thinks"])
def test_random_schemas_hold_through_tools_done4(bound: Daemon, model: str, stream: bool) -> None:
    first = int(np.random.default_rng().integers(1 << 30))
    schemas = [RandomSchemas(first + i, short=True).schema(1) for i in range(8)]
    more = {"thinking_token_budget": 20} if model == "thinks" else {}
    bodies = [
        asked(
            model,
            seed,
            tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}],
            tool_choice="required",
            parallel_tool_calls=bool(seed),
            stream=stream,
            max_tokens=250,
            **more,
        )
        for schema in schemas
        for seed in range(2)
    ]
    num_ended = 0
    for body, reply in zip(bodies, replies(bound, CHAT, bodies), strict=True):
        reason, calls, _ = _calls(reply, stream=stream)
        if reason == "tool_calls":
            num_ended += 1
            for _, arguments in calls:
                schema = body["tools"][0]["function"]["parameters"]
                jsonschema.validate(json.loads(arguments), schema), f"random schemas from {first}"
    assert num_ended > 0


def _calls(reply: httpx.Response, *, stream: bool) -> tuple[str, list[tuple[str, str]], str]:
    """Why it ended, names and arguments of its calls, its text."""
    if not stream:
        (choice,) = reply.json()["choices"]
        message = choice["message"]
        made = [one["function"] for one in message.get("tool_calls") or ()]
        text = message["content"] or ""
        return choice["finish_reason"], [(one["name"], one["arguments"]) for one in made], text
    reason, text, calls = "", "", dict[int, list[str]]()
    for value in events(reply):
        for choice in value["choices"]:
            reason = choice["finish_reason"] or reason
            text += choice["delta"].get("content") or ""
            for part in choice["delta"].get("tool_calls") or ():
                call = calls.setdefault(part["index"], ["", ""])
                call[0] += part["function"].get("name", "")
                call[1] += part["function"].get("arguments", "")
    return reason, [(name, arguments) for name, arguments in calls.values()], text


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, json_schema(SCHEMA), "response_format.json_schema.schema"),
        (CHAT, {"guided_regex": "ab\\{"}, "guided_regex"),  # two tokens come before
        (OLLAMA_CHAT, {"format": SCHEMA}, "format"),
        (
            MESSAGES,
            {"output_format": {"type": "json_schema", "schema": SCHEMA}},
            "output_format.schema",
        ),
    ],
)
def test_a_grammar_for_which_the_model_has_no_token_is_the_callers_to_change(
    bound: Daemon, path: str, fields: Json, param: str
) -> None:
    said = f"'{param}' cannot be enforced: no token of this model fits"
    body = asked("lacks", 1, **fields) | {"stream": False}
    reply = bound.http.post(path, json=body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert said in (error if path == OLLAMA_CHAT else error["message"])
    if path == CHAT:
        assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert said in bound.http.post(path, json=body | {"stream": True}).text
    assert bound.http.post(path, json=asked("lacks", 2)).status_code == 200
