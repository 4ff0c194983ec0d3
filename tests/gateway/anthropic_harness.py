"""Requests to POST /v1/messages and a strict reader of its streams, for the tests of that API."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from emberd.config import Config
from site_fakes import CONTEXT, Site, run
from tiny_gguf import script_model

MakeSite = Callable[..., Site]
Json = dict[str, Any]
MESSAGES = "/v1/messages"
COUNT = f"{MESSAGES}/count_tokens"
THINKS = (
    "{% for t in tools or () %}{{ t['function']['name'] }}{% endfor %}"
    "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{# <think> </think> <tool_call> #}"
)


def body_of(trigger: str, **fields: Any) -> Json:
    messages = [{"role": "user", "content": trigger}]
    return {"model": "tiny", "max_tokens": 100, "messages": messages, **fields}


def post(site: Site, path: str, *bodies: Json, **headers: str) -> list[httpx.Response]:
    async def work() -> list[httpx.Response]:
        async with site.client(**headers) as client:
            return [await client.post(path, content=json.dumps(body)) for body in bodies]

    return run(work())


def ask(site: Site, trigger: str, **fields: Any) -> Json:
    (response,) = post(site, MESSAGES, body_of(trigger, **fields))
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def stream(site: Site, body: Json) -> httpx.Response:
    async def work() -> httpx.Response:
        async with site.http() as client:
            return await client.post(MESSAGES, json={**body, "stream": True})

    return run(work())


def events(text: str) -> list[Json]:
    """The data of each event, whose name must be its type."""
    assert text.endswith("\n\n")
    found = []
    for part in text[:-2].split("\n\n"):
        match = re.fullmatch(r"event: (\w+)\ndata: (\{[^\n]+\})", part)
        assert match, part
        found.append(json.loads(match[2]))
        assert found[-1]["type"] == match[1]
    return found


def thinking_site(folder: Path, scripts: dict[str, list[Any]], **site: Any) -> Site:
    """A site whose model has a thinking template."""
    (folder / "models").mkdir(parents=True)
    metadata = {"tokenizer.chat_template": THINKS}
    script_model(
        folder / "models" / "tiny.gguf", scripts, context_length=CONTEXT, metadata=metadata
    )
    return Site(Config(models_dir=folder / "models", cache_dir=folder / "cache"), **site)
