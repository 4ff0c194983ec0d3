"""Upload: a blob that a caller sends, kept under its digest only when it has that digest."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from contextlib import suppress

from ..errors import BadRequestError, DownloadError
from .pulled import PullFolder

_WRITE_BYTES = 1 << 20


class Upload:
    """Use from one task; `write` and `finish` block. `close` always."""

    def __init__(self, folder: PullFolder, digest: str) -> None:
        """Raises BadRequestError for what is no digest."""
        self._target = folder.blob(digest)
        self._digest = digest
        self._hash = hashlib.sha256()
        self._waiting: list[bytes] = []
        self._num_waiting = 0
        self._file: tuple[int, str] | None = None  # descriptor, path

    def add(self, chunk: bytes) -> bool:
        """Whether it is time to write."""
        self._waiting.append(chunk)
        self._num_waiting += len(chunk)
        return self._num_waiting >= _WRITE_BYTES

    def write(self) -> None:
        """Raises DownloadError where the disk refuses."""
        data = b"".join(self._waiting)
        self._waiting, self._num_waiting = [], 0
        self._hash.update(data)
        try:
            if self._file is None:
                self._target.parent.mkdir(parents=True, exist_ok=True)
                self._file = tempfile.mkstemp(dir=self._target.parent, suffix=".part")
            view = memoryview(data)
            while view:
                view = view[os.write(self._file[0], view) :]
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DownloadError("the disk is full; what had come was removed") from None
            raise DownloadError(f"the models folder cannot be written: {error.strerror}") from None

    def finish(self) -> bool:
        """Whether the blob is new here. Raises BadRequestError where it has another digest."""
        self.write()
        found = f"sha256:{self._hash.hexdigest()}"
        if found != self._digest:
            raise BadRequestError(
                f"'digest': the bytes sent have the digest {found}, not {self._digest}", "digest"
            )
        if self._target.exists():
            return False
        assert self._file is not None
        os.fsync(self._file[0])
        os.replace(self._file[1], self._target)
        return True

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file[0])
            with suppress(FileNotFoundError):
                os.unlink(self._file[1])
            self._file = None
