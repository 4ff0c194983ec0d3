"""PullFolder: what emberd itself keeps, below the models folder: blobs, files of the hub, and a manifest a model.

    pulled/models/NAME.json       what a name means: a file, and a recipe; written last, at once
    pulled/blobs/sha256-HEX       layers of a registry and uploads, whole and checked
    pulled/files/KEY/NAME         the parts of a split model under their own names
    *.part                        what is not whole yet

Nothing outside this folder is ever changed. Blocks on the disk; may be called from any thread.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..errors import EmberdError, ModelFileError
from ..gguf.shards import model_files
from .found import Found, log_left_out
from .names import check_digest, name_key
from .recipe import PLAIN, Recipe

PULLED = "pulled"
_VERSION = 1
_UNUSED_SECONDS = 24 * 3600.0  # of a blob that no name means
_PART_SECONDS = 14 * 24 * 3600.0
_MAX_MANIFEST_BYTES = 8 << 20


class PullFolder:
    def __init__(self, models_dir: Path) -> None:
        self.root = Path(os.path.abspath(models_dir)) / PULLED

    def found(self) -> Iterator[Found]:
        try:
            paths = sorted((self.root / "models").glob("*.json"))
        except OSError:
            return
        for path in paths:
            try:
                yield _read_manifest(self.root, path, path.stat().st_mtime_ns)
            except (OSError, ModelFileError) as error:
                log_left_out(str(path), getattr(error, "message", f"{path.name}: cannot be read"))

    def blob(self, digest: str) -> Path:
        """Where the blob is or would be. Raises BadRequestError for what is no digest."""
        return self.root / "blobs" / check_digest(digest).replace(":", "-")

    def file(self, *parts: str) -> Path:
        """Where a file of the hub is or would be. Raises ModelFileError for a name that leads elsewhere."""
        for part in parts:
            if part.strip(".") == "" or set(part) & set("/\\:\0") or part.startswith("."):
                raise ModelFileError("a file's name in the repository is not one that can be kept")
        return self.root.joinpath("files", *parts)

    def keep(self, name: str, path: Path, recipe: Recipe) -> None:
        """From now on `name` (full, checked) means the file with the recipe. Raises EmberdError."""
        before = self._read(name)
        inside = _inside(self.root, path)
        values = {
            "version": _VERSION,
            "name": name,
            "file": os.path.relpath(path, self.root) if inside else os.path.abspath(path),
            **({"recipe": recipe.to_json()} if recipe != PLAIN else {}),
        }
        write_whole(self._manifest(name), json.dumps(values, indent=1, ensure_ascii=False).encode())
        if before is not None and before.path != path:
            self._prune(before)

    def remove(self, name: str) -> None:
        """Forget `name`, and remove its files that lie in this folder and that no other name needs.

        Raises EmberdError where the folder cannot be changed.
        """
        gone = self._read(name)
        try:
            self._manifest(name).unlink()
            if gone is not None:
                self._prune(gone)
        except OSError as error:
            raise EmberdError(f"the models folder cannot be changed: {error.strerror}") from None

    def tidy(self) -> None:
        """Remove what nothing needs any more: uploads of which no model was made, and parts nobody went on with."""
        needed = {file for found in self.found() for file in _files(found)}
        now = time.time()
        for folder in ("blobs", "models", "files/*"):
            for file in self.root.glob(f"{folder}/*"):
                is_part = file.name.endswith(".part")
                keeps = _PART_SECONDS if is_part else _UNUSED_SECONDS
                if file in needed or (folder == "models" and not is_part):
                    continue
                with suppress(OSError):
                    if now - file.stat().st_mtime > keeps:
                        file.unlink()

    def _prune(self, gone: Found) -> None:
        needed = {file for found in self.found() for file in _files(found)}
        for file in _files(gone):
            if _inside(self.root, file) and file not in needed:
                file.unlink(missing_ok=True)
                if file.parent.parent == self.root / "files":
                    with suppress(OSError):  # another part is still there
                        file.parent.rmdir()

    def _read(self, name: str) -> Found | None:
        path = self._manifest(name)
        try:
            return _read_manifest(self.root, path, path.stat().st_mtime_ns)
        except (OSError, ModelFileError):
            return None

    def _manifest(self, name: str) -> Path:
        return self.root / "models" / f"{quote(name_key(name), safe='')}.json"


def write_whole(path: Path, data: bytes) -> None:
    """The file appears whole or not at all. Raises EmberdError where it cannot be written."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)
        raise EmberdError(f"the models folder cannot be written: {error.strerror}") from None


def _files(found: Found) -> list[Path]:
    try:
        return model_files(found.path)
    except ModelFileError:  # a part is missing
        return [found.path]


def _inside(folder: Path, path: Path) -> bool:
    return Path(os.path.abspath(path)).is_relative_to(folder)


@lru_cache(maxsize=4096)
def _read_manifest(root: Path, path: Path, modified_ns: int) -> Found:
    if path.stat().st_size > _MAX_MANIFEST_BYTES:
        raise ModelFileError(f"{path.name}: is too large for a manifest")
    try:
        values: Any = json.loads(path.read_bytes())
        name, file, version = values["name"], values["file"], values["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ModelFileError(f"{path.name}: is not a manifest") from None
    if version != _VERSION or not isinstance(name, str) or not isinstance(file, str):
        raise ModelFileError(f"{path.name}: is a manifest of another version of emberd")
    recipe = Recipe.from_json(values.get("recipe"))
    where = Path(os.path.normpath(root / file))
    return Found(name, where, "pulled", (), recipe, modified_ns / 1e9)
