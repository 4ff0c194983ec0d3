"""Responses that are kept, so that later requests can go on from them. In memory alone, the oldest leave first.

Knows nothing of HTTP and of how responses are made.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....errors import NotFoundError

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stored:
    """`context` is what the model was given: items of earlier responses first."""

    response: Json
    context: Sequence[Json]
    size: int  # bytes, about; what responses share counts for each

    @property
    def items(self) -> list[Json]:
        """With what the model answered."""
        return [*self.context, *self.response["output"]]


class ResponseStore:
    """One for each application. `limit` is in bytes; what does not fit is not kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._stored: OrderedDict[str, Stored] = OrderedDict()
        self._makers: dict[str, str] = {}  # ids of output items -> of their responses

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, response: Json, context: Sequence[Json]) -> None:
        size = sum(len(json.dumps(value)) for value in (response, *context))
        if size > self._limit:
            return
        while self._size + size > self._limit:
            self._remove(next(iter(self._stored)))
        self._stored[response["id"]] = Stored(response, context, size)
        self._size += size
        for item in response["output"]:
            self._makers[item["id"]] = response["id"]

    def get(self, id: str, param: str | None = None, code: str | None = None) -> Stored:
        """Raises NotFoundError."""
        if id not in self._stored:
            raise NotFoundError(
                f"response '{id:.128}' not found: it was not stored, is not done, or has left to make room; "
                "send the whole conversation as 'input'",
                param,
                code,
            )
        self._stored.move_to_end(id)
        return self._stored[id]

    def item(self, id: str, param: str) -> Json:
        """An output item of a stored response. Raises NotFoundError."""
        if id not in self._makers:
            raise NotFoundError(
                f"item '{id:.128}' not found: its response is not stored; send the item itself",
                param,
            )
        output = self.get(self._makers[id]).response["output"]
        return next(item for item in output if item["id"] == id)

    def delete(self, id: str) -> None:
        """Raises NotFoundError. What goes on from the response keeps what it has of it."""
        self.get(id)
        self._remove(id)

    def _remove(self, id: str) -> None:
        stored = self._stored.pop(id)
        self._size -= stored.size
        for item in stored.response["output"]:
            del self._makers[item["id"]]
