"""Request bodies: gzip and zstd within the limit (HT-06), sizes (OC-40), and fields that do nothing (OC-14, strict)."""

from __future__ import annotations

import gzip
import json
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from emberd.errors import BadRequestError
from emberd.gateway.encoding import BodyTooLargeError, decompress
from site_fakes import Site, run

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MakeSite = Callable[..., Site]
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
PLAIN = json.dumps(CHAT).encode()
ROUTES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "tiny", "prompt": "a"},
    "/api/chat": {**CHAT, "stream": False},
    "/api/generate": {"model": "tiny", "prompt": "a", "stream": False},
}
COMPRESS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstd.compress}


def post(site: Site, path: str, **options: Any) -> httpx.Response:
    async def work() -> httpx.Response:
        async with site.client() as client:
            return await client.post(path, **options)

    return run(work())


@pytest.mark.parametrize("name", ["gzip", "zstd", "x-gzip", " ZSTD "])
@pytest.mark.parametrize("path", ROUTES)
def test_compressed_bodies_are_read_ht06(make_site: MakeSite, name: str, path: str) -> None:
    content = COMPRESS[name.strip().lower().removeprefix("x-")](json.dumps(ROUTES[path]).encode())
    response = post(make_site(), path, content=content, headers={"content-encoding": name})
    assert response.status_code == 200
    assert "Hello world" in response.text


