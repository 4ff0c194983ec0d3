"""What every route module needs: the service and the request id of a request, and bodies in the API document."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from fastapi import Request

from .body import Json, Schema, read
from .service import Service

S = TypeVar("S", bound=Schema)


def service_of(request: Request) -> Service:
    return cast(Service, request.app.state.service)


def request_id_of(request: Request) -> str:
    return cast(str, request.scope["request_id"])


async def read_body(request: Request, schema: type[S]) -> tuple[S, Json]:
    """The body as `schema`, and as it came."""
    return await read(request, schema, service_of(request).config.max_body)


def documented(schema: type[Schema]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads its body itself."""
    reference = {"$ref": f"#/components/schemas/{schema.__name__}"}
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": reference}},
        }
    }
