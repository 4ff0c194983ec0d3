"""The digest of a model's files, all of their bytes. It is kept, so that a file that did not change is read once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path

from .shards import model_files

_CHUNK = 8 << 20


def model_digest(path: Path, cache_dir: Path) -> bytes:
    """32 bytes. Raises OSError where a file cannot be read, ModelFileError where one is missing."""
    digest = hashlib.blake2b(digest_size=32)
    for file in model_files(path):
        digest.update(_file_digest(file.resolve(), cache_dir / "digests"))
    return digest.digest()


def _file_digest(path: Path, folder: Path) -> bytes:
    told = path.stat()
    state = [str(path), told.st_size, told.st_mtime_ns, told.st_ino]
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    kept = folder / f"{name}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(kept.read_text(encoding="utf-8"))
        if found["file"] == state:
            return _checked(bytes.fromhex(found["digest"]))
    digest = hashlib.blake2b(digest_size=32)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    with contextlib.suppress(OSError):
        _keep(kept, {"file": state, "digest": digest.hexdigest()})
    return digest.digest()


def _checked(digest: bytes) -> bytes:
    if len(digest) != 32:
        raise ValueError("not a digest")
    return digest


def _keep(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, unfinished = tempfile.mkstemp(dir=path.parent)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(unfinished, path)