@pytest.mark.parametrize("name", COMPRESS)
def test_a_bomb_is_refused_and_costs_little_ht06(make_site: MakeSite, name: str) -> None:
    bomb = COMPRESS[name](bytes(40_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLargeError, match="EMBERD_MAX_BODY"):
            decompress(bomb, name, 100_000)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    response = post(
        make_site(max_body=1_000_000),
        "/v1/chat/completions",
        content=bomb,
        headers={"content-encoding": name},
    )
    assert response.status_code == 413


@pytest.mark.parametrize("name", COMPRESS)
def test_the_limit_is_on_the_plain_bytes(name: str) -> None:
    data = COMPRESS[name](PLAIN)
    assert decompress(data, name, len(PLAIN)) == PLAIN
    with pytest.raises(BodyTooLargeError):
        decompress(data, name, len(PLAIN) - 1)


@pytest.mark.parametrize("name", COMPRESS)
def test_several_members_are_one_body_and_share_the_limit(name: str) -> None:
    half = len(PLAIN) // 2
    data = COMPRESS[name](PLAIN[:half]) + COMPRESS[name](PLAIN[half:])
    assert decompress(data, name, len(PLAIN)) == PLAIN
    with pytest.raises(BodyTooLargeError):
        decompress(data, name, len(PLAIN) - 1)


@pytest.mark.parametrize("name", COMPRESS)
@pytest.mark.parametrize("spoil", ["cut", "junk", "tail", "flip"])
def test_damaged_data_is_400_ht06(make_site: MakeSite, name: str, spoil: str) -> None:
    good = COMPRESS[name](PLAIN * 40)
    damaged = {
        "cut": good[:-5],
        "junk": b"junk and more junk",
        "tail": good + b"junk",
        "flip": good[:4] + bytes(byte ^ 0xFF for byte in good[4:]),
    }[spoil]
    headers = {"content-encoding": name}
    response = post(make_site(), "/api/chat", content=damaged, headers=headers)
    assert response.status_code == 400
    assert name in response.json()["error"]


def test_a_frame_that_wants_a_huge_window_is_refused() -> None:
    options = {zstd.CompressionParameter.window_log: 27}
    compressor = zstd.ZstdCompressor(options=options)
    data = compressor.compress(PLAIN) + compressor.flush()  # of unknown size: the window is kept
    with pytest.raises(BadRequestError, match="not valid zstd"):
        decompress(data, "zstd", 1 << 20)


@pytest.mark.parametrize("name", ["br", "gzip, zstd", "deflate", "x" * 300])
def test_other_encodings_are_refused_by_name(make_site: MakeSite, name: str) -> None:
    headers = {"content-encoding": name}
    response = post(make_site(), "/v1/chat/completions", content=PLAIN, headers=headers)
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"] == "content-encoding"
    assert name[:60] in error["message"] and len(error["message"]) < 200


def test_a_body_that_announces_its_size_is_refused_before_it_is_read(make_site: MakeSite) -> None:
    site = make_site(max_body=1000)

    async def work() -> None:
        async with site.listening() as (url, _), httpx.AsyncClient(trust_env=False) as client:
            response = await client.post(f"{url}/v1/chat/completions", content=bytes(5_000_000))
            assert response.status_code == 413
            assert "EMBERD_MAX_BODY" in response.json()["error"]["message"]

    run(work())


def test_a_number_of_thousands_of_digits_is_refused_in_the_caller_s_words(
    make_site: MakeSite,
) -> None:
    content = PLAIN[:-1] + b', "seed": ' + b"9" * 5000 + b"}"
    response = post(make_site(), "/v1/chat/completions", content=content)
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert "5000 digits" in message and "sys." not in message


def test_large_bodies_are_read_whole(make_site: MakeSite) -> None:
    body = {**CHAT, "metadata": {"note": "é" * 500_000}}
    assert post(make_site(), "/v1/chat/completions", json=body).status_code == 200
    over = make_site(max_body=400_000)
    assert post(over, "/v1/chat/completions", json=body).status_code == 413


@pytest.mark.parametrize("path", ROUTES)
def test_fields_that_do_nothing_are_listed_oc14(make_site: MakeSite, path: str) -> None:
    body = {**ROUTES[path], "store": True, "user": "u", "strange field": 1, "seen": None}
    response = post(make_site(), path, json=body)
    assert response.status_code == 200
    assert response.headers["x-emberd-ignored"] == "store, user"


@pytest.mark.parametrize("path", ROUTES)
def test_the_strict_refuse_them(make_site: MakeSite, path: str) -> None:
    site = make_site(strict=True)
    response = post(site, path, json={**ROUTES[path], "store": True, "user": "u"})
    assert response.status_code == 400
    assert "'store', 'user'" in response.text
    if path.startswith("/v1"):
        assert response.json()["error"]["param"] == "store"
    assert not site.workers
    assert post(make_site(strict=True), path, json=ROUTES[path]).status_code == 200


def test_the_strict_look_into_objects_too(make_site: MakeSite) -> None:
    site = make_site(strict=True)
    body = {**ROUTES["/api/chat"], "options": {"temperature": 0, "mirostat": 2}}
    assert "'options.mirostat'" in post(site, "/api/chat", json=body).json()["error"]
    body = {**CHAT, "stream": True, "stream_options": {"include_obfuscation": False}}
    error = post(site, "/v1/chat/completions", json=body).json()["error"]
    assert error["param"] == "stream_options.include_obfuscation"


def test_the_strict_refuse_what_this_model_or_daemon_cannot_use(make_site: MakeSite) -> None:
    site = make_site(strict=True)
    asks_to_think = {**CHAT, "reasoning_effort": "high"}
    assert post(make_site(), "/v1/chat/completions", json=asks_to_think).is_success
    error = post(site, "/v1/chat/completions", json=asks_to_think).json()["error"]
    assert error["param"] == "reasoning_effort"
    site = make_site(strict=True)
    server_tool = {"type": "web_search_20250305", "name": "web_search"}
    body = {**CHAT, "max_tokens": 5, "tools": [server_tool]}
    assert post(make_site(), "/v1/messages", json=body).is_success
    refused = post(site, "/v1/messages", json=body)
    assert refused.status_code == 400
    assert "tools.web_search" in refused.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat"])
def test_a_field_that_takes_several_kinds_is_named_alone_k36(
    make_site: MakeSite, path: str
) -> None:
    """Not with the kind that it was last tried as."""
    for content in ({}, {"text": "a"}, 5):
        body = {"model": "tiny", "messages": [{"role": "user", "content": content}]}
        response = post(make_site(), path, json=body)
        assert response.status_code == 400
        assert "'messages[0].content':" in response.text
