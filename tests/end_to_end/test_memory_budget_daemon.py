"""A daemon with memory for two models: real workers end and start as requests need them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon import Daemon, running_daemon, wait_until
from dialects import CHAT, OLLAMA_CHAT, ask, body
from emberd.hardware import blas_bytes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tight(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """The models of 512 × 512 matrices take 9 MiB each, 16 MiB of KV cache, 24 MiB while a step runs, and what BLAS
    keeps."""
    folder = tmp_path_factory.mktemp("tight")
    memory = f"{118 + 2 * (blas_bytes() >> 20)}MiB"
    with running_daemon(models_dir, folder, memory=memory, kv_memory="16MiB") as started:
        yield started


def test_the_least_recently_used_model_leaves_with_its_process(tight: Daemon) -> None:
    for name in ("script", "four", "three", "script"):
        assert tight.http.post("/api/generate", json={"model": name}).status_code == 200
        assert next(iter(tight.loaded())) == name
        wait_until(lambda: len(tight.workers()) == len(tight.loaded()))
    assert list(tight.loaded()) == ["script", "three"]
    for model in tight.loaded().values():
        memory = model["emberd"]["memory"]
        assert sum(memory.values()) == model["size"] and memory["weights"] > 9 << 20
    assert ask(tight.http, CHAT, "script", "1").text == "A B C D E F G"


def test_a_model_too_large_for_the_budget_is_refused_with_numbers(
    models_dir: Path, tmp_path: Path
) -> None:
    with running_daemon(models_dir, tmp_path, memory="4MiB", kv_memory="1MiB") as daemon:
        response = daemon.http.post("/api/generate", json={"model": "script", "prompt": "1"})
        assert response.status_code == 500
        message = response.json()["error"]
        assert "script:latest" in message and "4.0 MiB" in message and "--memory" in message
        assert daemon.workers() == []


def test_a_running_model_stays_while_another_takes_an_idle_ones_place(tight: Daemon) -> None:
    for name in ("script", "four"):
        assert tight.http.post("/api/generate", json={"model": name}).status_code == 200
    request = body(OLLAMA_CHAT, "script", "2", stream=True, max_tokens=4000)
    with tight.http.stream("POST", OLLAMA_CHAT, json=request) as response:
        lines = response.iter_lines()
        next(lines)
        assert ask(tight.http, CHAT, "three", "1", max_tokens=2).reason
        assert set(tight.loaded()) == {"script", "three"}
        assert tight.num_active("script") == 1
        assert '"done":false' in next(lines)
