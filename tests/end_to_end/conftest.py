"""Daemons and models that the end-to-end tests share. Each daemon is a real process on the CPU device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chain_models import CHAIN_TOKEN_BYTES, SMALL_POOL_TOKENS, write_choices, write_scripts
from daemon import Daemon, running_daemon
from tiny_gguf import SURE, random_model


@pytest.fixture(scope="package")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models by name: `script`, `random`, `four` equal successors, `three` of logits 2, 1, 0."""
    folder = tmp_path_factory.mktemp("models")
    write_scripts(folder / "script.gguf")
    random_model(folder / "random.gguf")
    write_choices(folder / "four.gguf", [SURE] * 4)
    write_choices(folder / "three.gguf", [2.0, 1.0, 0.0])
    return folder


@pytest.fixture(scope="package")
def daemon(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """The daemon that most tests use; contexts of 4096 tokens."""
    folder = tmp_path_factory.mktemp("daemon")
    with running_daemon(models_dir, folder, kv_memory="32MiB") as started:
        yield started


@pytest.fixture(scope="package")
def small_daemon(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Room for 4 sequences; 512 tokens of KV for `script`, 1024 for `random`."""
    folder = tmp_path_factory.mktemp("small-daemon")
    kv_memory = SMALL_POOL_TOKENS * CHAIN_TOKEN_BYTES
    with running_daemon(models_dir, folder, kv_memory=kv_memory, max_sequences=4) as started:
        yield started
