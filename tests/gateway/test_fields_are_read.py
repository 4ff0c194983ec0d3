"""Every field that a schema of a generating route takes is read, or listed as ignored: none is dropped silently.

Reads are watched; what stands in the header of ignored fields need not be read. The rest of wire.md's fields are
in no schema, and those are listed by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from emberd.gateway.body import Schema
from site_fakes import Site, run

MakeSite = Callable[..., Site]
Json = dict[str, Any]
PARAMETERS: Json = {"type": "object", "properties": {"a": {"type": "string"}}}
FUNCTION: Json = {"name": "f", "description": "d", "parameters": PARAMETERS}
CALL: Json = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
OPTIONS: Json = {
    "num_ctx": 1024,
    "num_predict": 5,
    "seed": 1,
    "temperature": 0,
    "top_k": 1,
    "top_p": 0.5,
}
OPTIONS |= {"min_p": 0.1, "repeat_last_n": 1, "repeat_penalty": 1, "stop": ["x"]}
OPTIONS |= {"presence_penalty": 1, "frequency_penalty": 1}
SAMPLING: Json = {
    **{"model": "tiny", "stream": True, "stream_options": {"include_usage": True}, "n": 1},
    **{"temperature": 0, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "seed": 1, "stop": ["x"]},
    **{"presence_penalty": 0.1, "frequency_penalty": 0.1, "repeat_penalty": 1.1},
    **{"repetition_penalty": None, "repeat_last_n": 5, "ignore_eos": False, "keep_alive": 5},
    **{"logit_bias": {"1": 1}, "options": {}, "num_ctx": 1024, "cache_prompt": True, "cache_salt": "s"},
    **{"response_format": {"type": "text"}, "max_tokens": 5},
}  # fmt: skip
THINKING: Json = {
    **{
        "reasoning_effort": "none",
        "reasoning": {"effort": "none", "exclude": True},
        "think": False,
    },
    **{
        "thinking": {"type": "disabled"},
        "thinking_token_budget": 1,
        "chat_template_kwargs": {"a": 1},
    },
}
LAST: Json = {"role": "user", "content": "b"}
OPENAI_PAST: list[Json] = [
    {"role": "assistant", "content": "x", "reasoning_content": "r", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "name": "f", "content": "b"},
]
OLLAMA_PAST: list[Json] = [
    {"role": "assistant", "content": "x", "thinking": "t", "tool_calls": [CALL]},
    {"role": "tool", "tool_name": "f", "images": [], "content": "b"},
]
NATIVE: Json = {"model": "tiny", "options": OPTIONS, "keep_alive": 5, "format": "", "think": False}
NATIVE |= {"stream": True, "logprobs": True, "top_logprobs": 1}
REPLY: Json = {"tool_choice": "auto", "parallel_tool_calls": False, "top_logprobs": 1}
TOOLS: list[Json] = [{"type": "function", "function": FUNCTION}]
BODIES: dict[str, Json] = {
    "/v1/chat/completions": {
        **{
            **SAMPLING,
            **THINKING,
            **REPLY,
            "tools": TOOLS,
            "logprobs": True,
            "modalities": ["text"],
        },
        **{"messages": [*OPENAI_PAST, LAST], "max_completion_tokens": None, "functions": []},
    },
    "/v1/completions": {
        **{**SAMPLING, "prompt": "b", "best_of": 1, "echo": False, "logprobs": 1, "suffix": ""},
    },
    "/v1/responses": {
        **{**SAMPLING, **REPLY, "input": "b", "instructions": "i", "truncation": "disabled"},
        **{"tools": [{"type": "function", **FUNCTION}], "include": ["x"], "background": False},
        **{
            "reasoning": {"effort": "none", "summary": "auto"},
            "text": {"format": {"type": "text"}},
        },
        **{
            "store": False,
            "metadata": {"a": "b"},
            "max_output_tokens": None,
            "n": None,  # 1 or nothing: there is one answer here
            "response_format": None,
        },
    },
    "/api/chat": {**NATIVE, "messages": [*OLLAMA_PAST, LAST], "tools": TOOLS, "truncate": False},
    "/api/generate": {
        **{
            **NATIVE,
            "prompt": "b",
            "system": "s",
            "template": "{{ messages[0].content }}",
            "raw": False,
        },
        **{"context": [300], "images": [], "suffix": "", "truncate": True},
    },
    "/v1/messages": {
        **{"model": "tiny", "max_tokens": 5, "stream": True, "messages": [LAST], "system": "s"},
        **{
            "tools": [
                {"name": "f", "description": "d", "input_schema": PARAMETERS, "strict": False}
            ]
        },
        **{"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}, "temperature": 0},
        **{"thinking": {"type": "enabled", "budget_tokens": 4, "display": "omitted"}, "top_p": 0.5},
        **{"output_config": {"effort": "low", "format": {"type": "text"}}, "top_k": 3},
        **{"stop_sequences": ["x"], "output_format": None},
    },
}


@pytest.mark.parametrize("path", BODIES)
def test_every_field_is_read_or_listed_oc14_ol07_an02(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    read: set[str] = set()

    def watched(self: Schema, name: str) -> Any:
        if not name.startswith("_") and name in type(self).model_fields:
            read.add(name)
        return object.__getattribute__(self, name)

    monkeypatch.setattr(Schema, "__getattribute__", watched, raising=False)
    site = make_site(ctx=4096)

    async def work() -> Any:
        async with site.client() as client:
            return await client.post(path, json=BODIES[path])

    response = run(work())
    assert response.status_code == 200, response.text
    listed = response.headers.get("x-emberd-ignored", "").split(", ")
    assert sorted(dropped(BODIES[path], "", read, listed)) == []


def dropped(part: Json, place: str, read: set[str], listed: list[str]) -> list[str]:
    found = []
    for name, value in part.items():
        if value is None or f"{place}{name}" in listed:
            continue
        if name not in read:
            found.append(f"{place}{name}")
        elif isinstance(value, dict) and not place and name in WITHIN:
            found += dropped(value, f"{name}.", read, listed)
    return found


WITHIN = (
    "options",
    "stream_options",
    "reasoning",
    "thinking",
    "text",
    "output_config",
    "tool_choice",
)
