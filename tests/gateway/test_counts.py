"""Counts of a chat's prompt: exact, and without a worker (llama-server's /v1/chat/completions/input_tokens)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from responses_harness import post

from site_fakes import Site

MakeSite = Callable[..., Site]
Json = dict[str, Any]
CHAT = "/v1/chat/completions"
COUNT = f"{CHAT}/input_tokens"
TOOL: Json = {"type": "function", "function": {"name": "w", "parameters": {"type": "object"}}}


def chat(*contents: str, **fields: Any) -> Json:
    return {"messages": [{"role": "user", "content": one} for one in contents], **fields}


def test_a_chats_tokens_are_counted_without_loading_and_exactly(make_site: MakeSite) -> None:
    bodies = [
        chat("abc"),
        chat("x", "defg"),
        chat("a", tools=[TOOL]),
        chat("a", tools=[TOOL], tool_choice="none"),
        chat("x" * 300),
    ]
    site = make_site()
    counts = [count.json() for count in post(site, COUNT, *bodies)]
    assert all(count["object"] == "response.input_tokens" for count in counts)
    numbers = [count["input_tokens"] for count in counts]
    assert numbers[:2] == [3, 5] and numbers[2] > 100 and numbers[3:] == [1, 300]
    assert not site.workers
    answers = post(make_site(ctx=4096), CHAT, *bodies)
    assert [answer.json()["usage"]["prompt_tokens"] for answer in answers] == numbers


def test_what_cannot_be_counted_is_refused(make_site: MakeSite) -> None:
    far, empty, unknown = post(
        make_site(), COUNT, chat("x" * 100_000), {"messages": []}, chat("a", model="nobody")
    )
    assert far.json()["error"]["code"] == "context_length_exceeded"
    assert empty.json()["error"]["param"] == "messages"
    assert unknown.status_code == 404
