"""Anthropic's descriptions of models. Its routes are shared with OpenAI's API, which asks here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Request

from ...models.names import short_name
from ...models.store import StoredModel

Json = dict[str, Any]


def asked_for(request: Request) -> bool:
    """Whether the answer is to have Anthropic's shape."""
    return "anthropic-version" in request.headers


def listing(items: Sequence[Json]) -> Json:
    """All of them in one page."""
    return {
        "data": list(items),
        "has_more": False,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
    }


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
