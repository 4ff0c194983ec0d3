"""Ollama routes that change which models there are: pull, create, copy, delete, blobs; and what is not served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from ...errors import EmberdError, ModelFileError, NotSupportedError
from ...models.create import copy_model, create_from_blob, create_from_model
from ...models.pull import Listener
from ...models.store import ModelStore
from ...models.upload import Upload
from ..body import ignored_header
from ..errors import ollama_error
from ..routing import documented, read_body, service_of
from ..stream import LineStream, while_connected
from .library_schema import CopyRequest, CreateRequest, DeleteRequest, PullRequest

router = APIRouter(prefix="/api")
BODIES = (PullRequest, CreateRequest, CopyRequest, DeleteRequest)
Json = dict[str, Any]


@router.post("/pull", openapi_extra=documented(PullRequest))
async def pull(request: Request) -> Response:
    body, raw = await read_body(request, PullRequest)
    listener = service_of(request).pulls.join(body.wanted(), bool(body.insecure))
    headers = ignored_header(raw, PullRequest)
    if body.stream is not False:
        return LineStream(_pull_lines(listener), listener.close, headers)
    try:
        await while_connected(request, listener.end())
    finally:
        listener.close()
    return JSONResponse({"status": "success"}, headers=headers)


async def _pull_lines(listener: Listener) -> AsyncIterator[Json]:
    try:
        async for line in listener.lines():
            yield line
    except EmberdError as error:
        yield ollama_error(error)


@router.post("/create", openapi_extra=documented(CreateRequest))
async def create(request: Request) -> Response:
    body, raw = await read_body(request, CreateRequest)
    body.refuse_unserved()
    store = service_of(request).manager.store
    lines = await asyncio.to_thread(_create, store, body)
    headers = ignored_header(raw, CreateRequest)
    if body.stream is False:
        return JSONResponse(lines[-1], headers=headers)
    return LineStream(_told(lines), lambda: None, headers)


def _create(store: ModelStore, body: CreateRequest) -> list[Json]:
    """Lines of progress. Nothing is written before all is found right. Raises EmberdError."""
    name, recipe = body.wanted(), body.recipe()
    if body.from_:
        create_from_model(store, name, body.from_, recipe)
        source = f"using model {body.from_:.512}"
    else:
        digest = body.blob()
        create_from_blob(store, name, digest, recipe)
        source = f"using existing layer {digest}"
    return [{"status": text} for text in (source, "writing manifest", "success")]


async def _told(lines: list[Json]) -> AsyncIterator[Json]:
    for line in lines:
        yield line


@router.post("/copy", openapi_extra=documented(CopyRequest))
async def copy(request: Request) -> Response:
    body, _ = await read_body(request, CopyRequest)
    store = service_of(request).manager.store
    await asyncio.to_thread(copy_model, store, body.source, body.destination)
    return Response()


@router.delete("/delete", openapi_extra=documented(DeleteRequest))
async def delete(request: Request) -> Response:
    """A loaded model is unloaded, unless it was loaded under another name of the same file; a reply that still runs has
    its file until it ends."""
    body, _ = await read_body(request, DeleteRequest)
    manager, name = service_of(request).manager, body.wanted()
    await asyncio.to_thread(manager.store.deletable, name)
    with suppress(ModelFileError):
        stored = await manager.find(name)
        loaded = manager.loaded_as(stored)
        if loaded is None or loaded.name == stored.name:
            await manager.unload(name)
    await asyncio.to_thread(manager.store.delete, name)
    return Response()


@router.get("/blobs/{digest}")
async def has_blob(request: Request, digest: str) -> Response:
    """For HEAD: whether the blob is here. GET gives no more."""
    path = service_of(request).manager.store.pulled.blob(digest)
    return Response(status_code=200 if path.is_file() else 404)


@router.post("/blobs/{digest}")
async def take_blob(request: Request, digest: str) -> Response:
    upload = Upload(service_of(request).manager.store.pulled, digest)
    try:
        async for chunk in request.stream():
            if upload.add(chunk):
                await asyncio.to_thread(upload.write)
        is_new = await asyncio.to_thread(upload.finish)
    finally:
        upload.close()
    return Response(status_code=201 if is_new else 200)


def _unserved(method: str, path: str) -> None:
    async def refuse() -> Response:
        raise NotSupportedError(f"{method} /api{path} is not supported by this build of emberd")

    router.add_api_route(path, refuse, methods=[method], include_in_schema=False)


for _path in ("/push", "/me", "/signout"):
    _unserved("POST", _path)
