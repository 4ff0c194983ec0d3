"""Pulling models by name: from which server, and one download for all who ask for the same.

A pull runs in a thread of its own, tells everybody who listens, and ends when nobody does.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from ..errors import (
    BadRequestError,
    DownloadError,
    EmberdError,
    ModelFileError,
    ModelNotFoundError,
)
from .download import Download, open_client
from .hub import HubReference, NoSuchRepositoryError, hub_reference, pull_from_hub
from .names import name_key
from .registry import Reference, pull_from_registry, reference, without_scheme
from .store import ModelStore

logger = logging.getLogger(__name__)

Json = dict[str, Any]
_TOLD_SECONDS = 0.1  # between two reports of a layer's progress
_END_SECONDS = 3.0  # for downloads to stop when the daemon leaves


def pull(
    store: ModelStore, name: str, registries: Sequence[str], insecure: bool = False
) -> Iterator[Json]:
    """Lines of progress in Ollama's words; the last is `success`. Closing the iterator ends the download.

    Raises BadRequestError at once for a name that cannot be pulled, and from the iterator ModelNotFoundError,
    ModelFileError, DownloadError.
    """
    _, plain = without_scheme(name.strip(), insecure)
    store.free_name(plain)
    in_hub = hub_reference(plain)
    if in_hub is not None and in_hub.with_host:
        return pull_from_hub(store, in_hub)
    in_registry = reference(name, registries, insecure)
    if in_hub is None:
        return pull_from_registry(store, in_registry, insecure)
    return _from_either(store, in_hub, in_registry, insecure)


def _from_either(
    store: ModelStore, in_hub: HubReference, in_registry: Reference, insecure: bool
) -> Iterator[Json]:
    """`owner/name` is the hub's; what the hub does not have may be a user's model in the registry."""
    try:
        yield from pull_from_hub(store, in_hub)
    except NoSuchRepositoryError as missing:
        try:
            yield from pull_from_registry(store, in_registry, insecure)
        except (ModelNotFoundError, DownloadError):
            raise missing from None


def pull_url(store: ModelStore, name: str, url: str, insecure: bool = False) -> Iterator[Json]:
    """As `pull`, of one file from anywhere. For commands, never for callers."""
    name = store.free_name(name)
    address = urlsplit(url)
    if address.scheme not in ("https", "http") or not address.hostname:
        raise BadRequestError("the URL must begin with https:// or http://", "url")
    if address.scheme == "http" and not insecure:
        raise BadRequestError("a URL of http:// needs --insecure", "url")
    return _pull_url(store, name, url, insecure)


def _pull_url(store: ModelStore, name: str, url: str, insecure: bool) -> Iterator[Json]:
    unnamed = store.pulled.root / "blobs" / f"url-{hashlib.sha256(url.encode()).hexdigest()}"
    with open_client(verify=not insecure) as client:
        download = Download(client, url, unnamed)
        for completed in download.run():
            yield {"status": f"pulling {name}", "total": download.size, "completed": completed}
    try:
        yield {"status": "verifying GGUF header"}
        target = store.pulled.blob(f"sha256:{download.sha256}")
        if not target.exists():  # else another pull of the URL has kept it meanwhile
            store.check_file(unnamed)
            os.replace(unnamed, target)
    except ModelFileError as error:
        raise ModelFileError(error.message.replace(unnamed.name, name)) from None
    finally:
        unnamed.unlink(missing_ok=True)
    yield {"status": "writing manifest"}
    store.keep(name, target)
    yield {"status": "success"}


class Pulls:
    """The pulls that run. Lives on one event loop."""

    def __init__(self, store: ModelStore, registries: Sequence[str]) -> None:
        self._store = store
        self._registries = registries
        self._running: dict[tuple[str, bool], _Pull] = {}
        self._threads: set[threading.Thread] = set()

    def join(self, name: str, insecure: bool) -> Listener:
        """Listen to the pull of `name`, begun now if none runs. Raises BadRequestError."""
        key = (name_key(name), insecure)
        if (running := self._running.get(key)) is None:
            lines = pull(self._store, name, self._registries, insecure)

            def forget() -> None:
                if self._running.get(key) is running:
                    del self._running[key]

            running = self._running[key] = _Pull(name, lines, forget)
            self._threads = {thread for thread in self._threads if thread.is_alive()}
            self._threads.add(running.start())
        return Listener(running)

    def end(self) -> None:
        """End all; what has come of them is kept for the next time."""
        for running in list(self._running.values()):
            running.end()

    async def close(self) -> None:
        self.end()
        for thread in self._threads:
            await asyncio.to_thread(thread.join, _END_SECONDS)


class Listener:
    """One who asked for a pull. `close` when it hangs up; an iterator that ended needs none."""

    def __init__(self, running: _Pull) -> None:
        self._running = running
        self._queue = running.listen()

    async def lines(self) -> AsyncIterator[Json]:
        """What was told so far, then what comes. Raises EmberdError."""
        while (line := await self._queue.get()) is not None:
            if isinstance(line, EmberdError):
                raise line
            yield line

    async def end(self) -> None:
        """Wait for the pull's end. Raises EmberdError."""
        async for _ in self.lines():
            pass

    def close(self) -> None:
        self._running.leave(self._queue)


