"""Daemons for the real client packages: one with a scripted model, one with Qwen2.5-Coder on each device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon import Daemon, running_daemon
from tiny_gguf import random_model, script_model

SLOW_DEVICE = os.environ.get("EMBERD_SLOW_DEVICE") == "1"


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


@pytest.fixture(scope="module", params=["cpu", pytest.param("gpu", marks=pytest.mark.device)])
def qwen(
    request: pytest.FixtureRequest, qwen_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Daemon]:
    """On the CPU device, and on an adapter: software Vulkan where there is no other."""
    folder = tmp_path_factory.mktemp("qwen")
    (folder / "models").mkdir()
    (folder / "models" / "qwen.gguf").symlink_to(qwen_path)
    settings = {"device": request.param, "ctx": 2048, "max_batch_tokens": 128, "max_sequences": 4}
    with running_daemon(folder / "models", folder / "daemon", **settings) as started:
        yield started


@pytest.fixture(autouse=True)
def _quick_enough(request: pytest.FixtureRequest) -> None:
    """With Qwen all but the short answers wait for a real GPU, or for EMBERD_SLOW_DEVICE=1."""
    if "qwen" not in request.fixturenames or request.node.callspec.params["qwen"] == "cpu":
        return
    if SLOW_DEVICE or "fills" in request.node.name:
        return
    if request.getfixturevalue("device").info.is_software:
        pytest.skip("minutes each on a software adapter; EMBERD_SLOW_DEVICE=1 runs it")
