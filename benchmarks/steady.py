#!/usr/bin/env python3
"""Memory over mixed requests: resident bytes of the daemon and its workers, free KV blocks and open files, a round.

    .venv-test/bin/python benchmarks/steady.py                   10 rounds of 20 requests on the CPU device

A round is one request of each kind, of all three APIs: streams and whole answers, tools, schemas, log-probabilities,
several choices, embeddings, counts, errors, and a stream that is hung up on. Fails when memory of the later half is
above that of the first half by more than MAX_GROWTH, or when a block or a file stays taken. Longer, with workers
that die: scripts/soak.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

import common

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from daemon import Daemon, running_daemon, wait_until
from tiny_encoder import encoder_model
from tiny_gguf import random_model

MAX_GROWTH = 0.03
WARM_UP = 2  # rounds before the first that counts: models load, caches fill
Json = dict[str, Any]
ASK: Json = {"model": "random", "messages": [{"role": "user", "content": "Tell me of the sea."}]}
PROMPT: Json = {"model": "random", "prompt": "Tell me of the sea."}
SWITCH: Json = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}},
    "required": ["on"],
    "additionalProperties": False,
}
TOOL: Json = {"name": "switch", "parameters": SWITCH}
LIMIT: Json = {"max_tokens": 24}
NATIVE: Json = {"options": {"num_predict": 24}}
TEXTS = ["a sea", "a hill", "a river with a bridge"]
CHAT, COMPLETION, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, OLLAMA, GENERATE = "/v1/messages", "/api/chat", "/api/generate"
KINDS: list[tuple[str, Json, int]] = [  # route, body, status
    (CHAT, {**ASK, **LIMIT}, 200),
    (CHAT, {**ASK, **LIMIT, "stream": True}, 200),
    (CHAT, {**ASK, **LIMIT, "n": 3, "logprobs": True, "top_logprobs": 2}, 200),
    (
        CHAT,
        {**ASK, "tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"},
        200,
    ),
    (COMPLETION, {**PROMPT, **LIMIT, "echo": True, "logprobs": 1}, 200),
    (RESPONSES, {"model": "random", "input": "Hello", "max_output_tokens": 24}, 200),
    (
        RESPONSES,
        {"model": "random", "input": "Hello", "max_output_tokens": 24, "stream": True},
        200,
    ),
    (MESSAGES, {**ASK, **LIMIT}, 200),
    (MESSAGES, {**ASK, **LIMIT, "stream": True}, 200),
    (f"{MESSAGES}/count_tokens", ASK, 200),
    (OLLAMA, {**ASK, **NATIVE}, 200),
    (OLLAMA, {**ASK, **NATIVE, "stream": False, "format": SWITCH}, 200),
    (GENERATE, {**PROMPT, **NATIVE}, 200),
    (GENERATE, {**PROMPT, **NATIVE, "stream": False, "raw": True}, 200),
    ("/v1/embeddings", {"model": "encoder", "input": TEXTS}, 200),
    ("/api/embed", {"model": "encoder", "input": TEXTS}, 200),
    ("/tokenize", {"model": "random", "content": "Tell me of the sea."}, 200),
    (CHAT, {**ASK, "model": "nobody"}, 404),
    (GENERATE, {**PROMPT, "options": {"top_k": "many"}}, 400),
]  # and one that is hung up on


def main() -> int:
    options = common.parser(__doc__.splitlines()[0], 10)
    options.add_argument("--device", default="cpu", help="what the daemon computes on")
    given = options.parse_args()
    rounds: list[Json] = []
    with tempfile.TemporaryDirectory(prefix="emberd-steady-") as name:
        folder = Path(name)
        (folder / "models").mkdir()
        random_model(folder / "models" / "random.gguf", context_length=2048)
        encoder_model(folder / "models" / "encoder.gguf")
        settings = {"kv_memory": "8MiB", "response_memory": "64KiB", "device": given.device}
        with running_daemon(folder / "models", folder / "daemon", **settings) as daemon:
            for number in range(WARM_UP + given.repeats):
                one_round(daemon, number)
                rounds.append(seen(daemon))
                print(rounds[-1], flush=True)
    counted = rounds[WARM_UP:]
    grown = {part: growth([one[part] for one in counted]) for part in ("daemon", "workers")}
    left = [one for one in rounds if one["blocks_free"] != one["blocks"]]
    files = counted[-1]["files"] - counted[0]["files"]
    facts = common.conditions(
        device=given.device,
        driver="",
        repeats=given.repeats,
        commit=given.commit,
        requests_a_round=len(KINDS) + 1,
        warm_up_rounds=WARM_UP,
        settings=settings,
    )
    results = {"rounds": rounds, "growth": grown, "files_more": files}
    common.finish("steady", facts, [results], given.out)
    return int(bool(left) or files > 2 or max(grown.values()) > MAX_GROWTH)


def one_round(daemon: Daemon, number: int) -> None:
    """Prompts differ by round, so that blocks are taken and given back rather than found again."""
    for route, body, status in KINDS:
        body = {**body, "seed": number} if route in (CHAT, COMPLETION, RESPONSES) else body
        if "messages" in body:
            said = f"{number}: {body['messages'][0]['content']}"
            body = {**body, "messages": [{"role": "user", "content": said}]}
        response = daemon.http.post(route, json=body)
        assert response.status_code == status, (route, response.status_code, response.text[:300])
    endless = {**ASK, "max_tokens": 400, "ignore_eos": True, "stream": True}
    with daemon.http.stream("POST", CHAT, json=endless) as response:
        next(response.iter_bytes())


def seen(daemon: Daemon) -> Json:
    """With nothing running: bytes in MiB."""
    wait_until(lambda: not any(model["emberd"]["active"] for model in daemon.loaded().values()))
    loaded = daemon.loaded()["random"]["emberd"]
    process = psutil.Process(daemon.pid)
    return {
        "daemon": round(process.memory_info().rss / 2**20, 2),
        "workers": round(sum(one.memory_info().rss for one in daemon.workers()) / 2**20, 2),
        "blocks": loaded["blocks"],
        "blocks_free": loaded["blocks_free"],
        "files": process.num_fds(),
    }


def growth(values: list[float]) -> float:
    """The median of the later half over that of the first, less one."""
    half = max(1, len(values) // 2)
    return round(statistics.median(values[-half:]) / statistics.median(values[:half]) - 1, 4)


if __name__ == "__main__":
    raise SystemExit(main())
