"""Drafts: which model guesses for which, as the settings say. Loads nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..config import Config
from ..errors import BadRequestError, ConfigError, ModelNotFoundError
from .facts import ModelFacts, read_facts
from .names import alias_target
from .store import ModelStore, StoredModel


@dataclass(frozen=True, slots=True)
class Draft:
    """Of a model; empty: it has none."""

    path: Path | None = None
    facts: ModelFacts | None = None


def draft_path(config: Config, name: str, path: Path, find: Callable[[str], Path]) -> Path | None:
    """The file of the draft of the model called `name`, whose file is `path`; None: it has none. A model is not its
    own draft. `find` gives the file behind a name. Raises ConfigError."""
    target = alias_target(name, config.draft)
    if target is None:
        return None
    found = Path(target).expanduser()
    if not found.is_file():
        try:
            found = find(target)
        except (ModelNotFoundError, BadRequestError):
            raise ConfigError(f"--draft: '{target}' is neither a model nor a file") from None
    return None if found.resolve() == path.resolve() else found


async def draft_of(stored: StoredModel, config: Config, store: ModelStore) -> Draft:
    """As `find_draft`, without a pause where the settings name none."""
    return await asyncio.to_thread(find_draft, stored, config, store) if config.draft else Draft()


def find_draft(stored: StoredModel, config: Config, store: ModelStore) -> Draft:
    """May block on the disk. Raises ConfigError, ModelFileError."""
    if not config.draft or stored.facts.is_encoder:
        return Draft()
    path = draft_path(config, stored.name, stored.path, lambda name: store.find(name).path)
    return Draft() if path is None else Draft(path, read_facts(path, store.cache_dir))
