"""Commands about requests: cancel, batch."""

from __future__ import annotations

import pytest
from cli_harness import Emberd, ScriptedDaemon


def test_cancel_asks_the_daemon(emberd_cli: Emberd, scripted_daemon: ScriptedDaemon) -> None:
    scripted_daemon.deletes["/api/requests/req_1f"] = (200, [{"id": "req_1f", "cancelled": True}])
    done = emberd_cli("cancel", "req_1f")
    assert (done.code, done.out) == (0, "req_1f is cancelled\n")
    missing = emberd_cli("cancel", "a b?")
    assert (missing.code, missing.err) == (1, "error: not here\n")
    assert [path for path, _ in scripted_daemon.asked] == [
        "/api/requests/req_1f",
        "/api/requests/a%20b%3F",
    ]


@pytest.mark.parametrize("command", ["cancel", "explain"])
@pytest.mark.parametrize("id", ["", " ", "a/b", "../batch/status"])
def test_what_is_no_id_is_refused(
    command: str, id: str, emberd_cli: Emberd, scripted_daemon: ScriptedDaemon
) -> None:
    scripted_daemon.gets["/api/requests/"] = {"requests": []}
    refused = emberd_cli(command, id)
    assert (refused.code, scripted_daemon.asked) == (1, [])
    assert f"'{id}' is not a request's id" in refused.err


def test_batch_shows_sequences_blocks_and_steps(
    emberd_cli: Emberd, scripted_daemon: ScriptedDaemon
) -> None:
    sequence = {
        "id": "req_1f", "sequence": "0", "state": "prefill", "position": None, "priority": "batch",
        "num_prompt_tokens": 40, "num_computed_tokens": 24, "num_cached_tokens": 16,
        "num_completion_tokens": 0, "num_blocks": 3, "num_preemptions": 2,
        "num_drafted_tokens": 9, "num_accepted_tokens": 7,
    }  # fmt: skip
    model = {
        "model": "tiny:latest",
        "max_sequences": 8,
        "running": [sequence],
        "waiting": [
            sequence | {"id": "req_2e", "sequence": "1", "state": "waiting", "position": 4}
        ],
        "blocks": {"tokens": 16, "total": 20, "held": 3, "shared": 1, "idle": 7, "free": 10},
        "draft_blocks": {"total": 21, "held": 5, "shared": 0, "idle": 4, "free": 12},
        "prefixes": {"blocks": 8, "beginnings": 1, "ends": 2, "deepest": 5},
        "steps": {"both": {"p50_ms": 1.5, "p95_ms": 2.25, "count": 9}},
    }
    scripted_daemon.gets["/api/batch/status"] = {"models": [model]}
    shown = emberd_cli("batch", "--once")
    assert shown.code == 0, shown.err
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert lines[0] == "tiny:latest 1 of 8 run, 1 wait"
    assert "3 held (1 shared), 7 idle, 10 free of 20" in lines[1]
    assert lines[2] == "blocks of the draft model: 5 held, 4 idle, 12 free of 21"
    assert lines[3] == "steps of both: p50 1.5 ms, p95 2.2 ms (last 9)"
    assert lines[5] == "req_1f prefill batch 24/40 16 0 7/9 3 2"
    assert lines[6].startswith("req_2e #1 waits, 4 before batch")
    assert emberd_cli("batch", "--json").json == [model]
    scripted_daemon.gets["/api/batch/status"] = {"models": []}
    assert emberd_cli("batch").out == "no model is loaded\n"


def test_explain_tells_where_a_prompt_parts(
    emberd_cli: Emberd, scripted_daemon: ScriptedDaemon
) -> None:
    prompt = {
        "sequence": 0, "prompt_tokens": 6100, "cached_tokens": 4096, "gone_tokens": 0,
        "outcome": "parted", "nearest": {"request": "req_2e", "tokens": 4101},
        "difference": {
            "position": 4101, "before": "it's 12:0", "token": {"id": 20, "text": "5"},
            "after": " on\x1b[31m Monday", "nearest_token": {"id": 19, "text": "4"},
            "nearest_after": None,
        },
    }  # fmt: skip
    told = {
        "id": "req_1f", "path": "/api/chat", "model": "tiny:latest", "state": "ended",
        "ends": ["stop"], "prompts": [prompt],
    }  # fmt: skip
    scripted_daemon.gets["/api/requests/chatcmpl-1f"] = told
    shown = emberd_cli("explain", "chatcmpl-1f")
    assert shown.code == 0, shown.err
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert lines == [
        "req_1f /api/chat tiny:latest ended (stop)",
        "prompt: 6,100 tokens, 4,096 from the cache (67%), 2,004 computed",
        'parts from req_2e at token 4,101 of 6,100, behind "it\'s 12:0":',
        "here '5' (token 20) then ' on\\x1b[31m Monday'",
        "there '4' (token 19) then ?",
    ]
    assert emberd_cli("explain", "chatcmpl-1f", "--json").json == told
    for changed, words in [
        ({"outcome": "new", "nearest": None}, "no prompt that is remembered begins with"),
        ({"outcome": "off", "nearest": None}, "takes no part in the prefix cache"),
        ({"outcome": "withheld", "nearest": None}, "keys with the scope manage"),
        ({"outcome": "longer", "difference": None}, "goes along with req_2e for 4,101 tokens"),
        ({"outcome": "known", "difference": None}, "req_2e begins with the whole of it"),
        ({"outcome": "pending", "nearest": None}, "it has no first token"),
        ({"gone_tokens": 64}, "64 more had been kept"),
    ]:
        one = told | {"prompts": [prompt | changed, prompt | {"sequence": 1}]}
        scripted_daemon.gets["/api/requests/chatcmpl-1f"] = one
        shown = emberd_cli("explain", "chatcmpl-1f")
        assert words in shown.out and "prompt 1: 6,100 tokens" in shown.out
