"""The suite of real clients, as far as it is known without installing them: its files, its page, its scripted agent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.suite import agent_model, report, writer_model
from clients.suite.__main__ import CHECKS, STEP, TESTS, calls_of
from clients.suite.clients import CLIENTS
from daemon import Daemon, running_daemon


def test_every_client_has_a_check_and_every_check_a_client() -> None:
    helpers = {"check.py", "check.mjs", "agent.py"}
    checks = {path.name for path in CHECKS.iterdir() if path.suffix in (".py", ".mjs")} - helpers
    assert checks == {client.check for client in CLIENTS}
    assert len({client.name for client in CLIENTS}) == len(CLIENTS)


def test_the_page_shows_the_results() -> None:
    page = report.PAGE.read_text(encoding="utf-8")
    assert report.table(report.read()) in page, "scripts/test-clients writes docs/clients.md"


def test_a_result_that_failed_is_said_so() -> None:
    result = {
        "version": "1",
        "date": "2026-01-02",
        "passed": False,
        "steps": [
            {"name": "chat", "ok": True, "told": "hi"},
            {"name": "stream", "ok": False, "told": "nothing | came"},
        ],
        "calls": {"POST /v1/chat/completions 200": 2, "GET /x 404": 1},
    }
    table = report.table({CLIENTS[0].name: result})
    assert "| **fails** | chat; **stream**: nothing \\| came |" in table
    assert "`POST /v1/chat/completions` ×2, `GET /x 404`" in table
    assert f"0 of {len(CLIENTS)} pass." in table


def test_steps_and_calls_are_read() -> None:
    assert STEP.findall("noise\nok chat: hi\nFAIL a-b: x: y\nnot ok: no\n") == [
        ("ok", "chat", "hi"),
        ("FAIL", "a-b", "x: y"),
    ]
    events = [
        {"message": "request", "method": "GET", "path": "/a", "status": 200},
        {"message": "x"},
    ]
    log = "\n".join(["emberd listens", *map(json.dumps, [*events, events[0]])])
    assert calls_of(log) == {"GET /a 200": 2}


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("agent")
    (folder / "models").mkdir()
    agent_model.write(folder / "models" / "agent.gguf")
    writer_model.write(folder / "models" / "writer.gguf", ffn=512)
    with running_daemon(folder / "models", folder / "daemon", kv_memory="128MiB") as started:
        yield started


@pytest.mark.parametrize("tool", agent_model.SHELLS)
def test_the_scripted_agent_calls_the_shell_that_is_offered(agent: Daemon, tool: str) -> None:
    function = {"name": tool, "parameters": {"type": "object"}}
    messages = [{"role": "user", "content": "Write a file."}]
    request = {"model": "agent", "tools": [{"type": "function", "function": function}]}
    asked = agent.http.post("/v1/chat/completions", json={**request, "messages": messages}).json()
    message = asked["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == tool
    key, rest = agent_model.SHELLS[tool]
    command = agent_model.command_of(tool)
    arguments = {**rest, key: [command] if key == "commands" else command}
    assert json.loads(call["function"]["arguments"]) == arguments
    messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": ""}]
    answer = agent.http.post("/v1/chat/completions", json={**request, "messages": messages}).json()
    assert answer["choices"][0]["message"]["content"] == agent_model.ANSWER


def test_without_tools_the_scripted_agent_makes_a_title(agent: Daemon) -> None:
    body = {"model": "agent", "prompt": "x", "stream": False}
    assert agent.http.post("/api/generate", json=body).json()["response"] == agent_model.PLAIN


@pytest.mark.parametrize(
    ("text", "said", "ends"),
    [
        ("Tell me of the sea.", " word159 end.", "stop"),
        ("x" * 2000, "Some words of a model", "stop"),
        (f"Write {writer_model.LONG[1]} words.", " and on, long0", "length"),
    ],
)
def test_the_scripted_writer_writes_as_much_as_is_asked_for(
    agent: Daemon, text: str, said: str, ends: str
) -> None:
    messages = [{"role": "user", "content": text}]
    body = {"model": "writer", "messages": messages, "max_tokens": 200}
    choice = agent.http.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert said in choice["message"]["content"]
    assert choice["finish_reason"] == ends


def test_the_tests_that_the_page_names_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", report.PAGE.read_text(encoding="utf-8")))
    tests = "\n".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))
    assert named and not [name for name in named if f"def {name}(" not in tests]
