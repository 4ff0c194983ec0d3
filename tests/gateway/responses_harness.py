"""Requests to /v1/responses, and its streams read strictly."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx

from site_fakes import CONTEXT, Site, run
from tiny_gguf import script_model

Json = dict[str, Any]
RESPONSES = "/v1/responses"
MESSAGES = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
CALLS = (
    "{% for t in tools or () %}{{ t['function']['name'] }},{% endfor %}{# <tool_call> #}" + MESSAGES
)
THINKS = (
    "{# </think> #}{% if enable_thinking is defined and not enable_thinking %}-{% endif %}"
    "{% for m in messages %}{{ m['reasoning_content'] or '' }}{{ m['content'] }}{% endfor %}"
)
SCRIPTS: dict[str, Any] = {
    "c": [
        "Sure.",
        " <tool",
        '_call>{"name": "w", "arg',
        'uments": {"p"',
        ': "a"}}</tool_call>\n<tool_call>',
        '{"name": "w", "arguments": {"p": "b"}}</tool_call>',
    ],
    "f": ['<tool_call>{"name": "patch", "arguments": {"in', 'put": "+ \\"x\\"\\n"}}</tool_call>'],
    "p": ["A <tool", "_box> is", " no <tool_call> at", " all."],
    "t": ["<thi", "nk>", "\nHm", ", well", ".\n", "</think>", "\n\n", "Yes."],
    "q": ["<think>\n\n", "</think>\n\n", "No."],
    "e": ["<think>on", " and"],
    "\n": ["Closed."],
}
W = {
    "type": "function",
    "name": "w",
    "description": "d",
    "parameters": {"type": "object", "properties": {"p": {"type": "string"}}},
}
PATCH = {"type": "custom", "name": "patch", "description": "edits"}


def write_models(folder: Path) -> Path:
    """`tiny` calls tools, `thinks` thinks, both by SCRIPTS."""
    for name, template in (("tiny", CALLS), ("thinks", THINKS)):
        metadata = {"tokenizer.chat_template": template}
        script_model(
            folder / f"{name}.gguf",
            SCRIPTS,
            endless="e",
            context_length=CONTEXT,
            metadata=metadata,
        )
    return folder


def post(site: Site, path: str, *bodies: Json) -> list[httpx.Response]:
    """The answers to bodies, of which all name the model `tiny` unless they say otherwise."""

    async def work() -> list[httpx.Response]:
        async with site.client() as client:
            return [await client.post(path, json={"model": "tiny", **body}) for body in bodies]

    return run(work())


def ask(site: Site, **fields: Any) -> Json:
    (response,) = post(site, RESPONSES, fields)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def stream(site: Site, **fields: Any) -> httpx.Response:
    async def work() -> httpx.Response:
        async with site.http() as client:
            return await client.post(RESPONSES, json={"model": "tiny", **fields, "stream": True})

    return run(work())


def events(text: str) -> list[Json]:
    """The data of each event, whose name must be its type and whose number its place."""
    assert text.endswith("\n\n")
    found = []
    for place, part in enumerate(text[:-2].split("\n\n")):
        match = re.fullmatch(r"event: ([\w.]+)\ndata: (\{[^\n]+\})", part)
        assert match, part
        found.append(json.loads(match[2]))
        assert found[-1]["type"] == match[1] and found[-1]["sequence_number"] == place
    return found
