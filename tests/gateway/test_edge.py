"""What holds for every route: bodies, paths, methods, error shapes, Host, origins, request ids (HT-, K34, K36)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from emberd.gateway.security import host_allowed, origin_allowed
from site_fakes import Site, run

MakeSite = Callable[..., Site]
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
GENERATE = {"model": "tiny", "prompt": "a", "stream": False}


def send(site: Site, method: str, path: str, **options: Any) -> httpx.Response:
    async def work() -> httpx.Response:
        async with site.client() as client:
            return await client.request(method, path, **options)

    return run(work())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat", "/api/generate"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{:", "not valid JSON"),
        (b"", "missing request body"),
        (b"  \n", "missing request body"),
        (b"[]", "must be a JSON object, not an array"),
        (b'"x"', "not a text"),
        (b"null", "not null"),
        (b'{"model": "\xb0\xa1"}', "not UTF-8 at byte 11"),
        (b'{"temperature": NaN}', "NaN"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_bad_bodies_are_refused_in_the_dialect_k36(
    make_site: MakeSite, path: str, content: bytes, said: str
) -> None:
    response = send(make_site(), "POST", path, content=content)
    assert response.status_code == 400
    error = response.json()["error"]
    message = error["message"] if path.startswith("/v1") else error
    assert isinstance(message, str)
    assert said in message


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/chat/completions", {"model": "tiny"}, "messages"),
        ("/v1/chat/completions", {"messages": CHAT["messages"]}, "model"),
        ("/v1/completions", {"model": "tiny"}, "prompt"),
        ("/api/chat", {"model": "tiny"}, "messages"),
        ("/api/generate", {"prompt": "a"}, "model"),
        ("/api/generate", {"model": "tiny", "prompt": 5}, "prompt"),
        ("/api/show", {}, "model"),
    ],
)
def test_missing_and_wrong_fields_are_named_k36(
    make_site: MakeSite, path: str, body: dict[str, Any], field: str
) -> None:
    response = send(make_site(), "POST", path, json=body)
    assert response.status_code == 400
    assert f"'{field}'" in json.dumps(response.json())
    assert "detail" not in response.json()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "text/plain; charset=latin-1"},
        {"authorization": "Bearer anything", "x-api-key": "anything"},
    ],
)
def test_json_is_taken_whatever_the_headers_say_ht04(
    make_site: MakeSite, headers: dict[str, str]
) -> None:
    content = json.dumps(CHAT).encode()
    response = send(make_site(), "POST", "/v1/chat/completions", content=content, headers=headers)
    assert response.status_code == 200


def test_too_large_bodies_are_refused_before_they_are_read(make_site: MakeSite) -> None:
    response = send(make_site(max_body=1000), "POST", "/api/chat", content=b"x" * 2000)
    assert response.status_code == 413
    assert "EMBERD_MAX_BODY" in response.json()["error"]


def test_half_a_surrogate_pair_is_no_error(make_site: MakeSite) -> None:
    content = rb'{"model": "tiny", "prompt": "\ud83da", "stream": false}'
    response = send(make_site(), "POST", "/api/generate", content=content)
    assert response.json()["response"] == "Hello world"


def test_a_whole_url_as_target_is_served(make_site: MakeSite) -> None:
    """RFC 9112, 3.2.2: every server accepts the form that proxies are sent."""

    async def work() -> bytes:
        async with make_site().listening() as (url, _):
            host, port = url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            target = f"HTTP://{host}:{port}/v1/models?a=b"
            lines = (f"GET {target} HTTP/1.1", f"Host: {host}", "Connection: close", "", "")
            writer.write("\r\n".join(lines).encode())
            answer = await reader.read()
            writer.close()
            return answer

    assert run(work()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "path", ["//v1/chat/completions", "/v1/chat/completions/", "/v1//chat/completions//"]
)
def test_double_and_trailing_slashes_do_not_redirect_ht09(make_site: MakeSite, path: str) -> None:
    assert send(make_site(), "POST", f"http://localhost{path}", json=CHAT).status_code == 200


@pytest.mark.parametrize("path", ["/", "/api/version", "/api/tags", "/health", "/v1/models"])
def test_head_answers_without_a_body_ht01(make_site: MakeSite, path: str) -> None:
    response = send(make_site(), "HEAD", path)
    assert response.status_code == 200
    assert response.content == b""


def test_the_root_says_what_probes_look_for_c15(make_site: MakeSite) -> None:
    response = send(make_site(), "GET", "/")
    assert response.text == "Ollama is running"
    assert response.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/api/v0/models", 404),
        ("GET", "/api/v1/models", 404),
        ("GET", "/api/nothing", 404),
        ("POST", "/v1/messages/batches?beta=true", 404),
        ("GET", "/v1/messages/count_tokens", 405),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/api/tags", 405),
        ("PATCH", "/", 405),
        ("QUERY", "/api/chat", 405),
    ],
)
def test_unknown_routes_and_methods_answer_in_the_dialect_ht02(
    make_site: MakeSite, method: str, path: str, status: int
) -> None:
    response = send(make_site(), method, path)
    assert response.status_code == status
    assert ("allow" in response.headers) == (status == 405)
    if method == "HEAD":
        return
    body = response.json()
    if path.startswith("/v1/messages"):
        assert body["type"] == "error"
        kinds = {404: "not_found_error", 405: "invalid_request_error"}
        assert body["error"]["type"] == kinds[status]
    elif path.startswith("/api"):
        assert isinstance(body["error"], str)
    else:
        assert body["error"]["message"]


def test_every_answer_has_its_own_request_id_ht08(make_site: MakeSite) -> None:
    site = make_site()
    ids = [
        send(site, "GET", path).headers["x-request-id"] for path in ("/", "/nothing", "/api/tags")
    ]
    assert len(set(ids)) == 3


def test_our_own_mistakes_are_500_in_the_dialect_without_details(
    make_site: MakeSite, caplog: pytest.LogCaptureFixture
) -> None:
    site = make_site({"load_error": RuntimeError("secret")})
    response = send(site, "POST", "/v1/chat/completions", json=CHAT)
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "api_error"
    assert "secret" not in response.text
    assert "secret" in caplog.text


def test_openapi_documents_the_bodies_c15(make_site: MakeSite) -> None:
    document = send(make_site(), "GET", "/openapi.json").json()
    chat = document["paths"]["/v1/chat/completions"]["post"]
    reference = chat["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schemas = document["components"]["schemas"]
    assert "messages" in schemas[reference.rpartition("/")[2]]["properties"]
    names = {text.split('"')[0] for text in json.dumps(document).split("#/components/schemas/")[1:]}
    assert names <= set(schemas)
    ids = [route["operationId"] for path in document["paths"].values() for route in path.values()]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:11434", "127.0.0.1.evil.example", "localhost.evil.example"],
)
def test_foreign_hosts_are_refused_on_every_route_k34(make_site: MakeSite, host: str) -> None:
    site = make_site()
    for method, path in (("GET", "/"), ("POST", "/api/generate"), ("GET", "/v1/models")):
        response = send(site, method, path, json=GENERATE, headers={"host": host})
        assert response.status_code == 403
    assert not site.workers


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("LocalHost:1", True),
        ("127.0.0.1:11434", True),
        ("[::1]:80", True),
        ("192.168.1.4", True),
        ("host.docker.internal:11434", True),
        ("box.local", True),
        ("", True),
        ("8.8.8.8", False),
        ("user@localhost", False),
        ("localhost, evil.example", False),
        ("[::1", False),
        ("my.name", True),
    ],
)
def test_hosts_that_reach_a_loopback_daemon_ht22(host: str, allowed: bool) -> None:
    assert host_allowed(host, ["My.Name"]) is allowed


def test_a_daemon_that_listens_everywhere_does_not_mind_the_host(make_site: MakeSite) -> None:
    response = send(make_site(host="0.0.0.0"), "GET", "/", headers={"host": "box.example"})
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost:3000", True),
        ("https://127.0.0.1", True),
        ("http://0.0.0.0:1", True),
        ("app://obsidian.md", True),
        ("tauri://localhost", True),
        ("capacitor://localhost", True),  # CL-16
        ("vscode-webview://abc", True),
        ("http://box.example:11434", True),  # the daemon's own Host
        ("https://chat.example", True),  # a pattern
        ("https://evil.example", False),
        ("http://localhost.evil.example", False),
        ("null", False),
        ("http://[", False),
    ],
)
def test_origins_ht20(origin: str, allowed: bool) -> None:
    assert origin_allowed(origin, "box.example:11434", ["https://*chat.example"]) is allowed


def test_an_allowed_page_gets_cors_headers_and_others_are_refused_ht21(
    make_site: MakeSite,
) -> None:
    site = make_site(origins=("https://my.page",))
    for origin in ("http://localhost:3000", "https://my.page"):
        response = send(site, "GET", "/api/tags", headers={"origin": origin})
        assert response.headers["access-control-allow-origin"] == origin
        assert "x-request-id" in response.headers["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in response.headers
    response = send(site, "POST", "/api/generate", json=GENERATE, headers={"origin": "http://evil"})
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers
    assert not site.workers


def test_preflights_are_answered_ht21_ht23(make_site: MakeSite) -> None:
    asked = {
        "origin": "http://localhost:3000",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, x-stainless-os",
        "access-control-request-private-network": "true",
    }
    response = send(make_site(), "OPTIONS", "/v1/chat/completions", headers=asked)
    assert response.status_code == 204
    assert response.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert response.headers["access-control-allow-headers"] == "authorization, x-stainless-os"
    assert response.headers["access-control-allow-private-network"] == "true"
    assert "POST" in response.headers["access-control-allow-methods"]
    refused = send(make_site(), "OPTIONS", "/", headers={**asked, "origin": "http://evil.example"})
    assert refused.status_code == 403
