"""A daemon with KV tiers: what a model has computed is found after it was unloaded, and the figures tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon import Daemon, running_daemon, wait_until

pytestmark = pytest.mark.slow


def cached(daemon: Daemon, prompt: str) -> int:
    asked = {"model": "random", "prompt": prompt, "max_tokens": 4, "temperature": 0}
    answer = daemon.http.post("/v1/completions", json=asked).json()
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_the_disk_outlives_model_and_daemon(models_dir: Path, tmp_path: Path) -> None:
    """CPU blocks hold 16 tokens, and a letter of `random`'s vocabulary is one."""
    prompt = "once upon a time there was a daemon that forgot nothing at all, " * 3
    settings = {"kv_memory": "8MiB", "kv_disk": "32MiB", "kv_ram": "4MiB"}
    with running_daemon(models_dir, tmp_path, **settings) as daemon:
        assert cached(daemon, prompt) == 0

        def told() -> dict[str, int]:
            tiers: dict[str, int] = next(iter(daemon.loaded().values()))["emberd"]["tiers"]
            return tiers

        wait_until(lambda: told()["disk_blocks"] >= 11)
        page = daemon.http.get("/metrics").text
        assert 'emberd_kv_tier_bytes{model="random:latest",tier="disk"}' in page
        assert 'emberd_kv_tier_blocks_total{model="random:latest",move="promoted"} 0.0' in page
        daemon.http.post("/api/generate", json={"model": "random", "keep_alive": 0})
        wait_until(lambda: not daemon.workers())
        known = cached(daemon, prompt)
        assert known >= 160 and known % 16 == 0
        assert told()["promoted"] == known // 16
    with running_daemon(models_dir, tmp_path, **settings) as daemon:
        assert cached(daemon, prompt) == known
    blocks = list(tmp_path.rglob("*.kv"))
    assert blocks and all(path.stat().st_mode & 0o077 == 0 for path in blocks)
