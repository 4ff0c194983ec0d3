"""The HTTP server: sockets, uvicorn, and leaving well.

The first signal drains: nothing new is taken and running replies may end, up to the grace time. The
second ends at once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

import uvicorn

from ..config import Config
from ..errors import ConfigError
from ..models.manager import ModelManager
from ..models.store import ModelStore
from .app import create_app
from .security import is_loopback
from .service import Service

_BACKLOG = 2048
_KEEP_ALIVE_SECONDS = 75  # of an idle connection; clients pool them
_FORCED_SECONDS = 1  # for replies and then workers to end when all is to end at once
_LAST_WORDS_SECONDS = 3  # for replies that were ended to say so


def run_server(
    config: Config,
    store: ModelStore,
    names: Sequence[str] = (),
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until a signal; `names` are loaded at the start, `ready` gets the URL once it answers.

    Raises ConfigError when the address cannot be listened on.
    """
    sockets = open_sockets(config.host, config.port)
    url = dataclasses.replace(config, port=sockets[0].getsockname()[1]).url
    app = create_app(config, ModelManager(config, store), names)
    settings = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_LAST_WORDS_SECONDS,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        lifespan="on",
        backlog=_BACKLOG,
    )
    Server(settings, app.state.service, lambda: ready(url)).run(sockets)


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


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Listening sockets. For IPv4 loopback also ::1 with the same port: `localhost` may mean either."""
    host = host.strip("[]")
    sockets = [_listen(host, port)]
    if host.lower() == "localhost" or (is_loopback(host) and ":" not in host):
        first_is_ipv6 = sockets[0].family == socket.AF_INET6
        try:
            sockets.append(
                _listen("127.0.0.1" if first_is_ipv6 else "::1", sockets[0].getsockname()[1])
            )
        except (ConfigError, OSError):
            pass  # no IPv6 here, or somebody else's: the address asked for is served
    return sockets


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}: {error.strerror or error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        hint = ""
        if error.errno == errno.EADDRINUSE:
            hint = "; another program listens there: stop it, or choose another port with --port"
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror or error}{hint}"
        ) from None
    return listener
