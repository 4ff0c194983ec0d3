"""Edge: the outermost ASGI layer. Request ids, paths made plain, HEAD, the Host and Origin guards, the last error.

Everything here holds for every route alike; what a request asks for is not looked at.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Iterable
from typing import cast

from fastapi.responses import Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import OverloadedError
from .errors import error_response
from .security import (
    cors_headers,
    host_allowed,
    is_loopback,
    origin_allowed,
    preflight_headers,
)
from .service import LEAVING, Service

logger = logging.getLogger(__name__)


class Edge:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._check_host = is_loopback(service.config.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{secrets.token_hex(12)}"
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        config = self._service.config
        allowed = not origin or origin_allowed(origin, headers.get("host", ""), config.origins)
        answer = _Answer(send, request_id, cors_headers(origin) if origin and allowed else ())
        path = _plain_path(scope["path"])
        inner = {**scope, "path": path, "raw_path": path.encode(), "request_id": request_id}
        if scope["method"] == "HEAD":
            inner["method"] = "GET"
            answer.without_body = True
        try:
            refusal = self._refuse(headers, allowed)
            if refusal is not None:
                await error_response(refusal, path)(inner, receive, answer)
            elif "access-control-request-method" in headers and scope["method"] == "OPTIONS":
                await _preflight(headers)(inner, receive, answer)
            else:
                await self._app(inner, receive, answer)
        except Exception as error:
            logger.exception("%s %s %s failed", request_id, scope["method"], path)
            if answer.status is None:
                await error_response(error, path)(inner, receive, answer)
        finally:
            answer.log(scope["method"], path)

    def _refuse(self, headers: Headers, origin_ok: bool) -> Exception | None:
        names = self._service.config.allowed_hosts
        if self._check_host and not host_allowed(headers.get("host", ""), names):
            return HTTPException(
                403, "this Host is not served; set EMBERD_ALLOWED_HOSTS to allow its name"
            )
        if not origin_ok:
            return HTTPException(
                403, "pages of this origin may not use the API; set EMBERD_ORIGINS to allow it"
            )
        if self._service.leaving:
            return OverloadedError(LEAVING)
        return None


class _Answer:
    """A `send` that adds headers, and knows what was answered."""

    def __init__(self, send: Send, request_id: str, headers: Iterable[tuple[str, str]]) -> None:
        self.status: int | None = None
        self.without_body = False
        self._send = send
        self._request_id = request_id
        self._headers = list(headers)
        self._started = time.perf_counter()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = cast(int, message["status"])
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = headers["request-id"] = self._request_id
            for name, value in self._headers:
                headers[name] = value
        elif message["type"] == "http.response.body" and self.without_body:
            message = {**message, "body": b""}
        await self._send(message)

    def log(self, method: str, path: str) -> None:
        milliseconds = (time.perf_counter() - self._started) * 1e3
        logger.info(
            "%s %s %.200r %s %.0f ms", self._request_id, method, path, self.status, milliseconds
        )


def _plain_path(path: str) -> str:
    """No double and no trailing slash: both kinds of base URL are in use, and a redirect loses bodies. Of a whole
    URL, as proxies are sent, the path."""
    path = re.sub("^https?://[^/]*", "", path, flags=re.IGNORECASE)
    return re.sub("/{2,}", "/", path).rstrip("/") or "/"


def _preflight(headers: Headers) -> Response:
    requested = headers.get("access-control-request-headers", "")
    private = headers.get("access-control-request-private-network", "") == "true"
    return Response(status_code=204, headers=dict(preflight_headers(requested, private)))
