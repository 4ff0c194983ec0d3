"""Requests to /v1/responses, and its streams read strictly."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx

from site_fakes import Site, run

Json = dict[str, Any]
RESPONSES = "/v1/responses"


def post(site: Site, path: str, *bodies: Json) -> list[httpx.Response]:
    """The answers to bodies, of which all name the model `tiny` unless they say otherwise."""

    async def work() -> list[httpx.Response]:
        async with site.client() as client:
            return [await client.post(path, json={"model": "tiny", **body}) for body in bodies]

    return run(work())


def ask(site: Site, **fields: Any) -> Json:
    (response,) = post(site, RESPONSES, fields)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def stream(site: Site, **fields: Any) -> httpx.Response:
    async def work() -> httpx.Response:
        async with site.listening() as (url, _), httpx.AsyncClient(base_url=url) as client:
            return await client.post(RESPONSES, json={"model": "tiny", **fields, "stream": True})

    return run(work())


def events(text: str) -> list[Json]:
    """The data of each event, whose name must be its type and whose number its place."""
    assert text.endswith("\n\n")
    found = []
    for place, part in enumerate(text[:-2].split("\n\n")):
        match = re.fullmatch(r"event: ([\w.]+)\ndata: (\{[^\n]+\})", part)
        assert match, part
        found.append(json.loads(match[2]))
        assert found[-1]["type"] == match[1] and found[-1]["sequence_number"] == place
    return found
