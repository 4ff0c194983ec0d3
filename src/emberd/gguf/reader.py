"""mmap reader of GGUF files: metadata, tensor directory, views of tensor data.

Knows the container only: what keys and tensors mean is spec.py's, how weights are packed dequant.py's.
"""

from __future__ import annotations

import mmap
import os
import stat
from contextlib import suppress
from math import prod
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFileError
from .header import Header, TensorInfo
from .shards import model_files

__all__ = ["GGUFFile", "TensorInfo"]


class GGUFFile:
    """An open GGUF file of version 2 or 3, little-endian; of a split model, any part opens the whole.

    `metadata` holds Python scalars and strings; arrays of strings are `list[str]`, arrays of numbers or
    booleans NumPy arrays, arrays of arrays lists of those. Strings inside arrays keep bytes that are no
    UTF-8 as surrogate escapes, so two tokens never fall together; other strings get U+FFFD there.
    Raises `ModelFileError`, naming file and fault, for whatever is damaged, hostile or not supported.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.name = _shown(self.path)  # as errors quote it
        self._maps: list[mmap.mmap] = []
        self._bytes: dict[str, NDArray[np.uint8]] = {}  # of the file that holds a tensor
        self.tensors: dict[str, TensorInfo] = {}
        try:
            headers = [self._read(file) for file in model_files(self.path)]
            self._check_split(headers)
        except BaseException:
            self.close()
            raise
        self.version = headers[0].version
        self.metadata = headers[0].metadata
        self.size = sum(len(mapped) for mapped in self._maps)  # bytes
        self._closed = False

    def data(self, info: TensorInfo) -> NDArray[np.uint8]:
        """(nbytes,) read-only view of the tensor's bytes, without a copy."""
        assert not self._closed, f"{self.name} is closed"
        if info.offset < 0:
            return np.zeros(info.nbytes, np.uint8)
        return self._bytes[info.name][info.offset : info.offset + info.nbytes]

    def rows(self, info: TensorInfo) -> NDArray[np.uint8]:
        """(rows, bytes a row) view: the last dimension is a row, all others are counted together."""
        return self.data(info).reshape(prod(info.shape[:-1]), -1)

    def close(self) -> None:
        """Let the mapping go. Views that are still held keep it alive until they go too."""
        self._closed = True
        self._bytes = {}
        for mapped in self._maps:
            with suppress(BufferError):
                mapped.close()

    def _read(self, path: Path) -> Header:
        mapped = _map_file(path, _shown(path))
        self._maps.append(mapped)
        header = Header(mapped, _shown(path))
        data = np.frombuffer(mapped, dtype=np.uint8)
        for name, info in header.tensors.items():
            if name in self.tensors:
                raise ModelFileError(f"{_shown(path)}: tensor {name!r:.80} is in another part too")
            self.tensors[name] = info
            self._bytes[name] = data
        return header

    def _check_split(self, headers: list[Header]) -> None:
        """What the files say of being parts must agree with their names."""
        for number, header in enumerate(headers):
            count, own = (header.metadata.get(f"split.{key}") for key in ("count", "no"))
            if isinstance(count, int) and max(count, 1) != len(headers):
                raise ModelFileError(
                    f"{self.name}: is one of {count} parts; the parts must lie side by side, called "
                    f"NAME-00001-of-{count:05}.gguf and so on"
                )
            if isinstance(own, int) and len(headers) > 1 and own != number:
                raise ModelFileError(
                    f"{self.name}: part {number + 1} says that it is part {own + 1}"
                )
        total = headers[0].metadata.get("split.tensors.count")
        if isinstance(total, int) and len(headers) > 1 and total != len(self.tensors):
            raise ModelFileError(
                f"{self.name}: the parts hold {len(self.tensors)} tensors together, not {total}"
            )

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _shown(path: Path) -> str:
    return path.name.encode("utf-8", "replace").decode()


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
