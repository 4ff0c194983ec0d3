"""Room: which models leave so that another can be loaded, and who waits for that.

Knows the memory of all loaded models and the order in which loads asked for room. Starts and ends no worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from ..config import Config
from ..errors import ModelLoadError
from ..hardware import DEVICE_SHARE, Tier
from ..protocol import WorkerInfo
from .facts import ModelFacts
from .loaded import LoadedModel
from .memory import Need, cpu_step_bytes, gib, kept_ram, need_of, next_to_leave, taken
from .store import Content, StoredModel

logger = logging.getLogger(__name__)

Models = Sequence[LoadedModel]


class Room:
    """Lives on the manager's event loop. `changed` is to be set whenever a model was loaded, used or left.

    `leaving` is the content whose models are asked to leave: they end what runs and take nothing new. `ending` are
    the ends of workers that were dropped: until then their memory is not free.
    """

    def __init__(
        self,
        config: Config,
        groups: Callable[[], Sequence[Models]],
        is_idle: Callable[[LoadedModel], bool],
        drop: Callable[[LoadedModel], object],
    ) -> None:
        self.changed = asyncio.Event()
        self.leaving: Content | None = None
        self._config = config
        self._groups, self._is_idle, self._drop = groups, is_idle, drop
        self.ending: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()  # first come, first served
        self._loading: dict[Content, tuple[int, int]] = {}  # bytes set aside, loads that share them
        self._device: WorkerInfo | None = None  # of the model that was loaded last

    @asynccontextmanager
    async def made_for(
        self, stored: StoredModel, draft: ModelFacts | None = None
    ) -> AsyncIterator[int | None]:
        """Hold the room that the load of a model takes, with its draft; gives the bytes left for KV, None: no bound.

        Idle models leave, the least recently used first. Where that does not suffice, the load waits until running
        ones are idle. Raises ModelLoadError where the model alone is too large.
        """
        async with self._turn:
            limit, size = await self._make(stored, draft)
        held, others = self._loading.get(stored.content, (0, 0))
        self._loading[stored.content] = max(held, size), others + 1
        try:
            yield limit
        finally:
            held, others = self._loading.pop(stored.content)
            if others > 1:
                self._loading[stored.content] = held, others - 1

    def drop_outdated(self, stored: StoredModel) -> None:
        """What was loaded of the model's file before that changed leaves, unless something needs it."""
        for models in self._groups():
            loaded = models[0].stored
            if loaded.path != stored.path or loaded.content == stored.content:
                continue
            if all(map(self._is_idle, models)):
                logger.info("the file of '%s' has changed", stored.name)
                for model in models:
                    self._drop(model)

    async def _make(self, stored: StoredModel, draft: ModelFacts | None) -> tuple[int | None, int]:
        """(bytes for the KV cache, bytes to set aside)."""
        try:
            while True:
                groups = self._groups()
                budget = self._budget(groups)
                present = {models[0].stored.content for models in groups}
                if budget is None or stored.content in self._loading or stored.content in present:
                    return None, 0
                if self.ending:
                    await asyncio.wait(set(self.ending))
                    continue
                need = need_of(stored.facts, self._config, self._tier(), draft)
                if need.least > budget:
                    raise ModelLoadError(self._too_large(stored, need, budget))
                free = budget - self._used(groups)
                if free < need.wanted and self._evict(groups, stored, need, free):
                    continue
                if free >= need.least:
                    room = min(free, need.most)
                    return room - need.fixed, room
                await self._wait(groups, stored)
        finally:
            self.leaving = None

    def _budget(self, groups: Sequence[Models]) -> int | None:
        for models in groups:
            self._device = models[0].info
        if self._config.memory is not None:
            return self._config.memory
        if self._device is None or self._device.device_memory is None:
            return None
        return int(self._device.device_memory * DEVICE_SHARE)

    def _tier(self) -> Tier:
        """Of the device that will serve; before the first load "auto" may yet be the CPU."""
        if self._device is not None:
            return self._device.tier
        return "cpu" if self._config.device == "cpu" else "unknown"

    def _used(self, groups: Sequence[Models]) -> int:
        by_content = {content: size for content, (size, _) in self._loading.items()}
        for models in groups:
            content = models[0].stored.content
            info = models[0].info
            size = taken(info) + (kept_ram(self._config, info.tier) if info.num_blocks else 0)
            if info.tier == "cpu":
                draft = next((model.draft for model in models if model.draft), None)
                parts = (models[0].stored.facts, draft if info.draft else None)
                size += sum(
                    cpu_step_bytes(facts, self._config, info.context_length)
                    for facts in parts
                    if facts is not None
                )
            by_content[content] = max(size, by_content.get(content, 0))
        return sum(by_content.values())

    def _evict(self, groups: Sequence[Models], stored: StoredModel, need: Need, free: int) -> bool:
        """Whether an idle model was told to leave."""
        idle = [models for models in groups if all(map(self._is_idle, models))]
        if (models := next_to_leave(idle)) is None:
            return False
        logger.info(
            "'%s' leaves to make room for '%s', which wants %s; %s are free",
            models[0].name,
            stored.name,
            gib(need.wanted),
            gib(free),
        )
        for model in models:
            self._drop(model)
        return True

    async def _wait(self, groups: Sequence[Models], stored: StoredModel) -> None:
        running = [models for models in groups if any(model.active for model in models)]
        if (models := next_to_leave(running)) is not None and self.leaving is None:
            self.leaving = models[0].stored.content
            logger.info("'%s' waits for room until '%s' is idle", stored.name, models[0].name)
        self.changed.clear()
        await self.changed.wait()

    def _too_large(self, stored: StoredModel, need: Need, budget: int) -> str:
        source = "--memory" if self._config.memory is not None else "the device's memory"
        return (
            f"'{stored.name}' needs about {gib(need.least)} of memory ({gib(need.fixed)} without its KV cache), "
            f"and {gib(budget)} may be used ({source}); use a smaller model, a smaller --ctx or --kv-memory, or more "
            "--memory"
        )
