"""The tier on disk: which blocks have a file, which one goes next, and threads that read and write them.

All but the reading and writing is done by the caller's thread, in `poll` at the latest.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import Any

from emberd.protocol import Bytes

from .block_files import BlockFiles, remove_block
from .leaf_order import LeafOrder
from .prefix import Key
from .rates import Rate

log = logging.getLogger(__name__)

_READERS = 4
_LEAST_MEASURED = 1 << 20
"""Bytes read together that tell how fast the disk is: fewer are there before anybody could wait for them."""

_QUEUED_BYTES = 256 << 20
"""Bytes that may wait to be written. What comes beyond is not kept."""


class DiskTier:
    """Blocks in files, at most `max_bytes` of them with those of other models.

    Reading is by `fetch`, then `poll` until the key is no longer `is_fetching`. An error of the disk is logged
    once and ends the writing: the tier is there to save time, and nothing depends on it.
    """

    def __init__(
        self,
        files: BlockFiles,
        max_bytes: int,
        fetched: Rate,
        readers: Executor | None = None,
        writer: Executor | None = None,
    ) -> None:
        self._files, self._max_bytes, self._rate = files, max_bytes, fetched
        self._readers = readers or ThreadPoolExecutor(_READERS, "emberd-kv-read")
        self._writer = writer or ThreadPoolExecutor(1, "emberd-kv-write")
        self._order = LeafOrder()
        self._writing: dict[Key, Future[None]] = {}
        self._reading: dict[Key, Future[Bytes | None]] = {}
        self._began = 0.0  # when the reads under way were asked for
        self._num_asked = 0
        self._writes = True
        for stored in files.listing():
            if stored.key not in self._order:
                self._order.add(stored.key, stored.parent)
        self._others = deque(files.others())
        self._other_bytes = sum(stored.nbytes for stored in self._others)
        self._make_room()

    def __contains__(self, key: Key) -> bool:
        """Whether the key has a file, or soon has."""
        return key in self._order

    @property
    def num_blocks(self) -> int:
        return len(self._order)

    @property
    def nbytes(self) -> int:
        return len(self._order) * self._files.file_bytes

    @property
    def rates_path(self) -> Path:
        """Where `Rates` of this model, layout and machine are kept."""
        return self._files.folder / "rates.json"

    @property
    def busy(self) -> bool:
        return bool(self._writing or self._reading)

    @property
    def has_room_to_write(self) -> bool:
        """Whether another block may be given to `write` now."""
        waiting = len(self._writing) * self._files.file_bytes
        return self._writes and waiting < _QUEUED_BYTES

    def write(self, key: Key, parent: Key | None, data: Bytes) -> bool:
        """Begin to write a block that is not there; False where it is not taken."""
        if not self.has_room_to_write:
            return False
        self._order.add(key, parent)
        self._make_room()
        if key not in self._order:
            return False  # the room is taken by the blocks before it
        self._writing[key] = self._writer.submit(self._files.write, key, parent, data)
        return True

    def fetch(self, keys: Sequence[Key]) -> None:
        """Begin to read blocks that are there."""
        if not self._reading:
            self._began, self._num_asked = time.perf_counter(), 0
        for key in keys:
            if key not in self._reading:
                self._num_asked += 1
                self._order.use(key)
                self._reading[key] = self._readers.submit(
                    self._read, key, self._order.parent(key), self._writing.get(key)
                )

    def parents(self) -> dict[Key, Key | None]:
        """Of every key, that of the block before it."""
        return self._order.parents()

    def drop(self, key: Key) -> None:
        """Remove a block, if it is here, also while it is read or written."""
        self._reading.pop(key, None)
        if key in self._order:
            self._remove(key)

    def is_fetching(self, key: Key) -> bool:
        return key in self._reading

    def poll(self) -> dict[Key, Bytes]:
        """What has been read since; files that could not be read or written are forgotten."""
        for key in [key for key, future in self._writing.items() if future.done()]:
            error = self._writing.pop(key).exception()
            if error is not None:
                self._stop_writing(error)
                self._forget(key)
        found = {}
        for key in [key for key, future in self._reading.items() if future.done()]:
            future = self._reading.pop(key)
            data = None if future.exception() else future.result()
            if data is None:
                self._forget(key)
            else:
                found[key] = data
        if found and not self._reading:
            size = self._num_asked * self._files.file_bytes
            if size >= _LEAST_MEASURED:
                self._rate.note(size, time.perf_counter() - self._began)
        return found

    def wait(self, seconds: float) -> None:
        """Until one of the reads or writes under way is done, or so long."""
        under_way: list[Future[Any]] = [*self._reading.values(), *self._writing.values()]
        wait_for(under_way, timeout=seconds, return_when=FIRST_COMPLETED)

    def close(self) -> None:
        """Finish what is being written."""
        self._readers.shutdown(cancel_futures=True)
        self._writer.shutdown()

    def _read(self, key: Key, parent: Key | None, written: Future[None] | None) -> Bytes | None:
        if written is not None:
            written.result()
        return self._files.read(key, parent)

    def _make_room(self) -> None:
        while self._other_bytes + self.nbytes > self._max_bytes:
            if self._others:
                stored = self._others.popleft()
                self._other_bytes -= stored.nbytes
                self._writer.submit(remove_block, stored)
                continue
            self._remove(self._order.first())

    def _remove(self, key: Key) -> None:
        parent = self._order.parent(key)
        self._order.remove(key)
        self._writer.submit(self._files.remove, key, parent)  # behind its write

    def _forget(self, key: Key) -> None:
        if key in self._order:
            self._order.remove(key)

    def _stop_writing(self, error: BaseException) -> None:
        if self._writes:
            log.warning("KV blocks are no longer written to %s: %s", self._files.folder, error)
        self._writes = False
