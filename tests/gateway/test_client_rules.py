"""C1 to C17 of the handed `clients.md`: what clients of every kind rely on, on all the APIs that they call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from site_fakes import CONTEXT, Site, run

MakeSite = Callable[..., Site]
Json = dict[str, Any]
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
OLLAMA, COMPLETION, GENERATE = "/api/chat", "/v1/completions", "/api/generate"
CHATS = (CHAT, RESPONSES, MESSAGES, OLLAMA)
LISTINGS = ("/v1/models", "/api/tags", "/api/ps", "/api/version")
ANSWER = "Hello world"


def body(path: str, text: str = "a", **fields: Any) -> Json:
    """A request for a whole answer, in the API's own words."""
    said = [{"role": "user", "content": text}]
    asked: Json = {"model": "tiny", "stream": False}
    if path in (COMPLETION, GENERATE):
        asked["prompt"] = text
    else:
        asked["input" if path == RESPONSES else "messages"] = said
    if path == MESSAGES:
        asked["max_tokens"] = 100
    return asked | fields


def text_of(path: str, answer: Json) -> str:
    if path == CHAT:
        return str(answer["choices"][0]["message"]["content"])
    if path == RESPONSES:
        return str(answer["output"][-1]["content"][0]["text"])
    if path == MESSAGES:
        return str(answer["content"][0]["text"])
    return str(answer["message"]["content"])


def send(site: Site, method: str, path: str, **options: Any) -> httpx.Response:
    async def work() -> httpx.Response:
        async with site.client() as client:
            return await client.request(method, path, **options)

    return run(work())


def events(text: str) -> list[Any]:
    datas = [part.removeprefix("data: ") for part in text.removesuffix("\n\n").split("\n\n")]
    return [data if data == "[DONE]" else json.loads(data) for data in datas]


@pytest.mark.parametrize("path", LISTINGS)
def test_models_are_listed_while_one_loads_and_while_a_prompt_is_read_c1(
    make_site: MakeSite, path: str
) -> None:
    async def work() -> None:
        site = make_site({"load_gate": asyncio.Event(), "prefill": False})
        async with site.http() as client:
            waiting = asyncio.ensure_future(client.post(CHAT, json=body(CHAT)))
            await site.until(lambda: site.manager._loading)
            assert (await client.get(path)).status_code == 200
            assert site.load_gate is not None
            site.load_gate.set()
            await site.until(lambda: site.workers and site.workers[0].running)
            assert (await client.get(path)).status_code == 200
            assert not waiting.done()
            site.workers[0].prefilled.set()
            assert (await waiting).status_code == 200

    run(work())


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (CHAT, "text/event-stream"),
        (RESPONSES, "text/event-stream"),
        (MESSAGES, "text/event-stream"),
        (OLLAMA, "application/x-ndjson"),
    ],
)
def test_each_piece_of_a_stream_goes_out_as_it_is_made_c2(
    make_site: MakeSite, path: str, kind: str
) -> None:
    site = make_site({"prefill": False})

    async def work() -> None:
        async with site.http() as client:
            request = body(path, "e", stream=True)
            async with client.stream("POST", path, json=request) as response:
                assert response.status_code == 200  # and its prompt is not read yet
                assert response.headers["content-type"].split(";")[0] == kind
                site.workers[0].prefilled.set()
                async for piece in response.aiter_text():
                    if " on" in piece:
                        break
                assert site.workers[0].running  # the reply has no end, and a piece of it is here

    run(work())


def test_streams_end_in_done_and_begin_with_the_role_c3(make_site: MakeSite) -> None:
    first, *_, last = events(send(make_site(), "POST", CHAT, json=body(CHAT, stream=True)).text)
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert last == "[DONE]"
    text = send(make_site(), "POST", COMPLETION, json=body(COMPLETION, stream=True)).text
    assert events(text)[-1] == "[DONE]"


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_usage_is_the_last_chunk_before_done_c4(make_site: MakeSite, path: str) -> None:
    asked = body(path, stream=True, stream_options={"include_usage": True})
    *_, usage, done = events(send(make_site(), "POST", path, json=asked).text)
    assert done == "[DONE]"
    assert usage["choices"] == []
    whole = send(make_site(), "POST", path, json=body(path)).json()["usage"]
    assert whole["total_tokens"] == whole["prompt_tokens"] + whole["completion_tokens"] > 0
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [usage["usage"][name] for name in counts] == [whole[name] for name in counts]


@pytest.mark.parametrize("path", CHATS)
def test_fields_that_nobody_knows_are_no_error_c5(make_site: MakeSite, path: str) -> None:
    fields = {
        "store": False,
        "prompt_cache_key": "k",
        "client_metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "return_token_ids": True,
        "metadata": {"user_id": "u"},
        "context_management": {"edits": []},
        "output_config": {"effort": "high"},
    }
    if path in (CHAT, RESPONSES):
        fields["stream_options"] = {"continuous_usage_stats": True, "include_obfuscation": False}
    if path == RESPONSES:
        del fields["context_management"]  # a list here, and only Anthropic's clients send the other
    answer = send(make_site(), "POST", f"{path}?beta=true", json=body(path, **fields))
    assert answer.status_code == 200, answer.text
    assert text_of(path, answer.json()) == ANSWER


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_limit_bound_the_answer_c6(make_site: MakeSite, name: str) -> None:
    answer = send(make_site(), "POST", CHAT, json=body(CHAT, "e", **{name: 5})).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("role", ["system", "developer", "user"])
