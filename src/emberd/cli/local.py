"""Model files on this machine, for commands that work without a daemon."""

from __future__ import annotations

import os
from pathlib import Path

from ..config import Config
from ..errors import ModelFileError
from ..gguf.encoder import is_encoder
from ..gguf.reader import GGUFFile
from ..models.drafts import draft_path
from ..models.store import ModelStore, file_name


def local_store(config: Config) -> ModelStore:
    """The models folder, and the files that the settings name."""
    store = ModelStore(config.models_dir, config.cache_dir, config.places)
    for entry in config.models:
        store.register(entry)
    return store


def model_path(config: Config, model: str) -> Path:
    """The file behind a name or path. Raises ModelFileError or ModelNotFoundError."""
    return _named(config, model)[1]


def model_and_draft(config: Config, model: str) -> tuple[Path, Path | None]:
    """The file behind a name or path, and that of the draft which the daemon would load with it; None: it has none.
    Raises as `model_path`, and ConfigError."""
    name, path = _named(config, model)
    if not config.draft:
        return path, None
    with GGUFFile(path) as file:
        if is_encoder(file):
            return path, None
    store = local_store(config)
    return path, draft_path(config, name, path, lambda other: store.find(other).path)


def given_file(model: str) -> Path | None:
    """The file whose path this is; None: it is a name. Raises ModelFileError for the path of no file."""
    path = Path(os.path.expanduser(model))
    if os.path.isfile(path):
        return path
    if os.sep in model and model.lower().endswith(".gguf"):
        raise ModelFileError(f"{model}: no such file")
    return None


def _named(config: Config, model: str) -> tuple[str, Path]:
    """The name under which the daemon has it, and the file."""
    path = given_file(model)
    if path is not None:
        return file_name(path), path
    stored = local_store(config).find(model)
    return stored.name, stored.path
