"""What every route module needs: the service and the caller of a request, and bodies in the API document."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, TypeVar, cast

from fastapi import Request

from .. import logs
from .body import LARGE, Json, Schema, ignored_fields, load, parse, read_bytes, refuse_ignored
from .requests import Caller
from .service import Service

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=Schema)


def service_of(request: Request) -> Service:
    return cast(Service, request.app.state.service)


def caller_of(request: Request) -> Caller:
    return cast(Caller, request.scope["caller"])


async def read_body(request: Request, schema: type[S]) -> tuple[S, Json]:
    """The body as `schema`, and as it came. Raises BadRequestError, BodyTooLargeError."""
    config = service_of(request).config
    encoding = request.headers.get("content-encoding", "")
    content = await read_bytes(request, config.max_body)

    def read() -> tuple[S, Json]:
        body = load(content, encoding, config.max_body)
        if config.log_prompts:
            logger.info("request body", extra=logs.fields(body=body))
        parsed = parse(schema, body)
        if config.strict:
            refuse_ignored(ignored_fields(body, schema))
        return parsed, body

    return await asyncio.to_thread(read) if encoding or len(content) > LARGE else read()


def documented(schema: type[Schema]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads its body itself."""
    reference = {"$ref": f"#/components/schemas/{schema.__name__}"}
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": reference}},
        }
    }
