"""ModelStore: which models there are, and the file behind a name.

Files in the models folder and files registered at the start. A caller's name is only looked up among the
names found, so no name reaches outside. Knows nothing of loading.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import ConfigError, ModelFileError, ModelNotFoundError
from ..gguf.reader import GGUFFile
from .facts import ModelFacts, read_facts
from .names import DEFAULT_TAG, check_name, full_name, name_key

logger = logging.getLogger(__name__)

_MAX_FOLDERS = 3  # NAME may be as deep as hf.co/owner/name


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model that could be loaded."""

    name: str  # with its tag
    path: Path
    size: int  # bytes
    modified: datetime  # UTC
    facts: ModelFacts


class ModelStore:
    """Names to files. All methods may block on the disk and may be called from any thread."""

    def __init__(self, models_dir: Path, cache_dir: Path) -> None:
        self.models_dir = models_dir
        self.cache_dir = cache_dir
        self._registered: dict[str, Path] = {}  # full name -> file
        self._facts: dict[tuple[Path, int, int], ModelFacts | ModelFileError] = {}
        self._lock = threading.Lock()

    def register(self, entry: str) -> str:
        """Make `entry` servable and give its name: a path of a GGUF file, or the name of a model that is there.

        For settings and flags, never for callers. Raises ConfigError.
        """
        path = Path(entry).expanduser()
        if path.is_file():
            name = full_name(path.stem.replace(":", "-"))
            self._registered[name] = path.resolve()
            return name
        try:
            return self._locate(check_name(entry))[0]
        except ModelNotFoundError:
            pass
        except Exception as error:
            logger.debug("not a model name: %s", error)
        raise ConfigError(
            f"model '{entry}': no such file, and no model of that name in {self.models_dir}"
        )

    def models(self) -> list[StoredModel]:
        """Every model whose header is in order, newest first. Others are left out, with a line in the log."""
        found = []
        for name, path in self._scan().items():
            try:
                found.append(self._describe(name, path))
            except ModelFileError as error:
                _log_left_out(path, error.message)
        return sorted(found, key=lambda model: (-model.modified.timestamp(), model.name))

    def find(self, name: str) -> StoredModel:
        """The model called `name`. Raises BadRequestError, ModelNotFoundError or ModelFileError."""
        return self._describe(*self._locate(check_name(name)))

    def metadata(self, stored: StoredModel) -> dict[str, Any]:
        """The file's own metadata, read anew. Raises ModelFileError."""
        with GGUFFile(stored.path) as file:
            return file.metadata

    def _locate(self, name: str) -> tuple[str, Path]:
        found = self._scan()
        for candidate, path in found.items():
            if name_key(candidate) == name_key(name):
                return candidate, path
        stem = name.casefold()
        same_stem = {path: found_name for found_name, path in found.items() if _stem(path) == stem}
        if len(same_stem) == 1:
            path, candidate = same_stem.popitem()
            return candidate, path
        raise ModelNotFoundError(name)

    def _scan(self) -> dict[str, Path]:
        """Full name -> file; registered files first, then the folder in order of names."""
        found = dict(self._registered)
        known = {name_key(name) for name in found}
        for path in sorted(_gguf_files(self.models_dir, _MAX_FOLDERS)):
            name = _name_of(path.relative_to(self.models_dir))
            if name_key(name) not in known:
                known.add(name_key(name))
                found[name] = path
        return found

    def _describe(self, name: str, path: Path) -> StoredModel:
        try:
            status = path.stat()
        except OSError:
            raise ModelNotFoundError(name) from None
        return StoredModel(
            name=name,
            path=path,
            size=status.st_size,
            modified=datetime.fromtimestamp(status.st_mtime, timezone.utc),
            facts=self._read_facts(path, status),
        )

    def _read_facts(self, path: Path, status: os.stat_result) -> ModelFacts:
        key = (path, status.st_size, status.st_mtime_ns)
        with self._lock:  # several callers at once read a header once
            known = self._facts.get(key)
            if known is None:
                try:
                    known = read_facts(path, self.cache_dir)
                except ModelFileError as error:
                    known = error
                self._facts[key] = known
        if isinstance(known, ModelFileError):
            raise ModelFileError(known.message)
        return known


def _stem(path: Path) -> str:
    return path.stem.casefold()


def _name_of(relative: Path) -> str:
    """`NAME.gguf` -> NAME:latest, `NAME/TAG.gguf` -> NAME:TAG; NAME may itself hold folders."""
    if len(relative.parts) == 1:
        return f"{relative.stem}:{DEFAULT_TAG}"
    return f"{relative.parent.as_posix()}:{relative.stem}"


@lru_cache(maxsize=1024)  # said once a file, not once a listing
def _log_left_out(path: Path, reason: str) -> None:
    logger.warning("model left out: %s", reason)


def _gguf_files(folder: Path, depth: int) -> Iterator[Path]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if ":" in entry.name or "\\" in entry.name:
            if entry.name.lower().endswith(".gguf"):
                _log_left_out(
                    Path(entry.path),
                    f"{entry.name}: ':' and '\\' have no place in a name; rename it",
                )
            continue
        if entry.name.lower().endswith(".gguf") and entry.is_file():
            yield Path(entry.path)
        elif depth and entry.is_dir():
            yield from _gguf_files(Path(entry.path), depth - 1)
