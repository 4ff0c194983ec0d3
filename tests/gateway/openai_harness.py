"""Requests to the OpenAI routes, without sockets, for the tests of whole answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from site_fakes import Site, run

MakeSite = Callable[..., Site]
Json = dict[str, Any]


def chat_body(trigger: str, **fields: Any) -> Json:
    return {"model": "tiny", "messages": [{"role": "user", "content": trigger}], **fields}


def post_all(site: Site, *requests: tuple[str, Json]) -> list[tuple[int, Json, Any]]:
    async def work() -> list[tuple[int, Json, Any]]:
        async with site.client() as client:
            answers = [await client.post(path, json=body) for path, body in requests]
            return [(answer.status_code, answer.json(), answer.headers) for answer in answers]

    return run(work())


def post(site: Site, path: str, body: Json) -> tuple[int, Json, Any]:
    return post_all(site, (path, body))[0]


def chat(site: Site, trigger: str, **fields: Any) -> tuple[int, Json, Any]:
    return post(site, "/v1/chat/completions", chat_body(trigger, **fields))
