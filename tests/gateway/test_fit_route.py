"""GET /api/fit: what a model would take, told by a real worker process that loads nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from emberd.config import Config
from site_fakes import CONTEXT, Site, run, write_model


@pytest.fixture
def site(tmp_path: Path) -> Site:
    write_model(tmp_path / "models" / "tiny.gguf")
    folders = {"models_dir": tmp_path / "models", "cache_dir": tmp_path / "cache"}
    return Site(Config(device="cpu", memory=64 << 20, max_sequences=2, **folders))


@pytest.mark.slow
def test_a_model_is_measured_where_it_is_loaded_and_estimated_where_it_is_not(site: Site) -> None:
    async def work() -> None:
        async with site.client() as http:
            before = (await http.get("/api/fit?model=tiny&num_ctx=100")).json()
            assert not site.workers
            model = await site.manager.acquire("tiny")
            after = (await http.get("/api/fit")).json()  # of the only one
            site.manager.release(model)
        assert before["model"] == "tiny:latest" and before["verdict"] == "fits"
        assert before["context"]["wanted"] == before["context"]["served"] == 100
        assert before["context"]["trained"] == CONTEXT
        assert before["device"]["usable"] == 64 << 20
        sources = {figure["source"] for figure in before["memory"].values()}
        assert sources == {"estimated"} and before["memory"]["weights"]["bytes"] > 0
        weights, kv = site.worker_bytes
        assert after["memory"]["weights"] == {"bytes": weights, "source": "measured"}
        assert after["memory"]["kv"] == {"bytes": kv, "source": "measured"}

    run(work())


@pytest.mark.parametrize(
    ("query", "status", "word"),
    [
        ("?model=other", 404, "other"),
        ("?model=tiny&num_ctx=0", 400, "num_ctx"),
        ("?model=tiny&num_ctx=many", 400, "num_ctx"),
    ],
)
def test_wrong_questions_are_refused_by_name(
    site: Site, query: str, status: int, word: str
) -> None:
    async def work() -> None:
        async with site.client() as http:
            answer = await http.get(f"/api/fit{query}")
        assert answer.status_code == status and word in answer.json()["error"]

    run(work())


def test_show_warns_of_a_context_beyond_the_trained_one(tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "tiny.gguf")
    folders = {"models_dir": tmp_path / "models", "cache_dir": tmp_path / "cache"}

    async def shown(**settings: Any) -> dict[str, Any]:
        async with Site(
            Config(device="cpu", ctx=2 * CONTEXT, **settings, **folders)
        ).client() as http:
            answer = await http.post("/api/show", json={"model": "tiny"})
        return dict(answer.json())

    async def work() -> None:
        told = await shown(rope_scaling=("yarn", None))
        assert "yarn by 2" in told["emberd"]["context"]
        assert f"{2 * CONTEXT}" in told["parameters"]
        plain = await shown()
        assert "context" not in plain["emberd"] and f"{2 * CONTEXT}" not in plain["parameters"]

    run(work())
