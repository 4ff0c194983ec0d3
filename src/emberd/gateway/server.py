"""The HTTP server: uvicorn on sockets that were opened before, and leaving well.

The first signal drains: nothing new is taken and running replies may end, up to the grace time. The
second ends at once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

import uvicorn

from ..config import Config
from ..models.manager import ModelManager
from ..models.store import ModelStore
from .app import create_app
from .listen import BACKLOG, listening, refuse_open_door
from .service import Service

_KEEP_ALIVE_SECONDS = 75  # of an idle connection; clients pool them
_FORCED_SECONDS = 1  # for replies and then workers to end when all is to end at once
_LAST_WORDS_SECONDS = 3  # for replies that were ended to say so


def run_server(
    config: Config,
    store: ModelStore,
    names: Sequence[str] = (),
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until a signal; `names` are loaded at the start.

    `ready` gets the URL, or the Unix socket's path, once the daemon answers there. Raises ConfigError when
    the address cannot be listened on, or would let anybody in.
    """
    refuse_open_door(config)
    with listening(config) as sockets:
        app = create_app(config, ModelManager(config, store), names)
        settings = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=_LAST_WORDS_SECONDS,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            lifespan="on",
            backlog=BACKLOG,
        )
        if config.socket is not None:
            place = str(config.socket)
        else:
            place = dataclasses.replace(config, port=sockets[0].getsockname()[1]).url
        Server(settings, app.state.service, lambda: ready(place)).run(sockets)


class Server(uvicorn.Server):
    """uvicorn's server with our way of leaving."""

    def __init__(
        self, settings: uvicorn.Config, service: Service, ready: Callable[[], None]
    ) -> None:
        super().__init__(settings)
        self._service = service
        self._ready = ready
        self._num_signals = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            gc.freeze()  # modules and routes stay: to look through them held all streams up for 77 ms
            self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal handler. The signal is dealt with here, so that a drained daemon exits with 0."""
        self._num_signals += 1
        if self._loop is None or self._num_signals > 2:
            self.should_exit = self.force_exit = True
        else:
            self._loop.call_soon_threadsafe(self.leave, self._num_signals == 2)

    def leave(self, at_once: bool = False) -> None:
        """Drain, then exit; `at_once` without waiting for replies."""
        work = self._leave_at_once() if at_once else self._drain()
        self._leaving.add(asyncio.ensure_future(work))

    async def _drain(self) -> None:
        await self._service.drain(self._service.config.shutdown_grace)
        self.should_exit = True

    async def _leave_at_once(self) -> None:
        self._service.end_replies("it was told to leave at once")
        if tasks := self.server_state.tasks:
            await asyncio.wait(tasks, timeout=_FORCED_SECONDS)
        self.should_exit = self.force_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn leaves the lifespan out then, and the workers would be left
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.lifespan.shutdown(), _FORCED_SECONDS)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, without raising the signal again at the end: that would end the process by it."""
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {sig: signal.signal(sig, self.handle_exit) for sig in signals}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)
