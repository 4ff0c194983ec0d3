"""K10 and K14 of bug_kinds.md against a real daemon: prompts that are too long, and what never fits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chain_models import SMALL_POOL_TOKENS
from daemon import Daemon
from dialects import CHAT, OLLAMA_CHAT, ROUTES, Json, ask, ask_async, body, refused
from tiny_gguf import script_model

CONTEXT = 256


@pytest.fixture(scope="module")
def short_model(models_dir: Path) -> str:
    """A model trained for 256 tokens; one byte is one token."""
    script_model(models_dir / "short.gguf", {"1": ["yes"]}, context_length=CONTEXT)
    return "short"


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_k10_too_long_is_said(daemon: Daemon, short_model: str, route: str, stream: bool) -> None:
    """K10: 300 tokens, refused before any token with both numbers."""
    request = body(route, short_model, "x" * 279 + "1", stream=stream)
    if "messages" in request:
        request["messages"].insert(0, {"role": "system", "content": "s" * 20})
    else:
        request["prompt"] = "s" * 20 + request["prompt"]
    message = refused(daemon.http, route, request)
    assert "300 tokens" in message and "256 tokens" in message
    if route.startswith("/v1"):
        error = daemon.http.post(route, json=request).json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (300, 256)


def test_k10_the_longest_prompt_leaves_room_for_one_token(daemon: Daemon, short_model: str) -> None:
    """K10: 255 tokens go, and the reply is cut by the context."""
    reply = ask(daemon.http, CHAT, short_model, "x" * 254 + "1", max_tokens=1000)
    assert (reply.text, reply.reason) == ("yes", "length")
    assert (reply.num_prompt_tokens, reply.num_completion_tokens) == (255, 1)
    refused(daemon.http, CHAT, body(CHAT, short_model, "x" * 255 + "1", stream=False))


def conversation(last: str) -> list[Json]:
    return [
        {"role": "system", "content": "s" * 20},
        {"role": "user", "content": "u" * 200},
        {"role": "assistant", "content": "a" * 40},
        {"role": "user", "content": "v" * 60},
        {"role": "assistant", "content": "b" * 10},
        {"role": "user", "content": last},
    ]


def test_k10_whole_oldest_turns_go_only_when_asked(daemon: Daemon, short_model: str) -> None:
    """K10: 360 tokens; without the first turn 120 are left: system, the second turn, the last."""
    request: Json = {
        "model": short_model,
        "messages": conversation("w" * 29 + "1"),
        "stream": False,
        "options": {"temperature": 0},
    }
    assert "360 tokens" in refused(daemon.http, OLLAMA_CHAT, request)
    assert "360 tokens" in refused(daemon.http, OLLAMA_CHAT, request | {"truncate": False})
    reply = daemon.http.post(OLLAMA_CHAT, json=request | {"truncate": True})
    value = reply.json()
    assert value["message"]["content"] == "yes" and value["prompt_eval_count"] == 120
    assert value["emberd"]["truncated_messages"] == 2
    assert value["emberd"]["truncated_tokens"] == 240
    assert reply.headers["x-emberd-truncated"] == "240"


def test_k10_system_and_last_turn_are_never_cut(daemon: Daemon, short_model: str) -> None:
    """K10: 20 + 250 tokens are too many whatever is left out."""
    request = {"model": short_model, "messages": conversation("w" * 250), "truncate": True}
    assert "270 tokens" in refused(daemon.http, OLLAMA_CHAT, request)


@pytest.mark.parametrize("route", ROUTES[2:])
def test_k10_more_context_than_served_is_refused(
    daemon: Daemon, short_model: str, route: str
) -> None:
    """K10: num_ctx."""
    request = body(route, short_model, "1", stream=False, num_ctx=CONTEXT)
    assert daemon.http.post(route, json=request).status_code == 200
    message = refused(
        daemon.http, route, body(route, short_model, "1", stream=False, num_ctx=CONTEXT + 1)
    )
    assert "num_ctx" in message and "257" in message and "256" in message


def test_k14_what_can_never_fit_is_refused(small_daemon: Daemon) -> None:
    """K14: a pool of 512 tokens under a model of 4096; the small requests behind are served."""

    async def scenario() -> None:
        async with small_daemon.async_http() as http:
            big = http.post(CHAT, json=body(CHAT, "script", "x" * 599 + "1", stream=False))
            small = [ask_async(http, CHAT, "script", "1") for _ in range(10)]
            refusal, replies = await asyncio.gather(big, asyncio.gather(*small))
        assert refusal.status_code == 400
        assert "600 tokens" in refusal.text and f"{SMALL_POOL_TOKENS} tokens" in refusal.text
        assert {reply.text for reply in replies} == {"A B C D E F G"}

    asyncio.run(scenario())
    model = small_daemon.http.get("/v1/models/script").json()
    assert model["context_length"] == model["meta"]["n_ctx"] == SMALL_POOL_TOKENS
    assert small_daemon.loaded()["script"]["context_length"] == SMALL_POOL_TOKENS
