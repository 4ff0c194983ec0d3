"""ModelManager: which models are loaded, and for how long. The only owner of workers.

A model is loaded by the first request for it, all who ask meanwhile share that load, and it is unloaded
when nothing has used it for its keep-alive time, when another needs its memory, or when its worker dies.
A load that nobody waits for any more is given up.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone

from ..config import Config
from ..errors import (
    BadRequestError,
    EmberdError,
    ModelFileError,
    ModelNotFoundError,
    OverloadedError,
)
from ..gguf.extend import scaling_words
from ..protocol import WorkerOptions
from ..worker.client import WorkerClient
from .drafts import draft_of
from .facts import Capability
from .fit import Estimate, Fit, judge, question_of, worker_options
from .loaded import LoadedModel, ModelText, Worker
from .memory import longest_context
from .names import alias_target, name_key
from .recovery import Recovery
from .room import Room
from .sharing import SharedWorkers, StartWorker
from .store import Content, Key, ModelStore, StoredModel
from .texts import Texts

logger = logging.getLogger(__name__)

Wrap = Callable[[Worker, str], Worker]
_CLAUDE = "claude-*"
RETRY_SECONDS = 5  # what callers are told while a lost device is not back


class ModelManager:
    """Lives on one event loop. Every model that `acquire` gives must be given to `release` once.

    `wrap` may be set: it gets each worker started from then on, and the model's name, and gives what is used.
    """

    def __init__(
        self,
        config: Config,
        store: ModelStore,
        start_worker: StartWorker = WorkerClient.start,
        estimate: Estimate = WorkerClient.estimate,
    ) -> None:
        self.store = store
        self.wrap: Wrap = lambda worker, _name: worker
        self._config = config
        self._workers = SharedWorkers(start_worker)
        self._estimate = estimate
        self._loaded: dict[Key, LoadedModel] = {}
        self._loading: dict[Key, asyncio.Task[LoadedModel]] = {}
        self._wishes: dict[Key, float] = {}  # keep-alive of models that load, the latest given
        self._expiry: dict[Key, asyncio.TimerHandle] = {}
        self._waiting: Counter[Key] = Counter()  # requests that wait for the load of a model
        self._room = Room(config, self._groups, self._is_idle, self._drop)
        self._closing: set[asyncio.Task[None]] = set()
        self._texts = Texts()
        self._recovery = Recovery(self._load_again)
        self._standing: list[str] = []  # what `claude-*` means: the first of those to preload,
        self._last_used: str | None = None  # else the one used last; no encoders
        self._pinned: set[Key] = set()
        self._closed = False

    def preload(self, names: Iterable[str]) -> None:
        """Begin to load models which then stay until a request says otherwise."""
        for name in names:
            self._standing.append(name)
            task = asyncio.ensure_future(self._preload(name))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def find(self, name: str) -> StoredModel:
        """The model that `name` means: the one so called, else what the settings' aliases say, else, for
        names as `claude-...`, the first of those loaded at the start, the one used last, or the only one.

        Raises BadRequestError, ModelNotFoundError, ModelFileError.
        """
        try:
            return await asyncio.to_thread(self.store.find, name)
        except ModelNotFoundError:
            target = alias_target(name, self._config.aliases)
            if target is None and alias_target(name, [(_CLAUDE, _CLAUDE)]):
                target = await self._stand_in(name)
            if target is None:
                raise
        return await asyncio.to_thread(self.store.find, target)

    async def find_or_only(self, name: str | None) -> StoredModel:
        """As `find`; without a name the one that `claude-...` would mean. Raises BadRequestError where that is
        not clear."""
        if name is not None:
            return await self.find(name)
        try:
            return await self.find(await self._stand_in("any"))
        except ModelNotFoundError:
            raise BadRequestError(
                "'model' is required: none was used yet, and there is not just one", "model"
            ) from None

    async def text(self, name: str) -> ModelText:
        """The text side of the model called `name`. Starts no worker. Raises as `find` does."""
        stored = await self.find(name)
        if (model := self._alive(stored.key)) is not None:
            return model.text
        return await asyncio.shield(self._texts.of(stored))

    async def acquire(
        self,
        name: str,
        keep_alive: float | None = None,
        need: Capability | None = None,
        task: str | None = None,
    ) -> LoadedModel:
        """The model called `name`, loaded now if it is not, and held until `release`.

        `keep_alive` (seconds, inf: for ever, None: the default) is the model's from now on. `task` names what
        is needed where it is missing. Raises
        BadRequestError (also for a model that cannot do what is needed, which is not loaded then),
        ModelNotFoundError, ModelFileError, ModelLoadError, DeviceError.
        """
        stored = await self.find(name)
        if need is not None and need not in stored.facts.capabilities:
            raise BadRequestError(f'"{name:.512}" does not support {task or need}', "model")
        if _generates(stored):
            self._last_used = stored.name
        self._room.drop_outdated(stored)
        wish = self._default_keep_alive(stored.key) if keep_alive is None else keep_alive
        if (model := self._alive(stored.key)) is not None:
            model.keep_alive = wish
        while (model := self._ready(stored.key)) is None:
            load = self._load_once(stored)
            self._wishes[stored.key] = wish
            await self._wait_for(load, stored.key)
        model.active += 1
        self._cancel_expiry(stored.key)
        self._room.changed.set()
        return model

    async def _wait_for(self, load: asyncio.Task[LoadedModel], key: Key) -> None:
        """Wait for a load with others. The last one to hang up ends it; one that was ended says nothing."""
        self._waiting[key] += 1
        try:
            await asyncio.wait([load])
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]
                load.cancel()
        if self._closed or not load.cancelled():
            try:
                load.result()
            except EmberdError as error:
                if (reason := self._recovery.reason_of(key)) is None:
                    raise
                raise OverloadedError(f"{reason}; loading again: {error}", RETRY_SECONDS) from error

    def release(self, model: LoadedModel) -> None:
        """A reply has ended: the model's keep-alive time starts when it was the last one."""
        assert model.active > 0, "released more often than acquired"
        model.active -= 1
        model.last_used = datetime.now(timezone.utc)
        self._room.changed.set()
        if model.active == 0 and self._loaded.get(model.stored.key) is model:
            self._schedule_expiry(model)

    async def unload(self, name: str) -> StoredModel:
        """Unload `name` as soon as no reply needs it, also where its file is gone. Raises as `acquire` does for an
        unknown name."""
        try:
            stored = await self.find(name)
        except (ModelNotFoundError, ModelFileError):
            key = name_key(name.strip())
            known = [model for model in self.loaded() if name_key(model.name) == key]
            if not known:
                raise
            stored = known[0].stored
        self._recovery.end(stored.key)
        model = self._alive(stored.key)
        if stored.key in self._loading:
            self._wishes[stored.key] = 0
        if model is not None:
            model.keep_alive = 0
            if model.active == 0:
                self._drop(model)
        return stored

    def loaded(self) -> list[LoadedModel]:
        """Every loaded model, the latest used first."""
        alive = [model for key in list(self._loaded) if (model := self._alive(key))]
        return sorted(alive, key=lambda model: model.last_used, reverse=True)

    def loaded_as(self, stored: StoredModel) -> LoadedModel | None:
        return self._alive(stored.key)

    def context_length(self, stored: StoredModel) -> int:
        """Tokens that one sequence may hold: as it is served, or would be at most."""
        if (model := self._alive(stored.key)) is not None:
            return model.context_length
        longest, ctx = longest_context(stored.facts, self._config), self._config.ctx
        return longest if ctx is None else min(longest, ctx)

    def context_note(self, stored: StoredModel) -> str:
        """What users are told where the settings serve more than the model was trained for; often empty."""
        scaling, trained = self._config.rope_scaling, stored.facts.context_length
        served = self.context_length(stored)
        return scaling_words(trained, served, scaling) if scaling and served > trained else ""

    async def fit(self, name: str | None, ctx: int | None = None) -> tuple[StoredModel, Fit]:
        """Whether the model called `name` fits this device alone, with `ctx` tokens of context in place of the
        settings'. Without a name as `find_or_only`. Loads nothing. Raises as `acquire` does."""
        stored = await self.find_or_only(name)
        config = self._config if ctx is None else replace(self._config, ctx=ctx)
        draft = await draft_of(stored, config, self.store)
        made = await self._estimate(question_of(config, stored.path, draft.path))
        model = self._alive(stored.key)
        return stored, judge(made, config, None if model is None else model.info)

    @property
    def failing(self) -> str | None:
        """Why a device that was lost is not in service again yet; None: all is well."""
        return self._recovery.reason

    async def close(self) -> None:
        """Stop loading and end every worker."""
        self._closed = True
        await self._recovery.close()
        for task in [*self._loading.values()]:
            task.cancel()
        await asyncio.gather(*self._loading.values(), return_exceptions=True)
        for model in list(self._loaded.values()):
            self._drop(model)
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _preload(self, name: str) -> None:
        try:
            stored = await self.find(name)
        except EmberdError as error:
            logger.error("cannot load '%s': %s", name, error)
            return
        self._pinned.add(stored.key)
        with suppress(EmberdError):  # logged when the load ended
            self.release(await self.acquire(name))

    async def _stand_in(self, name: str) -> str:
        for known in self._standing:
            if _generates(await asyncio.to_thread(self.store.find, known)):
                return known
        if self._last_used is not None:
            return self._last_used
        stored = [
            model for model in await asyncio.to_thread(self.store.models) if _generates(model)
        ]
        if len(stored) == 1:
            return stored[0].name
        raise ModelNotFoundError(
            name,
            f"; say which of {len(stored)} models it stands for, as --aliases '{_CLAUDE}=NAME'",
        )

    def _alive(self, key: Key) -> LoadedModel | None:
        model = self._loaded.get(key)
        if model is not None and not model.worker.alive:
            logger.warning(
                "the worker of '%s' is gone; the next request loads it again", model.name
            )
            self._drop(model)
            return None
        return model

    def _ready(self, key: Key) -> LoadedModel | None:
        """None also for a model that leaves as soon as it is idle: the next to come waits for its next load."""
        model = self._alive(key)
        return None if model is None or model.stored.content == self._room.leaving else model

    def _groups(self) -> list[list[LoadedModel]]:
        """Loaded models, each with those that share its worker."""
        by_content: dict[Content, list[LoadedModel]] = {}
        for model in self.loaded():
            by_content.setdefault(model.stored.content, []).append(model)
        return list(by_content.values())

    def _is_idle(self, model: LoadedModel) -> bool:
        """Not used, and not just loaded for those who are about to."""
        waited_for = model.stored.content != self._room.leaving and self._waiting[model.stored.key]
        return not model.active and not waited_for

    def _load_once(self, stored: StoredModel) -> asyncio.Task[LoadedModel]:
        if self._closed:
            raise OverloadedError("the daemon is shutting down")
        task = self._loading.get(stored.key)
        if task is None:
            task = asyncio.ensure_future(self._load(stored))
            self._loading[stored.key] = task
            task.add_done_callback(lambda done: self._load_ended(stored, done))
        return task

    async def _load(self, stored: StoredModel) -> LoadedModel:
        draft = await draft_of(stored, self._config, self.store)
        async with self._room.made_for(stored, draft.facts) as kv_limit:
            if (model := self._alive(stored.key)) is not None:
                return model  # it was to leave, and others left first
            options = worker_options(self._config, stored.path, kv_limit, draft.path)
            model = await self._load_now(stored, options)
            model.draft = draft.facts
            model.keep_alive = self._wishes.pop(stored.key, model.keep_alive)
            self._loaded[stored.key] = model
            self._recovery.end(stored.key)
            self._schedule_expiry(model, at_least=1.0)  # time for those who wait to take it
            logger.info("loaded '%s' on %s", model.name, model.info.device)
            return model

    async def _load_now(self, stored: StoredModel, options: WorkerOptions) -> LoadedModel:
        text = self._texts.of(stored)
        worker = await self._workers.take(stored.key, stored.content, options)
        try:
            loaded_text = await asyncio.shield(text)
        except BaseException:
            await self._workers.give_back(stored.key)
            raise
        worker.token_table = loaded_text.token_table
        wrapped = self.wrap(worker, stored.name)
        model = LoadedModel(stored, loaded_text, wrapped, self._default_keep_alive(stored.key))
        worker.on_death = lambda worker: self._worker_died(model, worker.lost_device)
        return model

    def _worker_died(self, model: LoadedModel, lost_device: str | None) -> None:
        """A lost device is the daemon's to put right; after any other death the next request loads the model."""
        if lost_device is None or self._closed:
            return
        logger.error("'%s' stopped: %s", model.name, lost_device)
        if self._loaded.get(model.stored.key) is model:
            self._drop(model)
        self._recovery.begin(model, lost_device)

    async def _load_again(self, name: str, keep_alive: float) -> None:
        self.release(await self.acquire(name, keep_alive))

    def _load_ended(self, stored: StoredModel, done: asyncio.Task[LoadedModel]) -> None:
        del self._loading[stored.key]
        self._room.changed.set()
        self._wishes.pop(stored.key, None)
        if done.cancelled():
            logger.info("the load of '%s' was given up", stored.name)
        elif error := done.exception():
            logger.error("loading '%s' failed: %s", stored.name, error)

    def _default_keep_alive(self, key: Key) -> float:
        return math.inf if key in self._pinned else self._config.keep_alive

    def _schedule_expiry(self, model: LoadedModel, at_least: float = 0.0) -> None:
        self._cancel_expiry(model.stored.key)
        if math.isinf(model.keep_alive):
            return
        delay = max(model.keep_alive, at_least)
        loop = asyncio.get_running_loop()
        self._expiry[model.stored.key] = loop.call_later(delay, self._expire, model)

    def _cancel_expiry(self, key: Key) -> None:
        if timer := self._expiry.pop(key, None):
            timer.cancel()

    def _expire(self, model: LoadedModel) -> None:
        if model.active == 0 and self._loaded.get(model.stored.key) is model:
            self._drop(model)

    def _drop(self, model: LoadedModel) -> None:
        """Forget the model and end its worker; requests that still hold it get its death."""
        self._cancel_expiry(model.stored.key)
        if self._loaded.get(model.stored.key) is model:
            del self._loaded[model.stored.key]
        task = asyncio.ensure_future(self._workers.give_back(model.stored.key))
        for tasks in (self._closing, self._room.ending):
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        self._room.changed.set()
        logger.info("unloading '%s'", model.name)


def _generates(stored: StoredModel) -> bool:
    return "completion" in stored.facts.capabilities
