"""K36 of bug_kinds.md: bad bodies are refused by field in the API's own shape, good JSON is always taken."""

from __future__ import annotations

import json
from typing import Any

import pytest

from daemon import Daemon
from dialects import (
    CHAT,
    COMPLETION,
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    ROUTES,
    body,
    message_of,
    refused,
)

EVERY_ROUTE = pytest.mark.parametrize("route", ROUTES)


@EVERY_ROUTE
@pytest.mark.parametrize(
    "raw",
    [
        *(b"{:", b"", b"   ", b"[]", b"null", b'"text"', b"{"),
        b'{"model": "script", "x": "\xb0\xa1"}',
        b'{"model": NaN}',
        b"[" * 100_000,
    ],
    ids=lambda raw: repr(raw[:30]),
)
def test_k36_what_is_no_json_object(daemon: Daemon, route: str, raw: bytes) -> None:
    """K36."""
    message = refused(daemon.http, route, raw)
    assert "body" in message or "object" in message or "JSON" in message


@EVERY_ROUTE
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("max_tokens", value) for value in ("ten", 1.5, True)),
        *(("stop", value) for value in (5, [1])),
        ("temperature", "hot"),
        ("seed", "x"),
        ("top_k", []),
    ],
    ids=str,
)
def test_k36_wrong_types_name_the_field(daemon: Daemon, route: str, field: str, value: Any) -> None:
    """K36."""
    request = body(route, "script", "1", stream=False, **{field: value})
    message = refused(daemon.http, route, request)
    shown = "num_predict" if route.startswith("/api") and field == "max_tokens" else field
    assert shown in message


@pytest.mark.parametrize("route", [CHAT, OLLAMA_CHAT])
@pytest.mark.parametrize(
    "messages",
    [
        *("hi", {}, [1]),
        [{"content": "no role"}],
        [{"role": "king", "content": "x"}],
        [{"role": "user", "content": 5}],
    ],
    ids=str,
)
def test_k36_bad_messages(daemon: Daemon, route: str, messages: Any) -> None:
    """K36."""
    request = {"model": "script", "messages": messages}
    assert "messages" in refused(daemon.http, route, request)


def test_k36_missing_fields(daemon: Daemon) -> None:
    """K36: no messages, empty ones, no prompt, no model. Empty messages, and Go's null for them, load to Ollama."""
    assert "messages" in refused(daemon.http, CHAT, {"model": "script"})
    assert "messages" in refused(daemon.http, CHAT, {"model": "script", "messages": None})
    assert "messages" in refused(daemon.http, CHAT, {"model": "script", "messages": []})
    assert "messages" in refused(daemon.http, OLLAMA_CHAT, {"model": "script"})
    assert "prompt" in refused(daemon.http, COMPLETION, {"model": "script"})
    for route in ROUTES:
        assert "model" in refused(daemon.http, route, {"prompt": "x", "messages": []})
    for empty in ([], None):
        loaded = daemon.http.post(OLLAMA_CHAT, json={"model": "script", "messages": empty})
        assert loaded.json()["done_reason"] == "load"


@pytest.mark.parametrize("route", [COMPLETION, OLLAMA_GENERATE])
@pytest.mark.parametrize("prompt", [5, {}, True], ids=str)
def test_k36_a_prompt_that_is_no_text(daemon: Daemon, route: str, prompt: Any) -> None:
    """K36."""
    assert "prompt" in refused(daemon.http, route, {"model": "script", "prompt": prompt})


@EVERY_ROUTE
@pytest.mark.parametrize(
    "content_type", [None, "application/x-www-form-urlencoded", "text/plain", "nonsense"]
)
def test_k36_good_json_whatever_the_content_type(
    daemon: Daemon, route: str, content_type: str | None
) -> None:
    """K36: as plain `curl -d` sends it. Unknown fields are ignored."""
    request = body(route, "script", "1", stream=False) | {"metadata": {"a": [1]}, "no_such": 1}
    headers = {} if content_type is None else {"content-type": content_type}
    response = daemon.http.post(route, content=json.dumps(request), headers=headers)
    assert response.status_code == 200, response.text


@EVERY_ROUTE
def test_unknown_models_are_not_found(daemon: Daemon, route: str) -> None:
    message = refused(daemon.http, route, body(route, "nobody", "1", stream=True), status=[404])
    assert "nobody" in message and "not found" in message


@pytest.mark.parametrize("path", ["/v1/nothing", "/api/nothing", "/nothing"])
def test_unknown_routes_answer_in_their_dialect(daemon: Daemon, path: str) -> None:
    """HT-02."""
    response = daemon.http.get(path)
    assert response.status_code == 404
    assert "no route" in message_of(path, response)
