"""Download: one file by HTTP, resumed where it was cut, checked before it is there. Knows no registry.

Bytes are written to `NAME.part` beside the target, which one process at a time may hold. The target appears
only when size and SHA-256 are those that were promised.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import ssl
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import BinaryIO

import httpx

from .. import __version__
from ..errors import DownloadError

try:
    import fcntl
except ImportError:  # not a POSIX system: only one process should pull at a time there
    fcntl = None  # type: ignore[assignment]

CHUNK_BYTES = 1 << 20
_WAIT_SECONDS = 0.2  # between two looks whether another process is done
_TIMEOUT = httpx.Timeout(60.0, connect=15.0)


def open_client(verify: bool = True) -> httpx.Client:
    """Follows redirects; httpx drops credentials where one leads to another host."""
    return httpx.Client(
        timeout=_TIMEOUT,
        verify=_trusted() if verify else False,
        follow_redirects=True,
        headers={"user-agent": f"emberd/{__version__}", "accept-encoding": "identity"},
    )


@cache
def _trusted() -> ssl.SSLContext:
    """The certificates that are trusted; reading them takes tens of milliseconds."""
    return httpx.create_ssl_context()


class Download:
    """`size` and `sha256` (hex) are what was promised; None: not known."""

    def __init__(
        self,
        client: httpx.Client,
        url: str,
        target: Path,
        size: int | None = None,
        sha256: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.size = size
        self.sha256 = sha256
        self._client = client
        self._url = url
        self._target = target
        self._headers = dict(headers or {})
        self._part = target.with_name(f"{target.name}.part")
        self._hash = hashlib.sha256()
        self._done = 0

    def run(self) -> Iterator[int]:
        """How many bytes there are, after each piece. Closing the iterator ends it; what came is kept.

        Raises DownloadError.
        """
        try:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            file = None
            while file is None and not self._target.exists():
                file = self._hold()
                if file is None:
                    yield self._size_of(self._part)
                    time.sleep(_WAIT_SECONDS)
            if file is None:
                yield self._size_of(self._target)
                if self.sha256 is None:
                    yield from self._read(self._target)
                    self.size, self.sha256 = self._done, self._hash.hexdigest()
                return
            with file:
                try:
                    yield from self._fill(file)
                except BaseException:
                    if not os.fstat(file.fileno()).st_size:  # nothing to go on from
                        self._part.unlink(missing_ok=True)
                    raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self._part.unlink(missing_ok=True)
                raise DownloadError("the disk is full; what had come was removed") from None
            raise DownloadError(f"the models folder cannot be written: {error.strerror}") from None

    def _hold(self) -> BinaryIO | None:
        """The part file, locked for this process; None while another one has it."""
        file = open(self._part, "ab", buffering=0)
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # It may have been finished or removed between opening and locking.
            if os.path.samestat(os.fstat(file.fileno()), os.stat(self._part)):
                if not self._target.exists():
                    return file
                self._part.unlink()
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            file.close()
            raise
        file.close()
        return None

    def _fill(self, file: BinaryIO) -> Iterator[int]:
        yield from self._read(self._part)
        if self.size is not None and self._done > self.size:
            self._restart(file)
        if self.size is None or self._done < self.size:
            yield from self._fetch(file)
        if self.size is not None and self._done != self.size:
            raise self._refused(f"{self._done} bytes came, and its record says {self.size}")
        digest = self._hash.hexdigest()
        if self.sha256 is not None and digest != self.sha256:
            raise self._refused(f"its digest is sha256:{digest}, not sha256:{self.sha256}")
        os.fsync(file.fileno())
        os.replace(self._part, self._target)
        self.size, self.sha256 = self._done, digest
        yield self._done

    def _read(self, path: Path) -> Iterator[int]:
        with open(path, "rb") as there:
            while chunk := there.read(CHUNK_BYTES):
                self._hash.update(chunk)
                self._done += len(chunk)
                yield self._done

    def _fetch(self, file: BinaryIO) -> Iterator[int]:
        self._check_room()
        headers = self._headers | ({"range": f"bytes={self._done}-"} if self._done else {})
        try:
            with self._client.stream("GET", self._url, headers=headers) as reply:
                out_of_range = bool(self._done) and reply.status_code == 416
                fresh_and_odd = "range" not in headers and reply.status_code != 200
                if fresh_and_odd or (reply.status_code >= 400 and not out_of_range):
                    raise DownloadError(
                        f"{_host(self._url)} answered {reply.status_code} for the file"
                    )
                if self._done and not self._goes_on(reply):
                    self._restart(file)
                if not self._done and reply.status_code != 200:
                    reply.close()
                    yield from self._fetch(file)
                    return
                self._check_length(reply)
                yield from self._take(reply, file)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            if not self._done:
                raise DownloadError(f"{_host(self._url)} cannot be reached: {error}") from None
            size = "" if self.size is None else f" of {self.size}"
            raise DownloadError(
                f"the connection was cut after {self._done}{size} bytes; pull again to go on from there"
            ) from None

    def _take(self, reply: httpx.Response, file: BinaryIO) -> Iterator[int]:
        for chunk in reply.iter_raw():  # in larger pieces, a cut would lose the last one
            left = memoryview(chunk)
            while left:  # a disk that is nearly full takes a part
                left = left[file.write(left) :]
            self._hash.update(chunk)
            self._done += len(chunk)
            if self.size is not None and self._done > self.size:
                raise self._refused(f"more bytes came than the {self.size} of its record")
            yield self._done

    def _goes_on(self, reply: httpx.Response) -> bool:
        return reply.status_code == 206 and reply.headers.get("content-range", "").startswith(
            f"bytes {self._done}-"
        )

    def _check_length(self, reply: httpx.Response) -> None:
        length = reply.headers.get("content-length", "")
        if not length.isdecimal() or len(length) > 18:
            return
        whole = self._done + int(length)
        if self.size is None:
            self.size = whole
            self._check_room()
        elif whole != self.size:
            raise self._refused(f"the server has {whole} bytes, and its record says {self.size}")

    def _check_room(self) -> None:
        if self.size is None:
            return
        need, free = self.size - self._done, shutil.disk_usage(self._part.parent).free
        if need > free:
            raise DownloadError(f"{need} bytes are to come, and the disk has room for {free}")

    def _restart(self, file: BinaryIO) -> None:
        file.truncate(0)
        self._hash, self._done = hashlib.sha256(), 0

    def _refused(self, reason: str) -> DownloadError:
        self._part.unlink(missing_ok=True)
        return DownloadError(f"the file is not what was promised and was removed: {reason}")

    def _size_of(self, path: Path) -> int:
        try:
            return path.stat().st_size
        except OSError:
            return 0


def fetch_bytes(client: httpx.Client, url: str, most: int, headers: Mapping[str, str]) -> bytes:
    """A small body. Raises DownloadError, and httpx.HTTPStatusError for a status of 400 or more."""
    try:
        with client.stream("GET", url, headers=dict(headers)) as reply:
            reply.raise_for_status()
            body = b""
            for chunk in reply.iter_raw():
                body += chunk
                if len(body) > most:
                    raise DownloadError(f"{_host(url)} sent more than {most} bytes")
            return body
    except httpx.HTTPStatusError:
        raise
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise DownloadError(f"{_host(url)} cannot be reached: {error}") from None


def _host(url: str) -> str:
    return httpx.URL(url).host
