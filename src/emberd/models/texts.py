"""Texts: the text sides of models, loaded or not, as many as are worth their memory."""

from __future__ import annotations

import asyncio

from .loaded import ModelText
from .store import StoredModel

_MOST = 2  # text sides that are kept: vocabularies take tens of megabytes


class Texts:
    """Lives on one event loop. A model's text side is read once for all who wait for it."""

    def __init__(self) -> None:
        self._tasks: dict[StoredModel, asyncio.Task[ModelText]] = {}

    def of(self, stored: StoredModel) -> asyncio.Task[ModelText]:
        """Shared: to be shielded by who may be cancelled. One that failed is forgotten."""
        task = self._tasks.get(stored)
        if task is None:
            while len(self._tasks) >= _MOST:
                del self._tasks[next(iter(self._tasks))]
            task = asyncio.ensure_future(
                asyncio.to_thread(ModelText.load, stored.path, stored.recipe)
            )
            self._tasks[stored] = task
            task.add_done_callback(lambda done: self._ended(stored, done))
        return task

    def _ended(self, stored: StoredModel, done: asyncio.Task[ModelText]) -> None:
        failed = done.cancelled() or done.exception() is not None
        if failed and self._tasks.get(stored) is done:
            del self._tasks[stored]
