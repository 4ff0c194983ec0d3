"""Exceptions to answers: one body for each API family, the same statuses for all.

The only place that knows error bodies. The family follows from the path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from ..errors import (
    BadRequestError,
    ContextOverflowError,
    DownloadError,
    EmberdError,
    ModelFileError,
    ModelNotFoundError,
    NotFoundError,
    NotSupportedError,
    OverloadedError,
    QueueFullError,
    RequestCancelledError,
    WorkerGoneError,
)
from .encoding import BodyTooLargeError

CLIENT_GONE = (
    499  # of a client that is gone never sent, since nobody is there; it is what the log shows
)
_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_OVERLOADED = {"openai": 503, "ollama": 503, "anthropic": 529}
_QUEUE_FULL = {**_OVERLOADED, "openai": 429}


def api_of(scope: Scope) -> str:
    """Whose error shape and statuses a request gets: openai, ollama or anthropic."""
    if _of_anthropic(scope):
        return "anthropic"
    return "ollama" if _is_under("/api", scope) else "openai"


def status_of(error: Exception, api: str = "openai") -> int:
    match error:
        case HTTPException():
            return error.status_code
        case BodyTooLargeError():
            return 413
        case BadRequestError() | ModelFileError():
            return 400
        case ModelNotFoundError() | NotFoundError():
            return 404
        case NotSupportedError():
            return 501 if error.param is None else 400  # a field is the caller's to leave out
        case DownloadError():
            return 502
        case QueueFullError():
            return _QUEUE_FULL[api]
        case OverloadedError() | WorkerGoneError():
            return _OVERLOADED[api]
        case RequestCancelledError():
            return CLIENT_GONE  # no SDK repeats it
    return 500


def error_response(error: Exception, scope: Scope) -> Response:
    """The answer to the request of `scope`, which ended in `error`."""
    status = status_of(error, api_of(scope))
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    if isinstance(error, OverloadedError | WorkerGoneError):
        headers["retry-after"] = str(error.retry_after)
    elif status >= 500:
        headers["x-should-retry"] = "false"  # it would fail again, after as much work
    return JSONResponse(_body(error, scope), status, headers)


def _body(error: Exception, scope: Scope) -> dict[str, Any]:
    match api_of(scope):
        case "anthropic":
            return anthropic_error(error, scope["request_id"])
        case "ollama":
            return ollama_error(error)
    return openai_error(error)


def _of_anthropic(scope: Scope) -> bool:
    """By the path; the routes that it shares with OpenAI's API are its own where its clients ask."""
    return _is_under("/v1/messages", scope) or (
        _is_under("/v1/models", scope) and "anthropic-version" in Headers(scope=scope)
    )


def _is_under(prefix: str, scope: Scope) -> bool:
    path: str = scope["path"]
    return path == prefix or path.startswith(f"{prefix}/")


def anthropic_error(error: Exception, request_id: str) -> dict[str, Any]:
    status = status_of(error, "anthropic")
    message = message_of(error)
    if isinstance(error, ContextOverflowError):  # agents know it by these words and make room
        message = (
            f"prompt is too long: {error.num_prompt_tokens} tokens > {error.context_length} maximum; "
            "shorten it, or serve a larger context with --ctx"
        )
    kind = _ANTHROPIC_TYPES.get(status, "api_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": request_id,
    }


def openai_error(error: Exception) -> dict[str, Any]:
    status = status_of(error)
    kind = _OPENAI_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    if isinstance(error, NotSupportedError):
        kind = "not_supported_error"
    body: dict[str, Any] = {
        "message": message_of(error),
        "type": kind,
        "param": getattr(error, "param", None),
        "code": _code(error),
    }
    if isinstance(error, ContextOverflowError):
        body |= {"n_prompt_tokens": error.num_prompt_tokens, "n_ctx": error.context_length}
    return {"error": body}


def ollama_error(error: Exception) -> dict[str, Any]:
    return {"error": message_of(error)}


def message_of(error: Exception) -> str:
    """For the caller: our own errors speak, anything else is our bug and stays in the log."""
    if isinstance(error, EmberdError):
        return error.message
    if isinstance(error, HTTPException):
        return str(error.detail)
    return "internal error; the daemon's log tells more"


async def handle(request: Request, error: Exception) -> Response:
    """Exception handler of the application."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=CLIENT_GONE)
    request.app.state.service.metrics.failed(error)
    return error_response(_described(error, request), request.scope)


def _described(error: Exception, request: Request) -> Exception:
    """Starlette's own 404 and 405 say only "Not Found"; ours say what was asked for."""
    if not isinstance(error, HTTPException):
        return error
    path = request.url.path if len(request.url.path) <= 200 else request.url.path[:200] + "..."
    details: Mapping[int, str] = {
        404: f"no route {request.method} {path}; /openapi.json lists the routes",
        405: f"{path} does not take {request.method}; see the Allow header",
    }
    detail = details.get(error.status_code, error.detail)
    return HTTPException(error.status_code, detail, error.headers)


def _code(error: Exception) -> str | None:
    match error:
        case ContextOverflowError():
            return "context_length_exceeded"
        case ModelNotFoundError():
            return "model_not_found"
        case NotFoundError():
            return error.code
        case NotSupportedError():
            return "not_supported"
        case OverloadedError():
            return "overloaded"
        case RequestCancelledError():
            return "request_cancelled"
        case HTTPException(status_code=401):
            return "invalid_api_key"
    return None
