"""SharedWorkers: one worker a model file, as it is when it is loaded, for all models that were made from it.

A worker starts with the first that takes it and ends when the last has given it back. One event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass

from ..protocol import WorkerOptions
from .loaded import StartedWorker
from .store import Content

StartWorker = Callable[[WorkerOptions], Awaitable[StartedWorker]]


@dataclass(eq=False, slots=True)
class _Shared:
    start: asyncio.Task[StartedWorker]
    num_holders: int = 0

    @property
    def is_usable(self) -> bool:
        if not self.start.done():
            return True
        failed = self.start.cancelled() or self.start.exception() is not None
        return not failed and self.start.result().alive


class SharedWorkers:
    def __init__(self, start_worker: StartWorker) -> None:
        self._start_worker = start_worker
        self._by_content: dict[Content, _Shared] = {}
        self._held: dict[Hashable, _Shared] = {}

    async def take(
        self, holder: Hashable, content: Content, options: WorkerOptions
    ) -> StartedWorker:
        """The worker of `content`, started with `options` if need be. Raises what starting raises.

        Where it returned, `holder` must give it back once.
        """
        shared = self._by_content.get(content)
        if shared is None or not shared.is_usable:
            shared = _Shared(asyncio.ensure_future(self._start_worker(options)))
            self._by_content[content] = shared
        shared.num_holders += 1
        self._held[holder] = shared
        try:
            return await asyncio.shield(shared.start)
        except BaseException:
            await self.give_back(holder)
            raise

    def give_back(self, holder: Hashable) -> Awaitable[None]:
        """The holder is forgotten at once; what is to be awaited ends the worker if it was the last one."""
        shared = self._held.pop(holder)
        shared.num_holders -= 1
        if not shared.num_holders:
            for content in [one for one, other in self._by_content.items() if other is shared]:
                del self._by_content[content]
        return _end_unused(shared)


async def _end_unused(shared: _Shared) -> None:
    if shared.num_holders:
        return
    if not shared.start.done():
        shared.start.cancel()
        await asyncio.gather(shared.start, return_exceptions=True)
    if not shared.start.cancelled() and shared.start.exception() is None:
        await shared.start.result().close()
