"""Model files on this machine, for commands that work without a daemon."""

from __future__ import annotations

import os
from pathlib import Path

from ..config import Config
from ..errors import ModelFileError
from ..models.store import ModelStore


def local_store(config: Config) -> ModelStore:
    """The models folder, and the files that the settings name."""
    store = ModelStore(config.models_dir, config.cache_dir, config.places)
    for entry in config.models:
        store.register(entry)
    return store


def model_path(config: Config, model: str) -> Path:
    """The file behind a name or path. Raises ModelFileError or ModelNotFoundError."""
    path = Path(model).expanduser()
    if path.is_file():
        return path
    if os.sep in model and model.lower().endswith(".gguf"):
        raise ModelFileError(f"{model}: no such file")
    return local_store(config).find(model).path
