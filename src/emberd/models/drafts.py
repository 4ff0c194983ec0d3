"""Drafts: which model guesses for which, as the settings say. Loads nothing."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..config import Config
from ..errors import BadRequestError, ConfigError, ModelFileError, ModelNotFoundError
from .facts import ModelFacts, read_facts
from .names import alias_target
from .store import ModelStore, StoredModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Draft:
    """Of a model; empty: it has none."""

    path: Path | None = None
    facts: ModelFacts | None = None


def draft_path(config: Config, name: str, path: Path, find: Callable[[str], Path]) -> Path | None:
    """The file of the draft of the model called `name`, whose file is `path`; None: it has none. A model is not its
    own draft. `find` gives the file behind a name. Raises ConfigError, with the whole path."""
    target = alias_target(name, config.draft)
    if target is None:
        return None
    if (found := _file_of(target, find)) is None:
        raise _missing(target)
    return None if found.resolve() == path.resolve() else found


def check_drafts(config: Config, store: ModelStore) -> None:
    """At the daemon's start: raises ConfigError, with whole paths, where a draft of the settings is not there, cannot
    be read, or makes no tokens."""
    for target in dict.fromkeys(target for _, target in config.draft):
        try:
            found = _file_of(target, lambda name: store.find(name).path)
            if found is None:
                raise _missing(target)
            store.check_file(found)
            facts = read_facts(found, store.cache_dir)
        except ModelFileError as error:
            raise ConfigError(f"--draft: '{target}': {error.message}") from None
        if facts.is_encoder:
            raise ConfigError(f"--draft: '{target}' makes embeddings and no tokens")


def _missing(target: str) -> ConfigError:
    return ConfigError(f"--draft: '{target}' is neither a model nor a file")


def _file_of(target: str, find: Callable[[str], Path]) -> Path | None:
    path = os.path.expanduser(target)
    if os.path.isfile(path):
        return Path(path)
    try:
        return find(target)
    except (ModelNotFoundError, BadRequestError):
        return None


async def draft_of(stored: StoredModel, config: Config, store: ModelStore) -> Draft:
    """As `find_draft`, without a pause where the settings name none."""
    return await asyncio.to_thread(find_draft, stored, config, store) if config.draft else Draft()


def find_draft(stored: StoredModel, config: Config, store: ModelStore) -> Draft:
    """May block on the disk. Raises ModelFileError, and ConfigError, which callers of the daemon are told: of a path
    it says the last part."""
    if not config.draft or stored.facts.is_encoder:
        return Draft()
    try:
        path = draft_path(config, stored.name, stored.path, lambda name: store.find(name).path)
    except ConfigError as error:
        logger.error("'%s' cannot be loaded: %s", stored.name, error.message)
        target = alias_target(stored.name, config.draft) or ""
        raise _missing(Path(target).name[:64]) from None
    return Draft() if path is None else Draft(path, read_facts(path, store.cache_dir))
