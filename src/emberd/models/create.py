"""Making models of models: a new name for a file that is there, with a recipe of its own. Files are not copied."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ..errors import BadRequestError
from ..text.template import ChatTemplate
from .names import check_new_name
from .recipe import Recipe
from .store import ModelStore


def create_from_model(store: ModelStore, name: str, base: str, recipe: Recipe) -> None:
    """`name` is `base` with what `recipe` says over it. Raises BadRequestError, ModelNotFoundError, ModelFileError."""
    name = check_new_name(name)
    _check_template(recipe)
    found = store.find(base)
    parent = found.recipe.parent if found.name == name else found.name
    store.keep(name, found.path, dataclasses.replace(recipe, parent=parent).over(found.recipe))


def create_from_file(store: ModelStore, name: str, path: Path, recipe: Recipe) -> None:
    """For commands, never for callers. Raises BadRequestError, ModelFileError."""
    name = check_new_name(name)
    _check_template(recipe)
    store.check_file(path)
    store.keep(name, path, recipe)


def create_from_blob(store: ModelStore, name: str, digest: str, recipe: Recipe) -> None:
    """Raises BadRequestError, ModelFileError."""
    blob = store.pulled.blob(digest)
    if not blob.is_file():
        raise BadRequestError(
            f"'files': {digest} is not here; send the file to POST /api/blobs/{digest} first",
            "files",
        )
    create_from_file(store, name, blob, recipe)


def copy_model(store: ModelStore, source: str, destination: str) -> None:
    """A second name for the same file and recipe. Raises BadRequestError, ModelNotFoundError, ModelFileError."""
    found = store.find(source)
    store.keep(destination, found.path, found.recipe, "destination")


def _check_template(recipe: Recipe) -> None:
    fault = ChatTemplate(recipe.template).fault
    if fault is not None:
        raise BadRequestError(f"'template': {fault}", "template")
