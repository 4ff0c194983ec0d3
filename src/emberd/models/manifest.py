"""Manifests of Ollama's registry and store: which layers a model has, checked before anything of it is used.

A manifest comes from outside: sizes, digests and types are what they should be, or it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import ModelFileError
from .names import is_digest
from .recipe import Recipe, is_go_template

MAX_MANIFEST_BYTES = 1 << 20
MAX_TEXT_BYTES = 1 << 20
_PREFIX = "application/vnd.ollama.image."
_TEXTS = ("template", "prompt", "system", "params", "messages", "license")
_NEEDED = {
    "adapter": "adapters",
    "tensor": "weights that are no GGUF file",
    "json": "weights that are no GGUF file",
}


@dataclass(frozen=True, slots=True)
class Layer:
    kind: str  # model, template, system, params, ...
    digest: str  # sha256:...
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    model: Layer
    texts: tuple[Layer, ...]


def read_manifest(raw: bytes, name: str) -> Manifest:
    """Raises ModelFileError, which calls the model `name`."""
    try:
        values: Any = json.loads(raw)
        entries = values["layers"]
        layers = [_layer(entry, name) for entry in entries]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ModelFileError(f"{name}: its manifest is not one of a model") from None
    for layer in layers:
        if layer.kind in _NEEDED:
            raise ModelFileError(f"{name}: has {_NEEDED[layer.kind]}, which are not supported")
    models = [layer for layer in layers if layer.kind == "model"]
    if len(models) != 1:
        raise ModelFileError(f"{name}: has {len(models)} files of weights; one GGUF file is served")
    texts = tuple(layer for layer in layers if layer.kind in _TEXTS)
    if too_long := [layer for layer in texts if layer.size > MAX_TEXT_BYTES]:
        raise ModelFileError(
            f"{name}: its {too_long[0].kind} has {too_long[0].size} bytes, more than {MAX_TEXT_BYTES}"
        )
    return Manifest(models[0], texts)


def recipe_of(manifest: Manifest, read: Callable[[Layer], bytes]) -> Recipe:
    """The recipe in a manifest's text layers. `read` gives a layer's bytes; what it raises goes on."""
    values: dict[str, Any] = {"license": []}
    for layer in manifest.texts:
        text = read(layer).decode("utf-8", "replace")
        match layer.kind:
            case "template" | "prompt":
                values["go_template" if is_go_template(text) else "template"] = text
            case "params" | "messages":
                name = "parameters" if layer.kind == "params" else "messages"
                values[name] = _json(text)
            case "license":
                values["license"].append(text)
            case _:
                values[layer.kind] = text
    return Recipe.from_json(values)


def _layer(entry: Any, name: str) -> Layer:
    kind = str(entry["mediaType"]).partition(";")[0].removeprefix(_PREFIX)
    digest, size = entry["digest"], entry["size"]
    if not is_digest(digest):
        raise ModelFileError(f"{name}: its manifest has a digest that is not sha256 and 64 digits")
    if type(size) is not int or size < 0:
        raise ModelFileError(f"{name}: its manifest has a layer without a size")
    return Layer(kind, digest, size)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
