"""Tool calls and thinking as those who run a daemon see them: what is counted, and what strict mode lets pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from site_fakes import CONTEXT, Site, run
from tiny_gguf import script_model

MakeSite = Callable[..., Site]
Json = dict[str, Any]
TEMPLATE = (
    "{# <tool_call> </think> #}{% if enable_thinking is defined %}{% endif %}"
    "{% for m in messages %}{{ m['content'] }}{% endfor %}"
)
SCRIPTS: dict[str, list[str | bytes | int]] = {
    "c": ['<tool_call>{"name": "w", "arguments": {}}</tool_call>'],
    "f": ['<tool_call>{"name": "w", "arguments": {} }</tool_call>', "\n\n", "The rest", " of it."],
    "t": ["<think>", " Hm", "</think>", " Yes."],
    "e": ["<think>on", " and"],
    "\n": ["Closed."],  # what follows a span that was closed by force
}
FUNCTION = {"name": "w", "description": "d", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
OPENAI, OLLAMA, ANTHROPIC = "/v1/chat/completions", "/api/chat", "/v1/messages"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    metadata = {"tokenizer.chat_template": TEMPLATE}
    path = tmp_path / "m.gguf"
    script_model(path, SCRIPTS, endless="e", context_length=CONTEXT, metadata=metadata)
    return tmp_path


def body(trigger: str, **fields: Any) -> Json:
    return {"model": "m", "messages": [{"role": "user", "content": trigger}], **fields}


FORCED = {
    OPENAI: {"tools": [TOOL], "tool_choice": "required"},
    ANTHROPIC: {
        "tools": [{"name": "w", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "any"},
        "max_tokens": 50,
    },
}


@pytest.mark.parametrize("path", FORCED)
@pytest.mark.parametrize("stream", [False, True])
def test_text_behind_a_forced_call_ends_the_reply_oc11_an02(
    make_site: MakeSite, folder: Path, path: str, stream: bool
) -> None:
    site = make_site(models_dir=folder, ctx=4096)

    async def work() -> str:
        async with site.client() as client:
            asked = body("f", **FORCED[path], stream=stream, logprobs=path == OPENAI or None)
            return (await client.post(path, json=asked)).text

    answer = run(work())
    assert "rest" not in answer
    assert '"tool_use"' in answer if path == ANTHROPIC else '"finish_reason":"tool_calls"' in answer
    assert len(site.workers[0].cancelled) == 1  # the worker was told at once


def test_calls_and_thoughts_are_counted(make_site: MakeSite, folder: Path) -> None:
    """A thinking budget makes two requests to the worker of one sequence."""
    site = make_site(models_dir=folder, ctx=4096)

    async def work() -> tuple[list[Json], str]:
        async with site.client() as client:
            bodies = [body("c", tools=[TOOL]), body("t"), body("e", thinking_token_budget=3)]
            answers = [(await client.post(OPENAI, json=one)).json() for one in bodies]
            return answers, (await client.get("/metrics")).text

    answers, page = run(work())
    assert len(site.workers[0].requests) == 4
    total = sum(answer["usage"]["completion_tokens"] for answer in answers)
    assert answers[1]["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    assert f'emberd_completion_tokens_total{{model="m:latest"}} {total}.0' in page
    assert 'emberd_sequences_total{end="tool_calls",model="m:latest"} 1.0' in page
    assert 'emberd_sequences_total{end="stop",model="m:latest"} 2.0' in page
    assert 'end="cancelled"' not in page


SERVED = [
    (OPENAI, {"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": False}),
    (OPENAI, {"reasoning_effort": "low", "thinking_token_budget": 9, "think": True}),
    (OPENAI, {"reasoning": {"effort": "low", "exclude": True, "max_tokens": 9}}),
    (OPENAI, {"thinking": {"type": "enabled", "budget_tokens": 9}}),
    (OPENAI, {"chat_template_kwargs": {"enable_thinking": False}}),
    (OLLAMA, {"tools": [TOOL], "think": True}),
    (
        ANTHROPIC,
        {
            "max_tokens": 50,
            "system": "s",
            "tools": [{"name": "w", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            "thinking": {"type": "enabled", "budget_tokens": 9, "display": "omitted"},
            "output_config": {"effort": "low"},
            "stop_sequences": ["x"],
        },
    ),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("path", "fields"), SERVED)
def test_the_strict_serve_tools_and_thinking(
    make_site: MakeSite, folder: Path, path: str, fields: Json, stream: bool
) -> None:
    site = make_site(models_dir=folder, ctx=4096, strict=True)

    async def work() -> None:
        async with site.client() as client:
            response = await client.post(path, json=body("t", stream=stream, **fields))
            assert response.status_code == 200, response.text
            assert "x-emberd-ignored" not in response.headers

    run(work())


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"metadata": {"user_id": "u"}}, "metadata"),
        ({"service_tier": "auto"}, "service_tier"),
        ({"thinking": {"type": "disabled", "depth": 3}}, "thinking.depth"),
    ],
)
def test_fields_that_do_nothing_for_anthropic(
    make_site: MakeSite, folder: Path, fields: Json, name: str
) -> None:
    async def ask(site: Site) -> tuple[int, Any, Any]:
        async with site.client() as client:
            response = await client.post(ANTHROPIC, json=body("t", max_tokens=9, **fields))
            return response.status_code, response.headers.get("x-emberd-ignored"), response.json()

    status, listed, _ = run(ask(make_site(models_dir=folder)))
    assert (status, listed) == (200, name)
    status, _, answer = run(ask(make_site(models_dir=folder, strict=True)))
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert f"'{name}'" in answer["error"]["message"]
