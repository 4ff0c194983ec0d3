"""Models that write calls and thoughts by script, and requests to them, for the tests of a reply's parts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from site_fakes import CONTEXT, FakeWorker, Site, run
from tiny_gguf import script_model

Json = dict[str, Any]
CHAT, OLLAMA = "/v1/chat/completions", "/api/chat"
MESSAGES = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
HERMES = "{# <tool_call> #}{% if tools %}T{% endif %}" + MESSAGES
THINKING = (
    "{# </think> #}{% if enable_thinking is defined and not enable_thinking %}-{% endif %}"
    "{% if reasoning_effort is defined %}{{ reasoning_effort }}{% endif %}"
    "{# 'low' 'high' #}" + MESSAGES + "{% if prefill %}<think>{{ prefill }}{% endif %}"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "w",
        "description": "d",
        "parameters": {"type": "object", "properties": {"p": {"type": "string"}}},
    },
}
CALL_SCRIPTS = {
    "c": [
        "Sure.",
        " <tool",
        "_call>",
        '{"name": "w", "arg',
        'uments": {"p"',
        ': "a"}}',
        "\n</tool_",
        'call>\n<tool_call>{"name": "w", "arguments":',
        ' {"p": "',
        'b"}}</tool_call>',
    ],
    "p": ["A <tool", "_box> is", " no <tool_call> at", " all."],
}
THOUGHT_SCRIPTS = {
    "t": ["<thi", "nk>", "\nHm", ", well", ".\n", "</think>", "\n\n", "Yes."],
    "i": [" inside", "</think> out"],
    "n": ["Plain <think>", " text"],
    "e": ["<think>on", " and"],
    "\n": ["Closed."],  # what follows a span that was closed by force
}


def write_part_models(path: Path) -> None:
    """`calls` and `generic` with and without a notation of tool calls, `thinks` with thinking."""
    for name, scripts, template in (
        ("calls", CALL_SCRIPTS, HERMES),
        ("generic", CALL_SCRIPTS, MESSAGES),
        ("thinks", THOUGHT_SCRIPTS, THINKING),
    ):
        script_model(
            path / f"{name}.gguf",
            scripts,
            endless="e",
            context_length=CONTEXT,
            metadata={"tokenizer.chat_template": template},
        )


class Sites:
    """A daemon for each call of `post`; `worker` is that of the latest one."""

    def __init__(self, make: Callable[[], Site]) -> None:
        self._make = make
        self.worker = FakeWorker.__new__(FakeWorker)

    def post(self, path: str, *bodies: Json) -> list[httpx.Response]:
        site = self._make()

        async def work() -> list[httpx.Response]:
            async with site.client() as client:
                return [await client.post(path, json=one) for one in bodies]

        answers = run(work())
        if site.workers:
            self.worker = site.workers[0]
        return answers

    @property
    def prompt(self) -> str:
        """The first one that the worker was given."""
        return bytes(self.worker.requests[0].token_ids).decode()


def body(model: str, trigger: str, **fields: Any) -> Json:
    return {"model": model, "messages": [{"role": "user", "content": trigger}], **fields}


def whole(site: Sites, model: str, trigger: str, **fields: Any) -> Json:
    (answer,) = site.post(CHAT, body(model, trigger, **fields))
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(site: Sites, model: str, trigger: str, **fields: Any) -> list[Json]:
    (answer,) = site.post(CHAT, body(model, trigger, stream=True, **fields))
    frames = answer.text.removesuffix("\n\n").split("\n\n")
    assert frames[-1] == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-1]]


def ollama(site: Sites, model: str, trigger: str, **fields: Any) -> Json:
    (answer,) = site.post(OLLAMA, body(model, trigger, stream=False, **fields))
    assert answer.status_code == 200, answer.text
    return answer.json()


def ollama_lines(site: Sites, model: str, trigger: str, **fields: Any) -> list[Json]:
    (answer,) = site.post(OLLAMA, body(model, trigger, **fields))
    return [json.loads(line) for line in answer.text.splitlines()]


def joined(chunks: list[Json]) -> Any:
    """As the openai package puts chunks together."""
    state = ChatCompletionStreamState()
    for chunk in chunks:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    return state.get_final_completion()
