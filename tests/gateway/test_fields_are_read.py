"""Every field that a schema of a generating route takes is read, or listed as ignored: none is dropped silently.

Reads are watched; what stands in the header of ignored fields need not be read. Fields of wire.md that are in no
schema are listed by themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from emberd.gateway.anthropic.schema import MessagesRequest
from emberd.gateway.body import Schema
from emberd.gateway.ollama.schema import ChatRequest, GenerateRequest
from emberd.gateway.openai.constraints import ConstraintFields
from emberd.gateway.openai.responses.schema import ResponsesRequest
from emberd.gateway.openai.schema import ChatCompletionRequest, CompletionRequest
from site_fakes import Site, run

MakeSite = Callable[..., Site]
Json = dict[str, Any]
ONE_OF = dict.fromkeys(
    ConstraintFields.model_fields
)  # two at once are refused: other tests have them
FUNCTION = json.loads('{"name": "f", "description": "d", "parameters": {"type": "object"}}')
SAMPLING = json.loads("""{
    "model": "tiny", "stream": true, "stream_options": {"include_usage": true}, "n": 1, "max_tokens": 5,
    "temperature": 0, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "seed": 1, "stop": ["x"], "ignore_eos": false,
    "presence_penalty": 0.1, "frequency_penalty": 0.1, "repeat_penalty": 1.1, "repetition_penalty": null,
    "repeat_last_n": 5, "keep_alive": 5, "logit_bias": {"1": 1}, "options": {}, "num_ctx": 1024,
    "cache_prompt": true, "cache_salt": "s", "priority": null, "service_tier": "flex", "speculative.n_max": 3,
    "return_progress": true}""")
NATIVE = json.loads("""{
    "model": "tiny", "stream": true, "keep_alive": 5, "format": "", "think": false, "logprobs": true,
    "top_logprobs": 1, "priority": 1, "return_progress": true, "options": {
        "num_ctx": 1024, "num_predict": 5, "seed": 1, "temperature": 0, "top_k": 1, "top_p": 0.5, "min_p": 0.1,
        "repeat_last_n": 1, "repeat_penalty": 1, "presence_penalty": 1, "frequency_penalty": 1, "stop": ["x"]}}""")
CHAT = json.loads("""{
    "tool_choice": "auto", "parallel_tool_calls": false, "logprobs": true, "top_logprobs": 1,
    "modalities": ["text"], "functions": [], "max_completion_tokens": null, "think": false,
    "reasoning_effort": "none", "reasoning": {"effort": "none", "exclude": true}, "thinking": {"type": "disabled"},
    "thinking_token_budget": 1, "prediction": {"type": "content", "content": "b"},
    "chat_template_kwargs": {"a": 1}, "messages": [
        {"role": "assistant", "reasoning_content": "r", "tool_calls": [{"function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "1", "name": "f", "content": "b"}, {"role": "user", "content": "b"}]}""")
COMPLETION = json.loads('{"prompt": "b", "best_of": 1, "echo": false, "logprobs": 1, "suffix": ""}')
RESPONSE = json.loads("""{
    "input": "b", "instructions": "i", "truncation": "disabled", "include": ["x"], "background": false, "n": null,
    "reasoning": {"effort": "none", "summary": "auto"}, "text": {"format": {"type": "text"}}, "store": false,
    "metadata": {"a": "b"}, "max_output_tokens": null, "tool_choice": "auto", "parallel_tool_calls": false,
    "top_logprobs": 1, "previous_response_id": null, "conversation": null, "prompt": null}""")
NATIVE_CHAT = json.loads("""{"truncate": false, "tool_choice": "auto", "parallel_tool_calls": true, "messages": [
        {"role": "assistant", "content": "x", "thinking": "t", "tool_calls": [{"function": {"name": "f"}}]},
        {"role": "tool", "tool_name": "f", "images": [], "content": "b"}, {"role": "user", "content": "b"}]}""")
NATIVE_PROMPT = json.loads("""{
    "prompt": "b", "system": "s", "template": "{{ messages[0].content }}", "raw": false, "context": [300],
    "images": [], "suffix": "", "truncate": true}""")
MESSAGES = json.loads("""{
    "model": "tiny", "max_tokens": 5, "stream": true, "messages": [{"role": "user", "content": "b"}], "system": "s",
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}, "strict": false}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": true}, "temperature": 0, "top_p": 0.5, "top_k": 3,
    "thinking": {"type": "enabled", "budget_tokens": 4, "display": "omitted"}, "stop_sequences": ["x"],
    "output_config": {"effort": "low", "format": {"type": "text"}}, "output_format": null, "priority": 1,
    "keep_alive": 5}""")
TOOLS = [{"type": "function", "function": FUNCTION}]
FLAT_TOOLS = [{"type": "function", **FUNCTION}]
BODIES: dict[str, tuple[type[Schema], Json]] = {
    "/v1/chat/completions": (
        ChatCompletionRequest,
        {**ONE_OF, **SAMPLING, **CHAT, "tools": TOOLS, "response_format": {"type": "text"}},
    ),
    "/v1/completions": (CompletionRequest, {**ONE_OF, **SAMPLING, **COMPLETION}),
    "/v1/responses": (ResponsesRequest, {**SAMPLING, **RESPONSE, "tools": FLAT_TOOLS}),
    "/api/chat": (ChatRequest, {**NATIVE, **NATIVE_CHAT, "tools": TOOLS}),
    "/api/generate": (GenerateRequest, {**NATIVE, **NATIVE_PROMPT}),
    "/v1/messages": (MessagesRequest, MESSAGES),
}
LOOKED_INTO = ("options", "stream_options", "reasoning", "thinking", "text", "output_config")


@pytest.mark.parametrize("path", BODIES)
def test_every_field_is_read_or_listed_oc14_ol07_an02(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    schema, body = BODIES[path]
    names = {info.alias or name for name, info in schema.model_fields.items()}
    assert not names - body.keys(), "a new field belongs into the body above"
    read: set[str] = set()

    def watched(self: Schema, name: str) -> Any:
        if not name.startswith("_") and name in type(self).model_fields:
            read.add(type(self).model_fields[name].alias or name)
        return object.__getattribute__(self, name)

    monkeypatch.setattr(Schema, "__getattribute__", watched, raising=False)
    site = make_site(ctx=4096)

    async def work() -> Any:
        async with site.client() as client:
            return await client.post(path, json=body)

    response = run(work())
    assert response.status_code == 200, response.text
    listed = response.headers.get("x-emberd-ignored", "").split(", ")
    assert sorted(_dropped(body, "", read, listed)) == []


def _dropped(part: Json, place: str, read: set[str], listed: list[str]) -> list[str]:
    """Fields with a value that were neither read nor listed, by path."""
    found = []
    for name, value in part.items():
        if value is None or f"{place}{name}" in listed:
            continue
        if name not in read:
            found.append(f"{place}{name}")
        elif isinstance(value, dict) and not place and name in LOOKED_INTO:
            found += _dropped(value, f"{name}.", read, listed)
    return found
