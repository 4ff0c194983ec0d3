"""CpuRunner: drafted tokens change no sampled token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from random_weights import VARIANTS, VOCAB, random_weights

from batches import GREEDY
from drafted import by_engine, by_guesses, plainly, repeating
from emberd.protocol import SamplingParams, WorkerOptions
from emberd.reference.runner import CpuRunner
from tiny_gguf import random_model

OPTIONS = WorkerOptions("unused", context_length=256, max_sequences=12, max_batch_tokens=128)


@pytest.mark.parametrize("variant", sorted(VARIANTS)[:2])
def test_drafted_tokens_change_no_sampled_token(rng: np.random.Generator, variant: str) -> None:
    """Greedy and sampled, beside each other, right and wrong guesses."""
    runner = CpuRunner(random_weights(rng, **VARIANTS[variant]), OPTIONS)
    prompts = [rng.integers(0, VOCAB, int(n)).tolist() for n in rng.integers(1, 40, 3)]
    params = [
        GREEDY,
        SamplingParams(temperature=0.9, top_p=0.95, seed=int(rng.integers(1 << 31))),
        SamplingParams(temperature=1.2, top_k=20, seed=int(rng.integers(1 << 31))),
    ]
    free = rng.permutation(runner.num_blocks).tolist()
    blocks = [[free.pop() for _ in range(6)] for _ in prompts]
    truths = [plainly(runner, *args, 30) for args in zip(prompts, params, blocks, strict=True)]
    assert by_guesses(rng, runner, prompts, params, blocks, truths) == truths
    runner.close()


@pytest.mark.slow
def test_an_engine_that_guesses_gives_the_same(tmp_path: Path, rng: np.random.Generator) -> None:
    path = random_model(tmp_path / "m.gguf", width=64, ffn=64, heads=2, head_dim=32)
    runner = CpuRunner.load(replace(OPTIONS, model_path=str(path)))
    requests = repeating(rng)
    plain, none = by_engine(runner, requests, False)
    guessed, num_right = by_engine(runner, requests, True)
    assert guessed == plain and none == 0 and num_right > 0
    runner.close()
