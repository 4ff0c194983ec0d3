"""A daemon with a scripted model, for the real client packages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon import Daemon, running_daemon
from tiny_gguf import random_model, script_model


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """`script` says "A B C D E F G" after "1" and goes on for ever after "2"; `random` says anything."""
    folder: Path = tmp_path_factory.mktemp("clients")
    models = folder / "models"
    models.mkdir()
    scripts = {"1": ["A B", " C D", " E F", " G"], "2": [" on", " and"]}
    script_model(models / "script.gguf", scripts, endless="2")
    random_model(models / "random.gguf", context_length=128)
    with running_daemon(models, folder / "daemon", kv_memory="32MiB") as started:
        yield started
