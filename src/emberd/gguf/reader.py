"""mmap reader of GGUF files: metadata, tensor directory, views of tensor data.

Knows the container only: what keys and tensors mean is spec.py's, how weights are packed dequant.py's.
"""

from __future__ import annotations

import mmap
import os
import stat
from math import prod
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFileError
from .header import Header, TensorInfo

__all__ = ["GGUFFile", "TensorInfo"]


class GGUFFile:
    """An open GGUF file of version 2 or 3, little-endian.

    `metadata` holds Python scalars and strings; arrays of strings are `list[str]`, arrays of numbers or
    booleans NumPy arrays, arrays of arrays lists of those. Strings inside arrays keep bytes that are no
    UTF-8 as surrogate escapes, so two tokens never fall together; other strings get U+FFFD there.
    Raises `ModelFileError`, naming file and fault, for whatever is damaged, hostile or not supported.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.name = self.path.name.encode("utf-8", "replace").decode()  # as errors quote it
        self._map = _map_file(self.path, self.name)
        try:
            header = Header(self._map, self.name)
            self.version = header.version
            self.metadata = header.metadata
            self.tensors = header.tensors
        except BaseException:
            self._map.close()
            raise
        self.size = len(self._map)  # bytes
        self._bytes: NDArray[np.uint8] | None = np.frombuffer(self._map, dtype=np.uint8)

    def data(self, info: TensorInfo) -> NDArray[np.uint8]:
        """(nbytes,) read-only view of the tensor's bytes, without a copy."""
        assert self._bytes is not None, f"{self.name} is closed"
        return self._bytes[info.offset : info.offset + info.nbytes]

    def rows(self, info: TensorInfo) -> NDArray[np.uint8]:
        """(rows, bytes a row) view: the last dimension is a row, all others are counted together."""
        return self.data(info).reshape(prod(info.shape[:-1]), -1)

    def close(self) -> None:
        """Let the mapping go. Views that are still held keep it alive until they go too."""
        self._bytes = None
        try:
            self._map.close()
        except BufferError:
            pass

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _map_file(path: Path, name: str) -> mmap.mmap:
    try:
        status = path.stat()
        # Opening a pipe would wait for its other end.
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError(f"{name}: is not a regular file")
        if status.st_size == 0:
            raise ModelFileError(f"{name}: the file is empty; fetch the model again")
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelFileError(f"{name}: cannot be opened: {reason}") from error
