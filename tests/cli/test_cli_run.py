"""Command run: one answer, a chat, and what a terminal gets of them."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from cli_harness import Emberd, ScriptedDaemon, assert_one_clear_line

from emberd.models.facts import content_digest
from tiny_gguf import chain_model

CHAT_LINES = [
    {"message": {"role": "assistant", "content": "Par"}, "done": False},
    {"message": {"role": "assistant", "content": "is"}, "done": False},
    {
        "message": {"role": "assistant", "content": ""},
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": 10,
        "prompt_eval_duration": 100_000_000,
        "eval_count": 4,
        "eval_duration": 200_000_000,
    },
]


def test_run_streams_one_answer_from_the_running_daemon(
    emberd_cli: Emberd, scripted_daemon: ScriptedDaemon
) -> None:
    scripted_daemon.posts["/api/chat"] = (200, CHAT_LINES)
    arguments = ("run", "tiny", "Capital?", "--system", "Be brief.", "--temperature", "0")
    result = emberd_cli(*arguments, "--max-tokens", "9", "--seed", "3", "--verbose")
    assert result.out == "Paris\n"
    assert "4 completion tokens, decode 20.0 tok/s, stop" in result.err.replace("\n", " ")
    path, body = scripted_daemon.asked[0]
    assert path == "/api/chat" and body["stream"] is True
    assert body["options"] == {"temperature": 0, "seed": 3, "num_predict": 9}
    assert [message["role"] for message in body["messages"]] == ["system", "user"]


def test_run_asks_the_running_daemon_for_a_file_that_it_has(
    emberd_cli: Emberd, scripted_daemon: ScriptedDaemon, tmp_path: Path
) -> None:
    path = chain_model(tmp_path / "tiny.gguf", {})
    tag = {"name": "tiny:latest", "digest": content_digest(path)}
    scripted_daemon.gets["/api/tags"] = {"models": [tag]}
    scripted_daemon.posts["/api/chat"] = (200, CHAT_LINES)
    assert emberd_cli("run", str(path), "Capital?").out == "Paris\n"
    assert scripted_daemon.asked[0][1]["model"] == "tiny:latest"


def test_run_reads_standard_input_and_prints_json(
    emberd_cli: Emberd, scripted_daemon: ScriptedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted_daemon.posts["/api/chat"] = (200, CHAT_LINES)
    monkeypatch.setattr(sys, "stdin", io.StringIO("Capital?\n"))
    answer = emberd_cli("run", "tiny", "--json").json
    assert answer["text"] == "Paris" and answer["decode_tok_s"] == 20.0
    assert scripted_daemon.asked[0][1]["messages"][0]["content"] == "Capital?"


def test_run_takes_bytes_that_are_no_text(
    emberd_cli: Emberd, scripted_daemon: ScriptedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted_daemon.posts["/api/chat"] = (200, [{"message": {"content": "x"}, "done": True}])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xffb"), "utf-8"))
    assert emberd_cli("run", "tiny").out == "x\n"
    assert emberd_cli("run", "tiny", "a\udcffb").out == "x\n"  # as Python has it of an argument
    asked = [body["messages"][0]["content"] for _, body in scripted_daemon.asked]
    assert asked == ["a\ufffdb", "a\udcffb"]


@pytest.mark.parametrize("temperature", ["nan", "inf", "-inf"])
def test_run_refuses_a_temperature_that_is_none(emberd_cli: Emberd, temperature: str) -> None:
    result = emberd_cli("run", "tiny", "hi", "--temperature", temperature)
    assert_one_clear_line(result, "--temperature", temperature)


def test_run_raw_uses_no_template(emberd_cli: Emberd, scripted_daemon: ScriptedDaemon) -> None:
    scripted_daemon.posts["/api/generate"] = (200, [{"response": "x", "done": True}])
    assert emberd_cli("run", "tiny", "ab", "--raw").out == "x\n"
    assert scripted_daemon.asked[0][1]["raw"] is True


def test_run_tells_the_daemons_error(emberd_cli: Emberd, scripted_daemon: ScriptedDaemon) -> None:
    scripted_daemon.posts["/api/chat"] = (404, [{"error": "model 'x' not found"}])
    assert_one_clear_line(emberd_cli("run", "x", "hi"), "model 'x' not found")
    scripted_daemon.posts["/api/chat"] = (200, [CHAT_LINES[0], {"error": "the worker died"}])
    result = emberd_cli("run", "tiny", "hi")
    assert (result.code, result.out) == (1, "Par")
    assert result.err.strip() == "error: the worker died"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_chat_keeps_what_was_said(
    emberd_cli: Emberd, scripted_daemon: ScriptedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = 'Hello\n"""two\nlines"""\n/clear\n/?\n/set verbose\n/exit\n"""/exit"""\n/a/path\n/bye\n'
    scripted_daemon.posts["/api/chat"] = (200, CHAT_LINES)
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    result = emberd_cli("run", "tiny")
    assert result.code == 0
    assert "/set is no command" in result.out and "/exit is no command" in result.out
    said = [
        [message["content"] for message in body["messages"]] for _, body in scripted_daemon.asked
    ]
    assert said == [
        ["Hello"],
        ["Hello", "Paris", "two\nlines"],
        ["/exit"],
        ["/exit", "Paris", "/a/path"],
    ]


def test_a_reply_does_nothing_to_a_terminal(
    emberd_cli: Emberd, scripted_daemon: ScriptedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = "a\x1b]52;c;eA==\x07\tb\n\x0e\x9b31m\U0001f468\u200d\U0001f469"
    scripted_daemon.posts["/api/chat"] = (200, [{"message": {"content": reply}, "done": True}])
    assert emberd_cli("run", "tiny", "hi").out == f"{reply}\n"
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True)
    shown = "a\ufffd]52;c;eA==\ufffd\tb\n\ufffd\ufffd31m\U0001f468\u200d\U0001f469\n"
    assert emberd_cli("run", "tiny", "hi").out == shown
