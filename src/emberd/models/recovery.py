"""Recovery: a model whose device was lost is loaded again, over and over until that works or it is unloaded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ..errors import EmberdError
from .loaded import LoadedModel
from .store import Key

logger = logging.getLogger(__name__)

DELAYS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before each attempt; the last of them again and again."""


class Recovery:
    """`load` loads the model of a name and sets its keep-alive time. Lives on one event loop."""

    def __init__(self, load: Callable[[str, float], Awaitable[None]]) -> None:
        self._load = load
        self._reasons: dict[Key, str] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}

    @property
    def reason(self) -> str | None:
        """Why the daemon is not well, in words; None: it is."""
        return next(iter(self._reasons.values()), None)

    def reason_of(self, key: Key) -> str | None:
        return self._reasons.get(key)

    def begin(self, model: LoadedModel, reason: str) -> None:
        key = model.stored.key
        self._reasons[key] = reason
        if key not in self._tasks:
            self._tasks[key] = asyncio.ensure_future(self._run(model))

    def end(self, key: Key) -> None:
        """The model is loaded again, or nobody wants it any more."""
        self._reasons.pop(key, None)

    async def close(self) -> None:
        self._reasons.clear()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, model: LoadedModel) -> None:
        key, attempt = model.stored.key, 0
        try:
            while key in self._reasons:
                await asyncio.sleep(DELAYS[min(attempt, len(DELAYS) - 1)])
                attempt += 1
                if key not in self._reasons:
                    return
                logger.info("loading '%s' again, attempt %d", model.name, attempt)
                try:
                    await self._load(model.name, model.keep_alive)
                    self.end(key)
                except EmberdError as error:
                    if key in self._reasons:
                        self._reasons[key] = error.message
        finally:
            self.end(key)
            del self._tasks[key]
