"""Edge: the outermost ASGI layer. Request ids, paths made plain, HEAD, the guards, the last error, one log line.

Everything here holds for every route alike; what a request asks for is not looked at.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Iterable, Sequence
from typing import cast

from fastapi.responses import Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import logs
from ..errors import OverloadedError
from ..keys import ApiKey
from .access import OPEN, caller_of, denial
from .errors import CLIENT_GONE, error_response
from .security import (
    cors_headers,
    host_allowed,
    is_loopback,
    origin_allowed,
    preflight_headers,
)
from .service import LEAVING, Service

logger = logging.getLogger(__name__)

_ASKS_TO_ASK = "access-control-request-method"
_METHODS = {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_PROBES = {*OPEN, "GET /metrics"}  # asked every few seconds by machines


class Edge:
    """Wraps the application. `keys` are those that callers must have; none: everybody may call."""

    def __init__(self, app: ASGIApp, service: Service, keys: Sequence[ApiKey]) -> None:
        config = service.config
        self._app = app
        self._service = service
        self._keys = keys
        self._check_host = config.socket is None and is_loopback(config.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        assert scope["type"] == "http", "the server takes no websockets"
        request_id = f"req_{secrets.token_hex(12)}"
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        config = self._service.config
        allowed = not origin or origin_allowed(origin, headers.get("host", ""), config.origins)
        answer = _Answer(send, request_id, cors_headers(origin) if origin and allowed else ())
        started = time.perf_counter()
        path = _plain_path(scope["path"])
        inner = {**scope, "path": path, "raw_path": path.encode(), "request_id": request_id}
        if scope["method"] == "HEAD":
            inner["method"] = "GET"
            answer.without_body = True
        token = logs.request_id.set(request_id)
        try:
            refusal = self._refuse_place(headers, allowed)
            preflight = scope["method"] == "OPTIONS" and _ASKS_TO_ASK in headers
            if refusal is None and not preflight:
                refusal = self._refuse_caller(headers, inner["method"], path)
            if refusal is not None:
                self._service.metrics.failed(refusal)
                await error_response(refusal, inner)(inner, receive, answer)
            elif preflight:
                await _preflight(headers)(inner, receive, answer)
            else:
                inner["caller"] = caller_of(self._keys, headers, request_id, path)
                await self._app(inner, receive, answer)
        except Exception as error:
            logger.exception("request failed")
            self._service.metrics.failed(error)
            if answer.status is None:
                await error_response(error, inner)(inner, receive, answer)
        finally:
            self._tell(inner, scope, answer.status, time.perf_counter() - started)
            logs.request_id.reset(token)

    def _refuse_place(self, headers: Headers, origin_ok: bool) -> Exception | None:
        """Where the request comes from: the name it was sent to, and the page that sent it."""
        names = self._service.config.allowed_hosts
        if self._check_host and not host_allowed(headers.get("host", ""), names):
            return HTTPException(
                403, "this Host is not served; set EMBERD_ALLOWED_HOSTS to allow its name"
            )
        if not origin_ok:
            return HTTPException(
                403, "pages of this origin may not use the API; set EMBERD_ORIGINS to allow it"
            )
        return None

    def _refuse_caller(self, headers: Headers, method: str, path: str) -> Exception | None:
        if (refusal := denial(self._keys, headers, method, path)) is not None:
            return refusal
        return OverloadedError(LEAVING) if self._service.leaving else None

    def _tell(self, inner: Scope, scope: Scope, status: int | None, seconds: float) -> None:
        method, path = inner["method"], inner["path"]
        status = CLIENT_GONE if status is None else status
        route = getattr(inner.get("route"), "path", "none")
        self._service.metrics.answered(
            route, method if method in _METHODS else "other", status, seconds
        )
        quiet = f"{method} {path}" in _PROBES and status < 400
        values = logs.fields(
            method=scope["method"][:32],
            path=path[:200],
            status=status,
            ms=round(seconds * 1e3, 1),
            client=(scope.get("client") or ("",))[0],
        )
        level = logging.WARNING if status >= 500 else logging.DEBUG if quiet else logging.INFO
        logger.log(level, "request", extra=values)


class _Answer:
    """A `send` that adds headers, and knows what was answered."""

    def __init__(self, send: Send, request_id: str, headers: Iterable[tuple[str, str]]) -> None:
        self.status: int | None = None
        self.without_body = False
        self._send = send
        self._request_id = request_id
        self._headers = list(headers)

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


def _plain_path(path: str) -> str:
    """No double and no trailing slash: both kinds of base URL are in use, and a redirect loses bodies. Of a whole
    URL, as proxies are sent, the path."""
    path = re.sub("^https?://[^/]*", "", path, flags=re.IGNORECASE)
    return re.sub("/{2,}", "/", path).rstrip("/") or "/"


def _preflight(headers: Headers) -> Response:
    requested = headers.get("access-control-request-headers", "")
    private = headers.get("access-control-request-private-network", "") == "true"
    return Response(status_code=204, headers=dict(preflight_headers(requested, private)))
