"""Pulling over HTTP, for tests: the lines of a pull, what is listed afterwards, and which files are left."""

from __future__ import annotations

import json
from typing import Any

import httpx

from registry_fakes import Registry
from site_fakes import Site

Json = dict[str, Any]
NAME = "library/small:latest"
"""The model of the fixture `registry`."""


def weights(registry: Registry) -> str:
    digest: str = registry.manifests[NAME]["layers"][0]["digest"]
    return digest


def left(site: Site) -> set[str]:
    """Names of all files below the models folder."""
    return {path.name for path in site.store.models_dir.rglob("*") if path.is_file()}


async def pull(client: httpx.AsyncClient, model: str = "small", **more: Any) -> list[Json]:
    reply = await client.post("/api/pull", json={"model": model, **more}, timeout=30)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in reply.text.splitlines()]


async def names(client: httpx.AsyncClient) -> list[str]:
    return [model["name"] for model in (await client.get("/api/tags")).json()["models"]]
