"""Random arrivals, cancels, pools and shared prefixes: every sequence gets what it gets alone, and no block is lost."""

from __future__ import annotations

import numpy as np
import pytest
from depths import depths

from emberd.engine import Engine
from emberd.protocol import GenerateRequest, SamplingParams
from fakes import ScriptedRunner, lone_run


def random_request(
    rng: np.random.Generator, name: str, longest: int, texts: list[tuple[int, ...]]
) -> GenerateRequest:
    """Half of them begin as a part of one of `texts` does: prompts and replies of earlier ones."""
    prompt = tuple(rng.integers(0, 1000, size=int(rng.integers(1, longest))).tolist())
    if texts and rng.integers(2):
        earlier = texts[int(rng.integers(len(texts)))]
        prompt = (earlier[: int(rng.integers(len(earlier) + 1))] + prompt)[: len(prompt)]
    params = SamplingParams(
        max_tokens=int(rng.integers(1, 30)),
        seed=int(rng.integers(1 << 31)),
        stop_token_ids=tuple(rng.integers(0, 1000, size=int(rng.integers(0, 60))).tolist()),
        ignore_eos=bool(rng.integers(4) == 0),
    )
    return GenerateRequest(
        name,
        prompt,
        params,
        cache_salt=("", "", "", "salt", None)[int(rng.integers(5))],
        priority=int(rng.integers(3)),
    )


def drive(
    rng: np.random.Generator,
    runner: ScriptedRunner,
    num_requests: int,
    cancel_share: float,
    arrivals_per_step: float,
) -> int:
    """Runs all to their end, checking every update against the lone run. Gives the prompt tokens not computed."""
    engine = Engine(runner)
    expected: dict[str, tuple[tuple[int, ...], str]] = {}
    got: dict[str, list[int]] = {}
    ended: dict[str, str] = {}
    to_cancel: dict[int, list[str]] = {}
    texts: list[tuple[int, ...]] = []
    cached: dict[str, int] = {}
    num_added = num_steps = 0
    while num_added < num_requests or engine.has_work:
        for _ in range(min(int(rng.poisson(arrivals_per_step)), num_requests - num_added)):
            name = f"r{num_added}"
            request = random_request(rng, name, engine.context_length, texts)
            expected[name] = lone_run(request, context_length=engine.context_length)
            texts.append(request.token_ids + expected[name][0])
            got[name] = []
            engine.add(request)
            num_added += 1
            if rng.random() < cancel_share:
                at = num_steps + int(rng.integers(0, 20))
                to_cancel.setdefault(at, []).append(name)
        for name in to_cancel.pop(num_steps, []):
            engine.cancel(name)
        message = engine.step()
        engine.check_integrity()
        num_steps += 1
        for update in message.updates:
            assert update.request_id not in ended
            got[update.request_id] += update.token_ids
            if update.token_ids:
                told = cached.setdefault(update.request_id, update.num_cached_tokens)
                assert told == update.num_cached_tokens and told % runner.block_size == 0
            if update.finish_reason:
                ended[update.request_id] = update.finish_reason
    assert set(ended) == set(expected)
    for name, (token_ids, finish_reason) in expected.items():
        if ended[name] == "cancelled":
            assert tuple(got[name]) == token_ids[: len(got[name])]
        else:
            assert (tuple(got[name]), ended[name]) == (token_ids, finish_reason)
    assert engine.step().num_free_blocks == runner.num_blocks
    return sum(cached.values())


@pytest.mark.parametrize(
    "steps_in_flight",
    [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow), 3],
)
def test_random_runs_equal_lone_runs(rng: np.random.Generator, steps_in_flight: int) -> None:
    num_cached = 0
    for _ in range(25):
        runner = ScriptedRunner(
            num_blocks=int(rng.integers(2, 24)),
            block_size=int(rng.choice([1, 2, 4, 16])),
            max_sequences=int(rng.integers(1, 9)),
            max_batch_tokens=int(rng.integers(1, 40)),
            context_length=int(rng.integers(8, 80)),
            steps_in_flight=steps_in_flight,
        )
        arrivals = float(rng.choice([0.2, 2, 9]))
        num_cached += drive(rng, runner, 15, cancel_share=0.15, arrivals_per_step=arrivals)
    assert num_cached > 0, "prefixes were meant to be reused"


@pytest.mark.slow
@depths
def test_500_requests_a_tenth_cancelled_leave_the_pool_as_it_was(
    rng: np.random.Generator, steps_in_flight: int
) -> None:
    """K11, K13 without text: 8 places, a pool that is often short."""
    runner = ScriptedRunner(
        num_blocks=24,
        context_length=60,
        max_batch_tokens=24,
        steps_in_flight=steps_in_flight,
    )
    drive(rng, runner, 500, cancel_share=0.1, arrivals_per_step=1.0)


@depths
def test_every_sequence_gets_on_in_a_pool_for_one(
    rng: np.random.Generator, steps_in_flight: int
) -> None:
    """No livelock: many sequences, each of which may need the whole pool."""
    runner = ScriptedRunner(
        num_blocks=5, block_size=4, context_length=20, steps_in_flight=steps_in_flight
    )
    drive(rng, runner, 30, cancel_share=0.0, arrivals_per_step=30.0)
