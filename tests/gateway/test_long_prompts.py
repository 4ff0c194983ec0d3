"""Bodies of ten and of twenty megabytes: refused with both numbers (K10, HT-30) while other requests are answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from site_fakes import CONTEXT, Site, run

MakeSite = Callable[..., Site]
SIZE = 10_000_000
CHAT, RAW, OLLAMA = "/v1/chat/completions", "/v1/completions", "/api/chat"


def said(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


def send_long(site: Site, path: str, body: dict[str, Any]) -> tuple[int, str, int]:
    """Status and text of the answer, and how often another route answered meanwhile."""

    async def work() -> tuple[int, str, int]:
        content = json.dumps({"model": "tiny", "stream": False, **body})
        async with site.client() as client:
            await client.post(CHAT, json={"model": "tiny", **said("a")})  # loads the model
            long = asyncio.ensure_future(client.post(path, content=content, timeout=None))
            answered = 0
            while not long.done():
                assert (await client.get("/v1/models")).status_code == 200
                answered += 1
            return long.result().status_code, long.result().text, answered

    return run(work())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, said("the quick brown fox " * (SIZE // 20))),
        (CHAT, said("<|end|>" * (SIZE // 7))),
        (CHAT, said([{"type": "text", "text": "7" * (SIZE // 2)}] * 2)),
        (CHAT, said("more than a template may make " * (SIZE // 15))),
        (CHAT, said([{"type": "text", "text": "7" * (SIZE // 5)}] * 10)),
        (RAW, {"prompt": "7" * SIZE}),
        ("/api/generate", {"prompt": " a" * (SIZE // 2)}),
        ("/api/generate", {"prompt": " a" * (SIZE // 2), "raw": True}),
        ("/api/generate", {"prompt": " a" * SIZE}),
        (OLLAMA, {**said("x " * (SIZE // 2)), "truncate": True}),
    ],
    ids=[
        *("words", "control", "parts", "huge", "huge-parts", "raw", "generate", "generate-raw"),
        *("generate-huge", "truncate"),
    ],
)
def test_a_prompt_that_cannot_fit_is_refused_while_others_are_answered(
    make_site: MakeSite, path: str, body: dict[str, Any]
) -> None:
    status, text, answered = send_long(make_site(), path, body)
    assert status == 400
    assert f"exceeds the available context size ({CONTEXT} tokens)" in text
    assert "at least" in text
    assert answered > 0  # it may be refused sooner than many are
    if path.startswith("/v1"):
        error = json.loads(text)["error"]
        assert error["code"] == "context_length_exceeded"
        assert error["n_prompt_tokens"] >= error["n_ctx"] == CONTEXT


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/messages", {"max_tokens": 1}, ("prompt is too long", f"> {CONTEXT} maximum")),
        ("/v1/messages/count_tokens", {}, ("prompt is too long", f"> {CONTEXT} maximum")),
        ("/v1/responses", {"input": "a " * SIZE}, ("context_length_exceeded", "at least")),
    ],
)
def test_each_api_has_its_own_words_for_more_text_than_a_template_may_make(
    make_site: MakeSite, path: str, body: dict[str, Any], words: tuple[str, ...]
) -> None:
    status, text, _ = send_long(
        make_site(), path, body if "input" in body else said("a " * SIZE) | body
    )
    assert status == 400
    assert all(word in text for word in words), text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        (CHAT, {"messages": said("x")["messages"] * (SIZE // 40)}, "at most 10000"),
        (OLLAMA, {"messages": said("x")["messages"] * (SIZE // 40)}, "at most 10000"),
        (CHAT, {"messages": [{"role": "nobody"}] * 9000 + [5] * (SIZE // 4)}, "messages[0].role"),
        (RAW, {"prompt": [1] * (SIZE // 10)}, "exceeds the available context size"),
        (RAW, {"prompt": [["x"]] * (SIZE // 20)}, "prompt"),
    ],
    ids=["messages", "ollama", "faults", "ids", "kinds"],
)
def test_a_body_of_many_values_is_refused_while_others_are_answered(
    make_site: MakeSite, path: str, body: dict[str, Any], reason: str
) -> None:
    status, text, answered = send_long(make_site(), path, body)
    assert status == 400
    assert reason in text
    assert answered > 0  # it may be refused sooner than many are
