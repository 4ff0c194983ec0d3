"""Log-likelihoods as lm-eval asks for them, of SmolLM2 behind a daemon, beside llama.cpp's exact run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon import running_daemon
from dialects import COMPLETION

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.cases]
MEAN, SINGLE = 0.005, 0.05  # cases/README.md, "float"


def test_likelihoods_of_texts_are_those_of_the_exact_reference_ok01(
    smollm2_path: Path, cases_dir: Path, tmp_path: Path
) -> None:
    """The request of lm-eval's likelihood tasks: prompts as ids, `echo`, `logprobs` 1, `max_tokens` 1."""
    reference = json.loads((cases_dir / "reference" / "smollm2-135m.json").read_text())
    scored = sorted(reference["scored"], key=lambda case: len(case["ids"]))[:3]
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "smollm2.gguf").symlink_to(smollm2_path)
    request: dict[str, Any] = {
        "model": "smollm2",
        "prompt": [case["ids"] for case in scored],
        "echo": True,
        "logprobs": 1,
        "max_tokens": 1,
        "temperature": 0,
        "seed": 1234,
    }
    with running_daemon(folder, tmp_path / "daemon", ctx=2048) as daemon:
        choices = daemon.http.post(COMPLETION, json=request).json()["choices"]
    for case, choice in zip(scored, choices, strict=True):
        logprobs = choice["logprobs"]
        assert len(logprobs["tokens"]) == len(case["ids"]) + 1
        context, wanted = len(case["ids"]) // 2, case["f32_scores"]
        told = logprobs["token_logprobs"][context:-1]  # as lm-eval cuts it
        greedy = [
            value == max(top.values())
            for value, top in zip(told, logprobs["top_logprobs"][context:-1], strict=True)
        ]
        exact = wanted[context - 1 :]
        assert len(told) == len(exact)
        pairs = [
            (a, b["logprob"]) for a, b in zip(told, exact, strict=True) if b["logprob"] is not None
        ]
        ours, theirs = np.array(pairs).T
        assert np.abs(ours - theirs).max() < SINGLE
        assert abs(ours.mean() - theirs.mean()) < MEAN
        for is_greedy, one in zip(greedy, exact, strict=True):
            gap = one["argmax_logprob"] - (-99 if one["logprob"] is None else one["logprob"])
            assert is_greedy == (gap == 0) or gap < SINGLE  # the other one is as likely
