"""Access: which scope each route needs, and whether a caller's API keys have it.

A route is closed unless this table opens it: one that is not named needs the scope `manage`. Knows nothing of
what routes do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from ..keys import ApiKey, granted, matching
from ..protocol import PRIORITIES
from .priority import HEADER
from .requests import Caller

OPEN = ("GET /", "GET /health")
"""Liveness: answered without a key. They tell nothing but that the daemon answers."""

ROUTES: dict[str, tuple[str, ...]] = {
    "infer": (
        "POST /v1/chat/completions",
        "POST /v1/chat/completions/input_tokens",
        "POST /v1/completions",
        "POST /v1/embeddings",
        "POST /v1/responses",
        "POST /v1/responses/*",
        "GET /v1/responses/*",
        "DELETE /v1/responses/*",
        "POST /v1/messages",
        "POST /v1/messages/count_tokens",
        "POST /api/generate",
        "POST /api/chat",
        "POST /api/embed",
        "POST /api/embeddings",
        "POST /tokenize",
        "POST /detokenize",
        "POST /apply-template",
        "POST /infill",
        "GET /api/requests/*",  # one's own; those of others need `manage` too
        "DELETE /api/requests/*",  # as well
    ),
    "list": (
        "GET /v1/models",
        "GET /v1/models/*",
        "GET /api/tags",
        "GET /api/ps",
        "GET /api/fit",
        "GET /api/version",
        "POST /api/show",
        "GET /props",
        "GET /metrics",
        "GET /api/requests",
        "GET /api/batch/status",
        "GET /openapi.json",
        "GET /docs",
        "GET /docs/*",
    ),
    "manage": (
        "POST /api/pull",
        "POST /api/push",
        "POST /api/create",
        "POST /api/copy",
        "DELETE /api/delete",
        "POST /api/batch/preempt",
        "GET /api/blobs/*",
        "POST /api/blobs/*",
        "POST /api/me",
        "POST /api/signout",
    ),
}
"""A last `*` is any rest of a path."""

_SCOPES = {route: scope for scope, routes in ROUTES.items() for route in routes}
_PREFIXES = {route[:-1]: scope for route, scope in _SCOPES.items() if route.endswith("*")}


def scope_of(method: str, path: str) -> str | None:
    """The scope that a request needs; None: no key at all. HEAD counts as GET. `path` is plain (see edge)."""
    route = f"{'GET' if method == 'HEAD' else method} {path}"
    if route in OPEN:
        return None
    if route in _SCOPES:
        return _SCOPES[route]
    return next(
        (scope for prefix, scope in _PREFIXES.items() if route.startswith(prefix)), "manage"
    )


def denial(
    keys: Sequence[ApiKey], headers: Headers, method: str, path: str
) -> HTTPException | None:
    """Why the caller may not go on: 401 without a known key, 403 where the key lacks the scope.

    Without any keys everybody may do everything, whatever key is sent.
    """
    if not keys:
        return None
    scope = scope_of(method, path)
    if scope is None:
        return None
    presented = list(_presented(headers))
    scopes = granted(keys, presented)
    if scopes is None:
        said = "this API key is not known here" if presented else "an API key is needed"
        return HTTPException(
            401,
            f"{said}; send one of the daemon's keys as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
            {"www-authenticate": "Bearer"},
        )
    if scope not in scopes:
        return HTTPException(
            403, f"this API key lacks the scope '{scope}'; it has: {', '.join(sorted(scopes))}"
        )
    return None


def caller_of(keys: Sequence[ApiKey], headers: Headers, request_id: str, path: str) -> Caller:
    """Who sends a request that was not denied."""
    places = matching(keys, _presented(headers)) if keys else []
    manages = not keys or any("manage" in keys[place].scopes for place in places)
    key = keys[places[0]] if places else None
    return Caller(
        request_id,
        path,
        places[0] + 1 if places else None,
        manages,
        headers.get(HEADER),
        PRIORITIES.index(key.priority) if key and key.priority else None,
    )


def _presented(headers: Headers) -> Iterator[str]:
    for value in headers.getlist("authorization"):
        scheme, _, text = value.strip().partition(" ")
        if scheme.lower() == "bearer" and text.strip():
            yield text.strip()
    for value in headers.getlist("x-api-key"):
        if value.strip():
            yield value.strip()
