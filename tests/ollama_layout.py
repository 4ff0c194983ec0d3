"""Models in the form of Ollama's registry and store: manifests, layers and digests, written by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PREFIX = "application/vnd.ollama.image."


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def layers_of(model: bytes, texts: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """A manifest, and its blobs by digest. `texts` are layers by kind; values that are no text become JSON."""
    blobs = {}
    layers = []
    for kind, value in {"model": model, **texts}.items():
        data = value if isinstance(value, bytes) else None
        if data is None:
            data = (value if isinstance(value, str) else json.dumps(value)).encode()
        blobs[digest_of(data)] = data
        layers.append({"mediaType": PREFIX + kind, "digest": digest_of(data), "size": len(data)})
    config = b"{}"
    blobs[digest_of(config)] = config
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": {
            "mediaType": "application/vnd.docker.container.image.v1+json",
            "digest": digest_of(config),
            "size": len(config),
        },
        "layers": layers,
    }
    return manifest, blobs


def write_store(folder: Path, name: str, model: bytes, **texts: Any) -> Path:
    """Put a model called `host/namespace/model/tag` into a store as Ollama lays it out; gives its manifest."""
    manifest, blobs = layers_of(model, texts)
    path = folder / "manifests" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(manifest))
    (folder / "blobs").mkdir(exist_ok=True)
    for digest, data in blobs.items():
        (folder / "blobs" / digest.replace(":", "-")).write_bytes(data)
    return path
