"""GpuRunner: drafted tokens change no sampled token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from batches import GREEDY
from drafted import by_engine, by_guesses, plainly, repeating
from emberd.engine.draft_model import DraftModel
from emberd.protocol import SamplingParams, WorkerOptions
from emberd.runtime.runner import GpuRunner
from tiny_gguf import random_model

pytestmark = [pytest.mark.device, pytest.mark.slow]


@pytest.mark.parametrize("head_dim", [32, 320])
def test_drafted_tokens_change_no_sampled_token(
    tmp_path: Path, rng: np.random.Generator, head_dim: int
) -> None:
    """Greedy and sampled, beside each other, right and wrong guesses. Of a float model, so that a row of several
    tokens rounds as one of a single token does."""
    path = random_model(
        tmp_path / "m.gguf", quant="F32", width=64, ffn=64, heads=2, head_dim=head_dim
    )
    options = WorkerOptions(
        str(path),
        "gpu",
        context_length=128,
        kv_memory=8 << 20,
        max_sequences=12,
        max_batch_tokens=64,
    )
    runner = GpuRunner.load(options)
    prompts = [rng.integers(0, 256, int(n)).tolist() for n in rng.integers(1, 21, 3)]
    params = [
        GREEDY,
        SamplingParams(temperature=0.9, top_p=0.95, seed=int(rng.integers(1 << 31))),
        SamplingParams(temperature=1.2, top_k=20, seed=int(rng.integers(1 << 31))),
    ]
    free = rng.permutation(runner.num_blocks)[:9].tolist()
    blocks = [[free.pop() for _ in range(3)] for _ in prompts]
    truths = [plainly(runner, *args, 20) for args in zip(prompts, params, blocks, strict=True)]
    assert by_guesses(rng, runner, prompts, params, blocks, truths) == truths
    requests = repeating(rng)  # under an engine, grammars among them
    plain, none = by_engine(runner, requests, False)
    guessed, num_right = by_engine(runner, requests, True)
    assert guessed == plain and none == 0 and num_right > 0
    beside = GpuRunner.load(options, None, runner.kernels, lent=True)  # its own draft model
    draft = DraftModel(beside, 256)
    guessed, num_right = by_engine(runner, requests, False, draft)
    assert guessed == plain and num_right > 60
    assert draft.blocks.num_free == beside.num_blocks
    beside.close()
    runner.close()
