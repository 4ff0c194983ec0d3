"""Commands that look at drafts without a daemon: what `serve` says before it listens, and whom `fit` counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cli_harness import Emberd

from emberd.cli.local import model_and_draft
from emberd.config import Config
from tiny_encoder import encoder_model
from tiny_gguf import random_model


@pytest.fixture
def models_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.setenv("EMBERD_MODELS_DIR", str(folder))
    random_model(folder / "tiny.gguf", layers=2)
    random_model(folder / "small.gguf", layers=1)
    encoder_model(folder / "encoder.gguf")
    return folder


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        ("smal", "'smal' is neither a model nor a file"),
        ("tiny=small, x=~nosuchuser/x", "'~nosuchuser/x' is neither"),
        ("encoder", "'encoder' makes embeddings and no tokens"),
    ],
)
def test_serve_ends_at_a_draft_that_is_none(
    emberd_cli: Emberd, models_dir: Path, draft: str, said: str
) -> None:
    result = emberd_cli("serve", "--device", "cpu", "--draft", draft)
    assert result.code != 0 and f"--draft: {said}" in result.err
    assert "listens" not in result.out and "Traceback" not in result.err


def test_fit_and_bench_take_the_draft_that_the_daemon_would_load(models_dir: Path) -> None:
    def draft(model: str, text: str) -> str | None:
        found = model_and_draft(Config.from_env({**os.environ, "EMBERD_DRAFT": text}), model)[1]
        return None if found is None else found.stem

    for model in ("tiny", "TINY:latest", str(models_dir / "tiny.gguf")):
        assert draft(model, "tiny:latest=small") == draft(model, "small") == "small"
        assert draft(model, "tin=small") is None
    assert draft("small", "small") is None, "a model is not its own draft"
    assert draft("encoder", "small") is None


@pytest.mark.slow
def test_fit_of_an_encoder_minds_no_draft(emberd_cli: Emberd, models_dir: Path) -> None:
    result = emberd_cli("fit", "encoder", "--device", "cpu", "--draft", "small")
    assert result.code == 0 and "it keeps no KV cache" in result.out
