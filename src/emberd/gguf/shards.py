"""Split models: files `NAME-0000N-of-0000M.gguf` side by side that together are one. Knows names only."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelFileError

_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ShardName:
    stem: str  # what the model is called without the part's number
    number: int  # from 1
    count: int
    suffix: str

    def sibling(self, number: int) -> str:
        return f"{self.stem}-{number:05}-of-{self.count:05}{self.suffix}"


def shard_name(file_name: str) -> ShardName | None:
    """None where the name is not that of a part."""
    match = _SHARD.fullmatch(file_name)
    if match is None:
        return None
    name = ShardName(match[1], int(match[2]), int(match[3]), match[4])
    return name if 1 <= name.number <= name.count else None


def model_files(path: Path) -> list[Path]:
    """The files of the model that `path` is, or is a part of, in order. Raises ModelFileError for a missing part."""
    name = shard_name(path.name)
    if name is None:
        return [path]
    files = []
    for number in range(1, name.count + 1):
        file = path.with_name(name.sibling(number))
        if not os.path.isfile(file):
            raise ModelFileError(
                f"{path.name}: the model is split into {name.count} files, and {file.name} is missing"
            )
        files.append(file)
    return files


def model_stem(path: Path) -> str:
    """The file's name without its ending, and without a part's number."""
    name = shard_name(path.name)
    return path.stem if name is None else name.stem