_Queue = asyncio.Queue["Json | EmberdError | None"]


class _Pull:
    def __init__(self, name: str, lines: Iterator[Json], forget: Callable[[], None]) -> None:
        self._name = name
        self._lines = lines
        self._forget = forget
        self._told: dict[str, Json] = {}  # by status; of a layer only the latest
        self._listeners: list[_Queue] = []
        self._last_status, self._told_at = "", 0.0
        self._ended = threading.Event()
        self._loop = asyncio.get_running_loop()

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name=f"pull {self._name}", daemon=True)
        thread.start()
        return thread

    def listen(self) -> _Queue:
        queue: _Queue = asyncio.Queue()
        for line in self._told.values():
            queue.put_nowait(line)
        self._listeners.append(queue)
        return queue

    def leave(self, queue: _Queue) -> None:
        if queue in self._listeners:
            self._listeners.remove(queue)
            if not self._listeners:
                self.end()

    def end(self) -> None:
        self._ended.set()
        self._forget()
        for queue in self._listeners:
            queue.put_nowait(DownloadError("the daemon is shutting down; pull again to go on"))

    def _run(self) -> None:
        """In the thread."""
        last: EmberdError | None = None
        try:
            for line in self._lines:
                if self._ended.is_set():
                    break
                if self._is_news(line):
                    self._on_loop(self._tell, line)
        except EmberdError as error:
            last = error
        except Exception:
            logger.exception("pull of '%s'", self._name)
            last = DownloadError("internal error; the daemon's log tells more")
        finally:
            self._lines.close()  # type: ignore[attr-defined]
        self._on_loop(self._finish, last)

    def _is_news(self, line: Json) -> bool:
        """Progress of a layer is told from time to time, and its end."""
        now = time.monotonic()
        more_of_the_same = line["status"] == self._last_status
        is_end = line.get("completed") == line.get("total")
        if more_of_the_same and not is_end and now - self._told_at < _TOLD_SECONDS:
            return False
        self._last_status, self._told_at = line["status"], now
        return True

    def _on_loop(self, call: Callable[..., None], *values: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the daemon has left
            self._loop.call_soon_threadsafe(call, *values)

    def _tell(self, line: Json) -> None:
        self._told[line["status"]] = line
        for queue in self._listeners:
            queue.put_nowait(line)

    def _finish(self, error: EmberdError | None) -> None:
        self._forget()
        if error is None:
            logger.info("pulled '%s'", self._name)
        else:
            logger.error("pull of '%s' failed: %s", self._name, error)
        for queue in self._listeners:
            if error is not None:
                queue.put_nowait(error)
            queue.put_nowait(None)
        self._listeners = []
