"""Models with scripts for the tests of constraints and forced calls, one request to them, and the texts all use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from site_fakes import CONTEXT, SCRIPTS, Site, run
from tiny_gguf import script_model

Json = dict[str, Any]
CHAT, COMPLETION, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
RESPONSES = "/v1/responses"
OLLAMA, GENERATE = "/api/chat", "/api/generate"
TEXTS = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
SCHEMA: Json = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
NESTED: Json = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
FLAT: Json = {"type": "json_schema", "name": "x", "schema": SCHEMA}
NUMBER, OTHER, OBJECT = '{"n": 5}', '{"m": "x"}', "{}"


def write_constrained_models(path: Path) -> None:
    """One for each notation of tool calls, by its name, `plain` without one, `thinks` with thinking."""
    thoughts = {**SCRIPTS, "e": ["<think>on", " and"]}
    for name, scripts, template in (
        ("plain", SCRIPTS, TEXTS),
        ("hermes", SCRIPTS, "{# <tool_call> #}{% if tools %}T{% endif %}" + TEXTS),
        ("pythonic", SCRIPTS, "{# [func_name1( #}{% if tools %}T{% endif %}" + TEXTS),
        ("llama", SCRIPTS, "{# <|python_tag|> #}{% if tools %}T{% endif %}" + TEXTS),
        (
            "single",
            SCRIPTS,
            "{# <|python_tag|> single tool-calls #}{% if tools %}T{% endif %}" + TEXTS,
        ),
        ("xml", SCRIPTS, "{# <function= <parameter= #}{% if tools %}T{% endif %}" + TEXTS),
        ("gemma", SCRIPTS, "{# <|tool_call> #}{% if tools %}T{% endif %}" + TEXTS),
        ("thinks", thoughts, "{# </think> #}" + TEXTS),
    ):
        metadata = {"tokenizer.chat_template": template}
        options: Json = {"context_length": CONTEXT, "metadata": metadata}
        script_model(path / f"{name}.gguf", scripts, endless="e", **options)


class Asked:
    """One request to a daemon of its own."""

    def __init__(self, site: Site, path: str, fields: Json, model: str, last: str) -> None:
        request: Json = {"model": model, "stream": False, **fields}
        if path in (OLLAMA, GENERATE):
            request["options"] = {"num_predict": 3}
        else:
            limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
            request.setdefault(limit, 16 if path == RESPONSES else 3)
        if path in (COMPLETION, GENERATE):
            request["prompt"] = last
        elif path == RESPONSES:
            request["input"] = last
        else:
            request["messages"] = [{"role": "user", "content": last}]

        async def work() -> Any:
            async with site.client() as client:
                return await client.post(path, json=request)

        response = run(work())
        self.status, self.answer = response.status_code, response.json()
        self.headers = response.headers
        self.requests = site.workers[0].requests if site.workers else []

    @property
    def grammar(self) -> str:
        assert self.status == 200, self.answer
        grammar = self.requests[0].params.grammar
        assert grammar is not None
        return grammar

    @property
    def message(self) -> str:
        error = self.answer["error"]
        return str(error if isinstance(error, str) else error["message"])


Ask = Callable[..., Asked]


def function(name: str, **more: Any) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA, **more}}
