"""KV blocks as files, one a block: a header that says whose it is, then the bytes.

A file is written under another name, brought to the disk and renamed, so under its own name it is whole. Whatever
is not what its header and name promise is removed and never used.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from emberd.protocol import Bytes

from .prefix import Key

_MAGIC = b"emberdKV"
_VERSION = 2
_HEADER = struct.Struct("<8sI32s16s16sQ16s")
"""Magic, version, identity, key, key of the block before (zeros: none), bytes, their digest. Little-endian."""
_NONE = bytes(16)
_SUFFIX, _UNFINISHED = ".kv", ".part"
_UNFINISHED_SECONDS = 3600.0
"""After that long, a file that is still being written is what a process that died has left."""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    path: Path
    nbytes: int  # of the file
    used: float  # when it was written or used last, as the file system tells
    key: Key
    parent: Key | None


class BlockFiles:
    """The folder of one identity: model, layout and version. Every method may raise OSError."""

    def __init__(self, root: Path, identity: bytes, block_bytes: int) -> None:
        assert len(identity) == 32
        self.folder = root / identity.hex()[:32]
        self._identity = identity
        self._block_bytes = block_bytes
        self.file_bytes = _HEADER.size + block_bytes
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def listing(self) -> list[StoredBlock]:
        """Whole files, the one used longest ago first. What others have left unfinished is removed."""
        found = []
        for stored, entry in _entries(self.folder):
            if stored is not None and stored.nbytes == self.file_bytes:
                found.append(stored)
            elif stored is not None or _is_stale(entry):
                _remove(Path(entry.path))
        return sorted(found, key=lambda stored: stored.used)

    def others(self) -> list[StoredBlock]:
        """Files of other models, layouts and versions, the one used longest ago first."""
        folders = [
            Path(entry.path)
            for entry in os.scandir(self.folder.parent)
            if entry.is_dir(follow_symlinks=False) and entry.name != self.folder.name
        ]
        found = [stored for folder in folders for stored, _ in _entries(folder) if stored]
        return sorted(found, key=lambda stored: stored.used)

    def write(self, key: Key, parent: Key | None, data: Bytes) -> None:
        path = self._path(key, parent)
        unfinished = path.with_suffix(f".{os.getpid()}{_UNFINISHED}")
        body = np.ascontiguousarray(data).data
        assert body.nbytes == self._block_bytes
        header = self._header(key, parent, _digest(body))
        try:
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(header)
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        except BaseException:
            _remove(unfinished)
            raise

    def read(self, key: Key, parent: Key | None) -> Bytes | None:
        """The block's bytes; None where the file is gone, or is not what it should be: then it is removed."""
        path = self._path(key, parent)
        try:
            content = np.fromfile(path, np.uint8)
        except FileNotFoundError:
            return None
        body = content[_HEADER.size :]
        if len(body) == self._block_bytes:
            header = self._header(key, parent, _digest(body.data))
            if content[: _HEADER.size].tobytes() == header:
                with contextlib.suppress(OSError):
                    os.utime(path)
                return body
        _remove(path)
        return None

    def remove(self, key: Key, parent: Key | None) -> None:
        _remove(self._path(key, parent))

    def _path(self, key: Key, parent: Key | None) -> Path:
        return self.folder / f"{key.hex()}-{(parent or _NONE).hex()}{_SUFFIX}"

    def _header(self, key: Key, parent: Key | None, digest: bytes) -> bytes:
        size = self._block_bytes
        return _HEADER.pack(_MAGIC, _VERSION, self._identity, key, parent or _NONE, size, digest)


def remove_block(stored: StoredBlock) -> None:
    _remove(stored.path)


def _entries(folder: Path) -> Iterator[tuple[StoredBlock | None, os.DirEntry[str]]]:
    """Every file, and what its name says where that is a block's."""
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                told = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # another process removed it
            name, suffix = os.path.splitext(entry.name)
            key, _, parent = name.partition("-")
            stored = None
            if suffix == _SUFFIX and _is_key(key) and _is_key(parent):
                before = bytes.fromhex(parent)
                stored = StoredBlock(
                    Path(entry.path),
                    told.st_size,
                    told.st_mtime,
                    bytes.fromhex(key),
                    None if before == _NONE else before,
                )
            yield stored, entry


def _is_key(text: str) -> bool:
    return len(text) == 32 and not text.strip("0123456789abcdef")


def _is_stale(entry: os.DirEntry[str]) -> bool:
    if not entry.name.endswith(_UNFINISHED):
        return False
    try:
        return entry.stat(follow_symlinks=False).st_mtime < time.time() - _UNFINISHED_SECONDS
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def _digest(body: memoryview) -> bytes:
    """Against damage, not against forgery: the folder is its owner's alone."""
    return xxhash.xxh3_128_digest(body)
