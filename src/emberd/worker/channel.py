"""The socket between gateway and worker: pickled protocol objects, each behind its length.

Both ends are ours and of one version. It knows how messages travel, not what they ask for.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
import threading
from dataclasses import dataclass

_LENGTH = struct.Struct("!Q")


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Worker to gateway while it loads; `fraction` from 0 to 1."""

    fraction: float


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """Worker to gateway in place of WorkerInfo. `kind` is the name of the error class."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class DeviceLost:
    """Worker to gateway, at any time: its last message. `reason` is for the user."""

    reason: str


def encode(message: object) -> bytes:
    payload = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(payload)) + payload


class Channel:
    """The worker's end, blocking. Any thread may send while one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.RLock()

    def send(self, message: object) -> None:
        """Raises OSError when the other end is closed."""
        with self._sending:
            self._connection.sendall(encode(message))

    def receive(self) -> object:
        """The next message. Raises EOFError when the other end is closed."""
        return pickle.loads(self._read(_LENGTH.unpack(self._read(_LENGTH.size))[0]))

    def _read(self, size: int) -> bytearray:
        # Unbuffered: a thread that waits inside a buffered file makes the interpreter abort at exit.
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            try:
                count = self._connection.recv_into(rest)
            except ConnectionError:
                count = 0
            if count == 0:
                raise EOFError("the other end of the channel is closed")
            rest = rest[count:]
        return data


async def receive(reader: asyncio.StreamReader) -> object:
    """The gateway's end: the next message. Raises EOFError when the worker's end is closed."""
    try:
        size = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))[0]
        return pickle.loads(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise EOFError("the other end of the channel is closed") from error
