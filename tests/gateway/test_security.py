"""Who is let in: API keys and scopes (HT-05, K35)."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import ollama
import openai
import pytest

from emberd import logs
from emberd.config import Config
from emberd.errors import ConfigError
from emberd.gateway import access
from emberd.keys import SCOPES, ApiKey, granted, parse_key, parse_keys, read_keys
from site_fakes import Site, routes, run

MakeSite = Callable[..., Site]
KEY = "k-" + secrets.token_hex(8)
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def send(site: Site, method: str, path: str, **options: Any) -> httpx.Response:
    async def work() -> httpx.Response:
        async with site.client() as client:
            return await client.request(method, path, **options)

    return run(work())


def test_the_walk_finds_all_kinds_of_routes(make_site: MakeSite) -> None:
    found = routes(make_site().app)
    assert {
        ("POST", "/v1/chat/completions"),
        ("DELETE", "/api/delete"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
        ("GET", "/v1/models/a/b:c"),
    } <= found


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("wrong"),
        {"x-api-key": "wrong"},
        bearer(""),
        bearer(KEY[:-1]),
        bearer(KEY + "x"),
        {"authorization": f"Basic {KEY}"},
        {"authorization": "Bearer \xff\xfe"},
        {"cookie": f"key={KEY}"},
    ],
)
def test_the_key_guards_every_route_k35(make_site: MakeSite, headers: dict[str, str]) -> None:
    site = make_site(api_keys=parse_keys(KEY))
    raw = {name: value.encode("latin-1") for name, value in headers.items()}

    async def work() -> None:
        async with site.client() as client:
            paths = {*routes(site.app), ("GET", "/nothing"), ("POST", "/api/nothing")}
            paths |= {("HEAD", path) for method, path in paths if method == "GET"}
            for method, path in sorted(paths):
                reply = await client.request(method, path, json=CHAT, headers=raw)
                if path in ("/", "/health"):
                    assert reply.status_code == 200, (method, path)
                    continue
                assert reply.status_code == 401, (method, path)
                assert reply.headers["www-authenticate"] == "Bearer"
                assert reply.headers["x-request-id"]
                if method != "HEAD":
                    message = json.dumps(reply.json())
                    assert "API key" in message and KEY not in message

    run(work())
    assert not site.workers


def test_no_key_in_the_query_or_the_path_opens_anything(make_site: MakeSite) -> None:
    site = make_site(api_keys=parse_keys(KEY))
    for path in (f"/api/tags?key={KEY}", f"/api/tags?api_key={KEY}", "//health/../api/tags"):
        assert send(site, "GET", path).status_code == 401


@pytest.mark.parametrize(
    "headers", [bearer(KEY), {"x-api-key": KEY}, {"authorization": f"bearer  {KEY}"}]
)
def test_the_right_key_is_served(make_site: MakeSite, headers: dict[str, str]) -> None:
    site = make_site(api_keys=parse_keys(f"other,{KEY}"))
    assert send(site, "POST", "/v1/chat/completions", json=CHAT, headers=headers).is_success
    assert send(site, "GET", "/api/tags", headers=headers).is_success
    assert send(site, "GET", "/metrics", headers=headers).is_success


def test_one_known_key_beside_an_unknown_one_is_enough(make_site: MakeSite) -> None:
    headers = {**bearer("none"), "x-api-key": KEY}
    assert send(make_site(api_keys=parse_keys(KEY)), "GET", "/api/tags", headers=headers).is_success


def test_errors_without_a_key_have_the_shape_of_the_api_oc40_ol05_an22(make_site: MakeSite) -> None:
    site = make_site(api_keys=parse_keys(KEY))
    error = send(site, "GET", "/v1/models").json()["error"]
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    assert isinstance(send(site, "GET", "/api/tags").json()["error"], str)
    answer = send(site, "POST", "/v1/messages").json()
    assert (answer["type"], answer["error"]["type"]) == ("error", "authentication_error")


def test_any_key_is_accepted_where_none_is_set_ht05(make_site: MakeSite) -> None:
    for headers in (
        {},
        bearer("anything"),
        {"x-api-key": "anything"},
        {"authorization": "Basic eA"},
    ):
        assert send(make_site(), "GET", "/v1/models", headers=headers).is_success


def test_every_route_says_which_scope_it_needs(make_site: MakeSite) -> None:
    """A new route fails here until gateway/access.py names it; until then it needs `manage`."""
    named = {*access.OPEN, *(route for found in access.ROUTES.values() for route in found)}
    prefixes = tuple(route[:-1] for route in named if route.endswith("*"))
    for method, path in routes(make_site().app):
        if method != "HEAD":
            route = f"{method} {path}"
            assert route in named or route.startswith(prefixes), f"{route}: name it in access.py"


def test_a_new_route_is_closed_until_it_is_opened_k35(make_site: MakeSite) -> None:
    site = make_site(api_keys=parse_keys(f"{KEY},small:infer+list"))
    site.app.add_api_route("/brand/new", lambda: {"ok": True})
    assert send(site, "GET", "/brand/new").status_code == 401
    assert send(site, "GET", "/brand/new", headers=bearer("small")).status_code == 403
    assert send(site, "GET", "/brand/new", headers=bearer(KEY)).json() == {"ok": True}


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("POST", "/v1/chat/completions", "infer"),
        ("POST", "/api/generate", "infer"),
        ("GET", "/v1/models", "list"),
        ("HEAD", "/v1/models", "list"),
        ("GET", "/v1/models/org/name:q4", "list"),
        ("DELETE", "/v1/models/org/name:q4", "manage"),
        ("POST", "/api/show", "list"),
        ("GET", "/metrics", "list"),
        ("GET", "/openapi.json", "list"),
        ("DELETE", "/api/delete", "manage"),
        ("POST", "/api/pull", "manage"),
        ("GET", "/unknown", "manage"),
        ("GET", "/v1/modelsx", "manage"),
    ],
)
def test_a_key_opens_its_scopes_only(
    make_site: MakeSite, method: str, path: str, scope: str
) -> None:
    assert access.scope_of(method, path) == scope
    one_each = ",".join(f"key-{name}:{name}" for name in SCOPES)
    site = make_site(api_keys=parse_keys(one_each))
    for name in SCOPES:
        status = send(site, method, path, json=CHAT, headers=bearer(f"key-{name}")).status_code
        assert (status == 403) == (name != scope), (name, status)
    refused = send(site, method, path, json=CHAT, headers=bearer("key-none"))
    assert refused.status_code == 401


def test_the_api_document_tells_how_keys_are_sent(make_site: MakeSite) -> None:
    document = send(make_site(), "GET", "/openapi.json").json()
    schemes = document["components"]["securitySchemes"]
    assert schemes["x-api-key"] == {"type": "apiKey", "in": "header", "name": "x-api-key"}
    assert document["security"] == [{}, *({name: []} for name in schemes)]


def test_what_a_key_lacks_is_said(make_site: MakeSite) -> None:
    site = make_site(api_keys=parse_keys("small:infer+list"))
    error = send(site, "DELETE", "/api/delete", headers=bearer("small")).json()["error"]
    assert "'manage'" in error and "infer, list" in error


def test_a_preflight_needs_no_key_and_no_key_beats_cors_k35(make_site: MakeSite) -> None:
    site = make_site(api_keys=parse_keys(KEY))
    asked = {"origin": "http://localhost:3000", "access-control-request-method": "POST"}
    assert send(site, "OPTIONS", "/v1/chat/completions", headers=asked).status_code == 204
    refused = send(site, "GET", "/v1/models", headers={"origin": "http://localhost:3000"})
    assert refused.status_code == 401  # a page can read why
    assert refused.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert send(site, "OPTIONS", "/v1/models").status_code == 401


def test_the_key_is_never_logged_k35(make_site: MakeSite, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    site = make_site(api_keys=parse_keys(f"{KEY},{KEY}2:infer"), log_prompts=True)
    send(site, "POST", "/v1/chat/completions", json=CHAT, headers=bearer(KEY))
    send(site, "POST", "/v1/chat/completions", json=CHAT, headers=bearer(f"{KEY}-wrong"))
    send(site, "DELETE", "/api/delete", headers={"x-api-key": f"{KEY}2"})
    send(site, "GET", f"/api/tags?key={KEY}", headers=bearer(KEY))
    ours = [record for record in caplog.records if record.name != "httpx"]  # that is the client
    lines = [logs.JsonLines().format(record) for record in ours]
    lines += [logs.TextLines().format(record) for record in ours]
    assert len(lines) >= 8
    assert not [line for line in lines if KEY in line]
    assert KEY not in repr(site.config)
    page = send(site, "GET", "/metrics", headers=bearer(KEY)).text
    assert KEY not in page


def test_all_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr(hmac, "compare_digest", compare)
    keys = [ApiKey("first"), ApiKey("second", frozenset({"list"})), ApiKey("third")]
    assert granted(keys, ["first"]) == {*SCOPES}
    assert len(compared) == 3, "a match ends the comparison early"
    assert granted(keys, ["second"]) == {"list"}
    assert granted(keys, ["none", "é"]) is None
    assert len(compared) == 12


@pytest.mark.parametrize("text", ["a b", "", "kéy", "a:rule", "a:", "x\x00", 'a"b', "k#1"])
def test_a_bad_key_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(ValueError) as failure:
        parse_key(text)
    assert "kéy" not in str(failure.value) and "x\x00" not in str(failure.value)


def test_keys_come_from_the_variable_and_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# operators\n{KEY}  # the first\n\nsmall:infer+list\n")
    config = Config.from_env({"EMBERD_API_KEYS": "one, two:list"}, api_key_file=str(path))
    assert [key.secret for key in config.keys()] == ["one", "two", KEY, "small"]
    assert config.keys()[3].scopes == {"infer", "list"}
    path.write_text("good\nbad key\n")
    with pytest.raises(ConfigError, match="line 2") as failure:
        config.keys()
    assert "bad key" not in str(failure.value)
    path.write_text("# nothing\n")
    with pytest.raises(ConfigError, match="holds no key"):
        read_keys(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "none")
    with pytest.raises(ConfigError, match="EMBERD_API_KEYS") as failure:
        Config.from_env({"EMBERD_API_KEYS": "top secret"})
    assert "top secret" not in str(failure.value)


def test_the_client_packages_send_keys_and_tell_why_not_cl03_cl04(make_site: MakeSite) -> None:
    site = make_site({"prefill": False}, api_keys=parse_keys(f"{KEY},small:infer"), queue_limit=1)
    messages: Any = CHAT["messages"]

    async def work() -> None:
        async with site.listening() as (url, _):

            def connect(key: str) -> openai.AsyncOpenAI:
                return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)

            async with connect(KEY) as full, connect("small") as small, connect("bad") as bad:
                with pytest.raises(openai.AuthenticationError) as caught:
                    await bad.models.list()
                assert caught.value.code == "invalid_api_key"
                with pytest.raises(openai.PermissionDeniedError, match="'list'"):
                    await small.models.list()
                assert [model.id async for model in full.models.list()] == ["tiny"]
                task = asyncio.ensure_future(
                    small.chat.completions.create(model="tiny", messages=messages)
                )
                await site.until(lambda: site.service.num_sequences)
                with pytest.raises(openai.RateLimitError) as busy:
                    await full.chat.completions.create(model="tiny", messages=messages)
                assert busy.value.response.headers["retry-after"] == "1"
                site.workers[0].prefilled.set()
                assert (await task).choices[0].message.content == "Hello world"
            async with ollama.AsyncClient(url) as native:
                with pytest.raises(ollama.ResponseError, match="API key is needed") as refused:
                    await native.chat("tiny", messages)
                assert refused.value.status_code == 401
            async with ollama.AsyncClient(url, headers=bearer(KEY)) as native:
                assert (await native.chat("tiny", messages)).message.content == "Hello world"

    run(work())
