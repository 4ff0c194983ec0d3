"""Cold is warm: log-probabilities do not tell what was found in the cache, in a tier, or after preemption (K15)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from random_weights import VARIANTS, VOCAB, random_weights

from emberd.engine import Engine
from emberd.engine.rates import ALL, Rates
from emberd.engine.tiers import Tiers
from emberd.protocol import GenerateRequest, SamplingParams, TokenLogprobs, WorkerOptions
from emberd.reference.kv_cache import BLOCK_SIZE
from emberd.reference.runner import CpuRunner

REPLY = 8
BOUND = 1e-4


@pytest.fixture(params=VARIANTS)
def runner(request: pytest.FixtureRequest, rng: np.random.Generator) -> Iterator[CpuRunner]:
    weights = random_weights(rng, **VARIANTS[request.param])
    options = WorkerOptions("unused", context_length=128, max_sequences=3, max_batch_tokens=64)
    runner = CpuRunner(weights, options)
    yield runner
    runner.close()


def ask(
    engine: Engine, prompt: list[int], preempt_after: int | None = None
) -> tuple[list[TokenLogprobs], int]:
    """Greedy; of each token the likeliest five, and how much was found."""
    params = SamplingParams(temperature=0, max_tokens=REPLY, num_logprobs=5)
    engine.add(GenerateRequest("r", tuple(prompt), params))
    told: list[TokenLogprobs] = []
    cached = 0
    while engine.has_work:
        for update in engine.step().updates:
            assert update.error is None
            told += update.logprobs
            cached = update.num_cached_tokens
        if len(told) == preempt_after:
            assert engine.preempt("r") == "r"
            preempt_after = None
    return told, cached


def check_alike(warm: list[TokenLogprobs], cold: list[TokenLogprobs]) -> None:
    assert len(warm) == len(cold) == REPLY
    for one, other in zip(warm, cold, strict=True):
        found, wanted = dict(one.top), dict(other.top)
        both = found.keys() & wanted.keys()  # the fifth may be another of two equal ones
        assert len(both) >= 4 and all(abs(found[t] - wanted[t]) < BOUND for t in both)
        if one.token_id != other.token_id:  # of two nearly equal tokens
            assert abs(wanted[one.token_id] - other.logprob) < BOUND
            return


@pytest.mark.parametrize("shared", [BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 70])
def test_what_was_found_changes_nothing(
    runner: CpuRunner, rng: np.random.Generator, shared: int
) -> None:
    beginning = rng.integers(0, VOCAB, shared).tolist()
    prompt = beginning + rng.integers(0, VOCAB, 100 - shared).tolist()
    cold, none = ask(Engine(runner), prompt)
    assert none == 0
    warm = Engine(runner)
    other = (prompt[shared] + int(rng.integers(1, VOCAB))) % VOCAB  # no more is shared by chance
    ask(warm, [*beginning, other, *rng.integers(0, VOCAB, 8).tolist()])
    told, cached = ask(warm, prompt)
    assert cached == shared // BLOCK_SIZE * BLOCK_SIZE
    check_alike(told, cold)
    told, cached = ask(warm, prompt)
    assert cached == 96
    check_alike(told, cold)
    check_alike(ask(warm, prompt, preempt_after=int(rng.integers(1, REPLY)))[0], cold)


@pytest.mark.slow
def test_what_comes_from_main_memory_changes_nothing(
    runner: CpuRunner, rng: np.random.Generator
) -> None:
    size = runner.block_bytes
    tiers = Tiers(runner, Rates(runner.block_size, size), 100 * size)
    tiers.rates.worth_copying = lambda *, from_disk: ALL  # type: ignore[method-assign]
    prompt = rng.integers(0, VOCAB, 100).tolist()
    cold, _ = ask(Engine(runner), prompt)
    warm = Engine(runner, tiers)
    ask(warm, prompt)
    for _ in range(2 * runner.num_blocks // 7):  # each takes seven blocks
        ask(warm, rng.integers(0, VOCAB, 100).tolist())
    promoted = tiers.counts.promoted
    told, cached = ask(warm, prompt)
    assert cached == 96 and tiers.counts.promoted == promoted + 6
    check_alike(told, cold)
    warm.close()
