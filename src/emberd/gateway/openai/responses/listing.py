"""Pages of a list, as OpenAI's lists are read: by `limit`, `order` and `after`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....errors import BadRequestError

Json = dict[str, Any]
MAX_LIMIT = 100


def page_of(items: Sequence[Json], query: Mapping[str, str]) -> Json:
    """Newest first unless `order` is asc. Raises BadRequestError."""
    order, limit = query.get("order", "desc"), query.get("limit", "20")
    if order not in ("asc", "desc"):
        raise BadRequestError("'order' must be asc or desc", "order")
    if not limit.isdecimal() or len(limit) > 3 or not 1 <= int(limit) <= MAX_LIMIT:
        raise BadRequestError(f"'limit' must be from 1 to {MAX_LIMIT}", "limit")
    listed = list(items if order == "asc" else reversed(items))
    if (after := query.get("after")) is not None:
        places = [place for place, item in enumerate(listed) if item["id"] == after]
        if not places:
            raise BadRequestError(f"'after': '{after:.128}' is no item of this list", "after")
        listed = listed[places[0] + 1 :]
    page = listed[: int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(page) < len(listed),
    }