@pytest.mark.parametrize(
    "content", ["x", [{"type": "text", "text": "x"}], [{"type": "text", "text": ""}], None]
)
def test_content_has_many_forms_c7(make_site: MakeSite, role: str, content: Any) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": role, "content": content},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "r"}]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "r"},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
    ]
    answer = send(make_site(), "POST", CHAT, json=body(CHAT, messages=messages))
    assert answer.status_code == 200, answer.text
    assert text_of(CHAT, answer.json()) == ANSWER


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("path", CHATS)
def test_a_hang_up_before_the_first_token_ends_the_work_c8(
    make_site: MakeSite, path: str, streamed: bool
) -> None:
    site = make_site({"prefill": False})

    async def work() -> None:
        async with site.http() as client:
            request = body(path, "e", stream=streamed)
            waiting = asyncio.ensure_future(client.post(path, json=request))
            await site.until(lambda: site.workers and site.workers[0].running)
            waiting.cancel()
            await site.until(lambda: not site.workers[0].running)
            assert len(site.workers[0].cancelled) == 1

    run(work())


@pytest.mark.parametrize("path", [*CHATS, COMPLETION, GENERATE, "/v1/embeddings", "/api/embed"])
def test_an_unknown_model_is_404_in_the_words_of_the_api_c9(make_site: MakeSite, path: str) -> None:
    asked = {"input": "a"} if "embed" in path else body(path)
    answer = send(make_site(), "POST", path, json={**asked, "model": "nobody"})
    assert answer.status_code == 404
    error = answer.json()["error"]
    if path == MESSAGES:
        assert answer.json()["type"] == "error"
        assert error["type"] == "not_found_error"
    elif path.startswith("/v1"):
        assert {"message", "type", "code"} <= set(error)
    assert "not found" in (error if path.startswith("/api") else error["message"])


@pytest.mark.parametrize(
    "path", ["/v1/nothing", "/api/nothing", "/v1/messages/nothing", "/nothing"]
)
def test_errors_are_never_pages_c9(make_site: MakeSite, path: str) -> None:
    answer = send(make_site(), "GET", path)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]


@pytest.mark.parametrize("path", CHATS)
def test_too_long_a_prompt_is_refused_at_once_with_both_numbers_c10(
    make_site: MakeSite, path: str
) -> None:
    site = make_site()
    answer = send(site, "POST", path, json=body(path, "x" * 3 * CONTEXT, truncate=False))
    assert answer.status_code == 400
    assert str(CONTEXT) in answer.text
    assert str(3 * CONTEXT) in answer.text
    assert not site.workers[0].requests


def test_a_short_request_does_not_wait_for_one_that_goes_on_c11(make_site: MakeSite) -> None:
    site = make_site({"delay": 0.001})

    async def work() -> None:
        async with site.http() as client:
            long = [
                asyncio.ensure_future(client.post(p, json=body(p, "e"))) for p in (CHAT, OLLAMA)
            ]
            await site.until(lambda: site.workers and len(site.workers[0].running) == 2)
            title = (await client.post(CHAT, json=body(CHAT))).json()
            assert text_of(CHAT, title) == ANSWER
            for one in long:
                one.cancel()
            await asyncio.gather(*long, return_exceptions=True)

    run(work())


@pytest.mark.parametrize("name", ["tiny", "tiny:latest"])
@pytest.mark.parametrize("path", CHATS)
def test_names_with_and_without_latest_mean_the_same_c13(
    make_site: MakeSite, path: str, name: str
) -> None:
    answer = send(make_site(), "POST", path, json=body(path, model=name)).json()
    assert (text_of(path, answer), answer["model"]) == (ANSWER, name)


@pytest.mark.parametrize("path", CHATS)
@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded"])
def test_bodies_are_json_whatever_curl_calls_them_c14(
    make_site: MakeSite, path: str, kind: str | None
) -> None:
    headers = {"content-type": kind} if kind else {}
    content = json.dumps(body(path)).encode()
    answer = send(make_site(), "POST", path, content=content, headers=headers)
    assert text_of(path, answer.json()) == ANSWER


def test_a_chunked_body_is_read_c14(make_site: MakeSite) -> None:
    async def work() -> httpx.Response:
        async def pieces() -> Any:
            content = json.dumps(body(CHAT)).encode()
            for at in range(0, len(content), 7):
                yield content[at : at + 7]

        site = make_site()
        async with site.http() as client:
            return await client.post(CHAT, content=pieces())

    answer = run(work())
    assert answer.request.headers["transfer-encoding"] == "chunked"
    assert text_of(CHAT, answer.json()) == ANSWER


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/openapi.json"])
def test_probes_are_answered_c15(make_site: MakeSite, method: str, path: str) -> None:
    answer = send(make_site(), method, path)
    assert answer.status_code == 200
    if (method, path) == ("GET", "/"):
        assert answer.text == "Ollama is running"


@pytest.mark.parametrize("method", ["TRACE", "QUERY", "PROPFIND"])
def test_methods_that_no_route_has_are_405_c15(make_site: MakeSite, method: str) -> None:
    for path in ("/", CHAT, "/api/tags"):
        assert send(make_site(), method, path).status_code == 405


@pytest.mark.parametrize("path", [CHAT, OLLAMA])
def test_a_page_on_another_local_port_may_call_c16(make_site: MakeSite, path: str) -> None:
    origin = "http://localhost:5173"
    asked = {"origin": origin, "access-control-request-method": "POST"}
    asked["access-control-request-headers"] = "content-type, authorization"
    preflight = send(make_site(), "OPTIONS", path, headers=asked)
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == origin
    answer = send(make_site(), "POST", path, json=body(path), headers={"origin": origin})
    assert answer.headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize("path", CHATS)
@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer none"}, {"x-api-key": "none"}])
def test_any_key_or_none_is_served_c17(
    make_site: MakeSite, path: str, headers: dict[str, str]
) -> None:
    answer = send(make_site(), "POST", path, json=body(path), headers=headers)
    assert text_of(path, answer.json()) == ANSWER
