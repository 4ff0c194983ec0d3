"""Responses that go on without their caller, who asks for them later by id. Knows nothing of HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

from ...generate import Generation
from .answer import Answer

Json = dict[str, Any]


class Background:
    """Those that run; what is done is the store's. One for each application."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[Answer, asyncio.Task[Json]]] = {}

    def start(self, answer: Answer, generation: Generation) -> Json:
        """The response as it is at its start."""
        work = asyncio.ensure_future(answer.whole(generation))
        self._running[answer.id] = answer, work
        work.add_done_callback(lambda work: self._ended(answer, generation, work))
        return answer.in_progress()

    def get(self, id: str) -> Json | None:
        """As far as it is; None: no response of that id runs."""
        return self._running[id][0].in_progress() if id in self._running else None

    async def cancel(self, id: str) -> None:
        """End it, if it runs. What it has told so far is kept."""
        if id in self._running:
            _, work = self._running[id]
            work.cancel()
            await asyncio.wait({work})

    def _ended(self, answer: Answer, generation: Generation, work: asyncio.Task[Json]) -> None:
        generation.close()
        del self._running[answer.id]
        if work.cancelled():
            answer.keep(answer.cancelled(generation))
        elif isinstance(error := work.exception(), Exception):
            answer.keep(answer.failed(error, generation))
