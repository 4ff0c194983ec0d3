"""Anthropic's descriptions of models. Its routes are shared with OpenAI's API, which asks here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request

from ...errors import BadRequestError
from ...models.names import short_name
from ...models.store import StoredModel

Json = dict[str, Any]
_MAX_LIMIT = 1000


def asked_for(request: Request) -> bool:
    """Whether the answer is to have Anthropic's shape."""
    return "anthropic-version" in request.headers


def listing(items: Sequence[Json], query: Mapping[str, str]) -> Json:
    """One page: up to `limit` of them, without one all, behind `after_id` or right before `before_id`.
    Raises BadRequestError."""
    limit = query.get("limit", str(_MAX_LIMIT))
    if not limit.isdecimal() or len(limit) > 4 or not 1 <= int(limit) <= _MAX_LIMIT:
        raise BadRequestError(f"'limit' must be from 1 to {_MAX_LIMIT}", "limit")
    size = int(limit) if "limit" in query else len(items)
    ids = [item["id"] for item in items]
    if "before_id" in query:
        if "after_id" in query:
            raise BadRequestError("'after_id' and 'before_id' do not go together", "before_id")
        listed = items[: _place(ids, query, "before_id")]
        page = listed[-size:] if size else []
    else:
        listed = items[_place(ids, query, "after_id") + 1 :] if "after_id" in query else items
        page = listed[:size]
    return {
        "data": list(page),
        "has_more": len(page) < len(listed),
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
    }


def _place(ids: Sequence[str], query: Mapping[str, str], name: str) -> int:
    if query[name] not in ids:
        raise BadRequestError(f"'{name}': '{query[name]:.128}' is no model of this list", name)
    return ids.index(query[name])


def model_item(stored: StoredModel, context_length: int) -> Json:
    name = short_name(stored.name)
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": stored.modified.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": context_length,
        "max_tokens": context_length,
    }
