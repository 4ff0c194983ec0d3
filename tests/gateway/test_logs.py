"""Logs: one line an event, the request's id in each (HT-08), and nothing that people wrote unless it is asked for."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from emberd import logs
from site_fakes import Site, run

MakeSite = Callable[..., Site]
SECRET = "mysecretquestion a"


class Lines:
    """What was logged, as a program reads it."""

    def __init__(self, stream: io.StringIO) -> None:
        self._stream = stream

    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._stream.getvalue().splitlines()]

    def named(self, message: str) -> list[dict[str, Any]]:
        return [line for line in self.all() if line["message"] == message]

    @property
    def text(self) -> str:
        return self._stream.getvalue()


@pytest.fixture
def lines() -> Iterator[Lines]:
    """All events from debug up, in JSON."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonLines())
    logger = logging.getLogger("emberd")
    before = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield Lines(stream)
    logger.removeHandler(handler)
    logger.setLevel(before)


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], **fields}


def post(site: Site, path: str, body: Any, **options: Any) -> httpx.Response:
    async def work() -> httpx.Response:
        async with site.client() as client:
            return await client.post(path, json=body, **options)

    return run(work())


def test_a_request_and_its_reply_have_one_id_ht08(make_site: MakeSite, lines: Lines) -> None:
    response = post(make_site(), "/v1/chat/completions", chat("a"))
    (request,), (reply,) = lines.named("request"), lines.named("reply")
    assert request["request_id"] == reply["request_id"] == response.headers["x-request-id"]
    assert request["status"] == 200 and request["ms"] > 0
    assert (request["method"], request["path"]) == ("POST", "/v1/chat/completions")
    usage = response.json()["usage"]
    assert reply["prompt_tokens"] == usage["prompt_tokens"]
    assert reply["completion_tokens"] == usage["completion_tokens"]
    assert reply["model"] == "tiny:latest"


@pytest.mark.parametrize("style", ["text", "json"])
def test_every_line_of_a_request_carries_its_id(make_site: MakeSite, style: str) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonLines() if style == "json" else logs.TextLines())
    logger = logging.getLogger("emberd")
    logger.addHandler(handler)
    try:
        response = post(make_site({"load_error": RuntimeError("a bug")}), "/api/chat", chat("a"))
    finally:
        logger.removeHandler(handler)
    assert response.status_code == 500
    identity = response.headers["x-request-id"]
    assert "a bug" in stream.getvalue() and "Traceback" in stream.getvalue()
    events = [line for line in stream.getvalue().splitlines() if identity in line]
    assert any("request failed" in line for line in events)
    assert any("500" in line for line in events)


def test_requests_at_once_keep_their_ids_apart(make_site: MakeSite, lines: Lines) -> None:
    site = make_site({"delay": 0.002})

    async def work() -> list[httpx.Response]:
        import asyncio

        async with site.client() as client:
            calls = [client.post("/v1/chat/completions", json=chat(text)) for text in "abab"]
            return list(await asyncio.gather(*calls))

    answers = {r.headers["x-request-id"]: r.json()["usage"] for r in run(work())}
    replies = {line["request_id"]: line["completion_tokens"] for line in lines.named("reply")}
    assert replies == {key: usage["completion_tokens"] for key, usage in answers.items()}
    assert len(set(replies.values())) == 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat(SECRET)),
        ("/v1/chat/completions", chat(SECRET, stream=True)),
        ("/api/chat", chat(SECRET)),
        ("/api/generate", {"model": "tiny", "prompt": SECRET, "system": SECRET}),
        ("/v1/completions", {"model": "tiny", "prompt": SECRET}),
        ("/v1/chat/completions", chat(SECRET, temperature=SECRET)),  # 400, and it quotes the value
        ("/v1/chat/completions", chat(SECRET * 100)),  # too long
        ("/v1/chat/completions", {"model": "none", "messages": SECRET}),
        ("/v1/nothing", chat(SECRET)),
    ],
)
def test_no_prompt_text_is_logged_unless_asked(
    make_site: MakeSite, lines: Lines, path: str, body: dict[str, Any]
) -> None:
    post(make_site(), path, body)
    assert lines.named("request")
    assert "mysecretquestion" not in lines.text
    assert "Hello world" not in lines.text


def test_prompts_are_logged_when_asked(make_site: MakeSite, lines: Lines) -> None:
    body = chat(SECRET)
    response = post(make_site(log_prompts=True), "/v1/chat/completions", body)
    (event,) = lines.named("request body")
    assert event["body"] == body
    assert event["request_id"] == response.headers["x-request-id"]


def test_a_path_cannot_forge_a_line(make_site: MakeSite, lines: Lines) -> None:
    post(make_site(), "/x%0a2026-01-01T00:00:00.000Z INFO forged%1b[31m%e2%80%a8", {})
    (request,) = lines.named("request")
    assert "\n" in request["path"]
    assert len(lines.all()) == len(lines.text.splitlines())
    record = logging.makeLogRecord(
        {"msg": "line\nforged", "levelname": "INFO", **logs.fields(path=request["path"])}
    )
    text = logs.TextLines().format(record)
    assert "\n" not in text and "\x1b" not in text and "\u2028" not in text
    assert "line\\x0aforged" in text


def test_probes_are_quiet_and_their_failures_are_not(make_site: MakeSite, lines: Lines) -> None:
    site = make_site()

    async def work() -> None:
        async with site.client() as client:
            for path in ("/", "/health", "/metrics", "/api/tags"):
                await client.get(path)
            site.service.leaving = True
            await client.get("/health")

    run(work())
    levels = [(line["path"], line["level"]) for line in lines.named("request")]
    assert levels == [
        ("/", "debug"),
        ("/health", "debug"),
        ("/metrics", "debug"),
        ("/api/tags", "info"),
        ("/health", "warning"),
    ]


def test_text_lines_are_for_people() -> None:
    values = logs.fields(status=200, path="/a b", ms=1.5, none=None, request_id="req_1")
    record = logging.makeLogRecord({"msg": "request", "levelname": "INFO", "created": 0, **values})
    record.msecs = 7
    assert logs.TextLines().format(record) == (
        '1970-01-01T00:00:00.007Z INFO request status=200 path="/a b" ms=1.5 none=null request_id=req_1'
    )


def test_json_lines_survive_what_json_cannot_hold() -> None:
    values = logs.fields(what=object(), text="\ud800")
    record = logging.makeLogRecord({"msg": "x\ny", "levelname": "ERROR", **values})
    line = logs.JsonLines().format(record)
    assert "\n" not in line and json.loads(line)["message"] == "x\ny"
    line.encode("ascii")
