"""Ollama's own store, read as it lies: manifests by name, blobs by digest. Nothing is copied or changed."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from ..errors import ModelFileError
from .found import HUB_HOSTS, Found, log_left_out
from .manifest import MAX_MANIFEST_BYTES, Layer, read_manifest, recipe_of
from .recipe import Recipe

HOST, NAMESPACE = "registry.ollama.ai", "library"


def found_in_ollama(folder: Path) -> Iterator[Found]:
    """Models whose weights are whole. `folder` holds `manifests` and `blobs`."""
    manifests = folder / "manifests"
    try:
        paths = sorted(manifests.glob("*/*/*/*"))
    except OSError:
        return
    for path in paths:
        host, namespace, model, tag = path.relative_to(manifests).parts
        first, *others = _names(host, namespace, f"{model}:{tag}")
        try:
            status = path.stat()
            # Opening a pipe would wait for its other end.
            if status.st_size > MAX_MANIFEST_BYTES or not stat.S_ISREG(status.st_mode):
                continue
            blob, recipe = _read(folder, path, status.st_mtime_ns)
        except (OSError, ModelFileError) as error:
            log_left_out(str(path), getattr(error, "message", f"{first}: cannot be read"))
            continue
        yield Found(first, blob, "ollama", tuple(others), recipe, status.st_mtime)


def _names(host: str, namespace: str, model: str) -> list[str]:
    """How Ollama calls it, then the longer ways to write that."""
    longest = f"{host}/{namespace}/{model}"
    if host in HUB_HOSTS:
        return [longest, *(f"{one}/{namespace}/{model}" for one in HUB_HOSTS if one != host)]
    if host != HOST:
        return [longest]
    if namespace != NAMESPACE:
        return [f"{namespace}/{model}", longest]
    return [model, f"{namespace}/{model}", longest]


@lru_cache(maxsize=4096)
def _read(folder: Path, path: Path, _modified: int) -> tuple[Path, Recipe]:
    name = "/".join(path.parts[-2:])
    manifest = read_manifest(path.read_bytes(), name)

    def blob(layer: Layer) -> Path:
        file = folder / "blobs" / layer.digest.replace(":", "-")
        if file.stat().st_size != layer.size or not file.is_file():
            raise ModelFileError(f"{name}: its {layer.kind} is not whole")
        return file

    return blob(manifest.model), recipe_of(manifest, lambda layer: blob(layer).read_bytes())
