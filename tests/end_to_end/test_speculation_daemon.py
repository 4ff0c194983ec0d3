"""Speculation through the daemon: the same text sooner, counted in every place that tells counts."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from daemon import Daemon, running_daemon
from tiny_gguf import byte_vocab, random_model


def complete(daemon: Daemon, path: str, **fields: Any) -> dict[str, Any]:
    response = daemon.http.post(path, json={"model": "random", "stream": False, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def counted(daemon: Daemon, name: str) -> float:
    found = re.search(
        rf'emberd_{name}_total{{model="random:latest"}} (\S+)', daemon.http.get("/metrics").text
    )
    return float(found[1]) if found else 0.0


def test_guesses_change_no_text_and_are_counted_oc25(
    daemon: Daemon, rng: np.random.Generator
) -> None:
    """Biases make the reply repeat itself, greedy and drawn."""
    first = int(rng.integers(97, 118))
    bias = {str(first): 60, str(first + 1): 60, str(first + 2): 60}
    body = {"prompt": "ab", "max_tokens": 80, "ignore_eos": True, "logit_bias": bias, "seed": first}
    before = counted(daemon, "drafted_tokens"), counted(daemon, "accepted_tokens")
    num_drafted = num_accepted = 0
    for temperature in (0, 0.7):
        body["temperature"] = temperature
        plain = complete(daemon, "/v1/completions", **body, **{"speculative.n_max": 0})
        guessed = complete(daemon, "/v1/completions", **body)
        assert guessed["choices"] == plain["choices"]
        details = plain["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] == details["rejected_prediction_tokens"] == 0
        assert "draft_n" not in plain["timings"]
        details = guessed["usage"]["completion_tokens_details"]
        timings = guessed["timings"]
        accepted = details["accepted_prediction_tokens"]
        drafted = accepted + details["rejected_prediction_tokens"]
        assert (timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)) == (
            drafted,
            accepted,
        )
        assert guessed["usage"]["completion_tokens"] == 80
        num_drafted, num_accepted = num_drafted + drafted, num_accepted + accepted
    assert num_accepted > 0
    assert counted(daemon, "drafted_tokens") - before[0] == num_drafted
    assert counted(daemon, "accepted_tokens") - before[1] == num_accepted


def test_a_draft_model_guesses_over_http(tmp_path: Path) -> None:
    """The draft is a copy of the model: its guesses are right. Both are told; the reply is that without."""
    models = tmp_path / "models"
    models.mkdir()
    path = random_model(models / "random.gguf", width=64, ffn=64, heads=2, head_dim=32)
    draft = Path(shutil.copy(path, tmp_path / "draft.gguf"))
    other = random_model(tmp_path / "other.gguf", vocab=byte_vocab(["these"]))
    shutil.copy(path, models / "unlike.gguf")
    body = {"prompt": "ab", "max_tokens": 60, "ignore_eos": True, "temperature": 0}
    pairs = f"random={draft},unlike={other}"
    with running_daemon(models, tmp_path, draft=pairs, speculate="off") as daemon:
        plain = complete(daemon, "/v1/completions", **body, **{"speculative.n_max": 0})
        guessed = complete(daemon, "/v1/completions", **body)
        assert guessed["choices"] == plain["choices"]
        accepted = guessed["timings"]["draft_n_accepted"]
        assert guessed["timings"]["draft_n"] >= accepted > 0
        assert counted(daemon, "accepted_tokens") == accepted
        told = daemon.loaded()["random"]
        assert told["emberd"]["draft"]["file"] == "draft.gguf"
        assert 0 < told["emberd"]["draft"]["bytes"] < told["size"]
        fit = daemon.http.get("/api/fit", params={"model": "random"}).json()
        weights = told["emberd"]["memory"]["weights"]
        assert fit["memory"]["weights"] == {"bytes": weights, "source": "measured"}
        response = daemon.http.post("/v1/completions", json={"model": "unlike", **body})
        assert response.status_code == 500
        assert "--draft: other.gguf has another vocabulary" in response.json()["error"]["message"]
