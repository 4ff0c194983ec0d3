"""Streams: SSE and NDJSON framing, keep-alive bytes, and what happens when the client goes away.

Knows nothing of what is streamed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
DONE = "[DONE]"
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client hangs up. Raises ClientDisconnect then."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for started in (task, gone):
            started.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


class EventStream(EventSourceResponse):
    """Server-sent events of JSON values, or of text as it is. `close` is called when it ends, however it ends.

    `named`: an event is called by its value's `type`. `ping_value` is sent to keep the connection alive;
    None: a comment.
    """

    def __init__(
        self,
        values: AsyncIterator[Any],
        close: Callable[[], None],
        ping: float,
        headers: Mapping[str, str],
        *,
        named: bool = False,
        ping_value: Mapping[str, Any] | None = None,
    ) -> None:
        def ping_event() -> ServerSentEvent:
            if ping_value is None:
                return ServerSentEvent(comment="ping", sep="\n")
            event = ping_value["type"] if named else None
            return ServerSentEvent(data=_to_json(ping_value), event=event, sep="\n")

        super().__init__(
            _events(values, named),
            headers={**STREAM_HEADERS, **headers},
            ping=ping,
            ping_message_factory=ping_event,
            sep="\n",
        )
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


class LineStream(StreamingResponse):
    """JSON values, one a line. `close` as above."""

    def __init__(
        self, values: AsyncIterator[Any], close: Callable[[], None], headers: Mapping[str, str]
    ) -> None:
        super().__init__(
            _lines(values),
            headers={**STREAM_HEADERS, **headers},
            media_type="application/x-ndjson",
        )
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # From version 2.4 on, a hang-up would be noticed only when the next line is sent, and
        # during a long prefill none is.
        scope = {**scope, "asgi": {**scope["asgi"], "spec_version": "2.3"}}
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


async def _events(values: AsyncIterator[Any], named: bool) -> AsyncIterator[bytes]:
    """Written here, since the library's way costs as much as the JSON. JSON has no line breaks of its own."""
    async for value in values:
        name = f"event: {value['type']}\n" if named else ""
        data = value if isinstance(value, str) else _to_json(value)
        yield f"{name}data: {data}\n\n".encode()


async def _lines(values: AsyncIterator[Any]) -> AsyncIterator[str]:
    async for value in values:
        yield _to_json(value) + "\n"


async def _disconnected(request: Request) -> None:
    """Returns when the client hangs up. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
