"""CpuRunner: drafted tokens change no sampled token."""

from __future__ import annotations

import numpy as np
import pytest
from random_weights import VARIANTS, VOCAB, random_weights

from batches import GREEDY
from drafted import by_guesses, plainly
from emberd.protocol import SamplingParams, WorkerOptions
from emberd.reference.runner import CpuRunner

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
