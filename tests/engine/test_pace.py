"""The pace of prompts beside replies: learnt from times, bound to a share, given up where more prompts wait."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from emberd.engine import Engine
from emberd.engine.pace import Pace
from emberd.engine.steps import Mix
from emberd.protocol import Batch, GenerateRequest, SamplingParams
from fakes import ScriptedRunner

Seconds = Callable[[int, int], float]  # of a step with so many replies and prompt tokens


def run(
    pace: Pace, seconds: Seconds, num_replies: int, num_steps: int, prompts_per_reply: float = 1
) -> list[Mix]:
    steps = []
    for _ in range(num_steps):
        budget = pace.budget(num_replies, prompts_per_reply)
        steps.append(Mix(num_replies, budget, seconds(num_replies, budget)))
        pace.note(steps[-1])
    return steps


def test_gaps_stay_within_twice_what_replies_take_alone(rng: np.random.Generator) -> None:
    for _ in range(20):
        base, row, token = (float(10 ** rng.uniform(-4, -2)) for _ in range(3))
        replies = int(rng.choice([1, 3, 8, 31]))

        def seconds(
            rows: int, tokens: int, a: float = base, b: float = row, c: float = token
        ) -> float:
            return float((a + b * rows + c * tokens) * rng.uniform(1, 1.05))

        pace = Pace(0.5, 512)
        steps = run(pace, seconds, replies, 400)[50:]
        alone = base + row * replies
        smallest = max(16, 1 << replies.bit_length()) - replies
        least = alone + token * smallest  # where that is too long, twice as long is allowed
        bound = (2 * least if least > 1.8 * alone else 2 * alone) * 1.2
        times = sorted(step.seconds for step in steps)
        assert times[int(len(times) * 0.95)] <= bound
        fits = min(512, 1 << int(alone / token + replies).bit_length() - 1) - replies
        assert max(step.num_prompt_tokens for step in steps) >= min(fits, 512 - replies) // 2
        idle = [step for step in steps if step.num_prompt_tokens == 0]
        assert 0 < len(idle) < len(steps) / 20


def test_the_first_step_of_a_size_is_not_believed() -> None:
    pace = Pace(0.5, 512)
    assert pace.budget(2, 1) == 0  # how long replies take is not known
    pace.note(Mix(2, 0, 5.0))  # made a plan
    assert pace.budget(2, 1) == 0
    pace.note(Mix(2, 0, 0.010))
    assert pace.budget(2, 1) == 14
    pace.note(Mix(2, 14, 3.0))
    pace.note(Mix(2, 14, 0.005))
    assert pace.budget(2, 1) == 62 - 32  # up to twice as long is expected of the next size
    pace.note(Mix(2, 30, 3.0))
    pace.note(Mix(2, 30, 0.100))
    assert pace.budget(2, 1) == 14


def test_a_size_that_was_too_long_is_tried_again() -> None:
    pace, slow = Pace(0.5, 64), True

    def seconds(rows: int, tokens: int) -> float:
        return 0.01 + (0.05 if slow and tokens > 14 else 0.0)

    steps = run(pace, seconds, 2, 60)
    assert steps[-1].num_prompt_tokens <= 14
    slow = False
    steps = run(pace, seconds, 2, 400)
    assert steps[-1].num_prompt_tokens == 62


def test_where_no_step_with_prompts_is_short_they_are_not_the_smallest() -> None:
    """As on the CPU: the first prompt token costs as much as a hundred more."""
    steps = run(
        Pace(0.5, 512, 2), lambda rows, tokens: 0.01 + (tokens > 0) * 0.03 + tokens * 3e-4, 1, 200
    )
    assert steps[-2].num_prompt_tokens == 127
    times = sorted(step.seconds for step in steps[50:])
    assert times[int(len(times) * 0.95)] <= 2 * 0.0403
    cheap = run(Pace(0.5, 512, 2), lambda rows, tokens: 0.01 + tokens * 3e-4, 1, 200)
    assert max(step.seconds for step in cheap[50:]) <= 2 * 0.01


def test_more_prompts_than_replies_get_more() -> None:
    found = []
    for prompts_per_reply in (0.1, 1, 4, 1000):
        pace = Pace(0.5, 512)
        steps = run(pace, lambda rows, tokens: 0.01 + 0.0002 * tokens, 1, 100, prompts_per_reply)
        found.append(max(step.num_prompt_tokens for step in steps[50:]))
    assert found[0] == found[1] < found[2] < found[3] == 511
    assert Pace(1.0, 512).budget(3, 1) == 512


class TimedRunner(ScriptedRunner):
    """Takes 2 ms a step and 0.5 ms a token."""

    def submit(self, batch: Batch) -> None:
        time.sleep(0.002 + 0.0005 * batch.num_tokens)
        super().submit(batch)


@pytest.mark.parametrize(("reply", "prompt", "spared"), [(1, 1, True), (0, 2, True), (2, 1, False)])
def test_replies_are_spared_but_for_those_of_a_worse_class(
    rng: np.random.Generator, reply: int, prompt: int, spared: bool
) -> None:
    runner = TimedRunner(max_batch_tokens=64, num_blocks=200, context_length=700)
    engine = Engine(runner, prompt_share=0.5)

    def request(name: str, size: int, priority: int) -> GenerateRequest:
        ids = tuple(rng.integers(0, 900, size=size).tolist())
        return GenerateRequest(name, ids, SamplingParams(max_tokens=600), priority=priority)

    engine.add(request("reply", 5, reply))
    for _ in range(6):
        engine.step()
    engine.add(request("prompt", 300, prompt))
    first = len(runner.batches)
    while {one.request_id: one.state for one in engine.status().sequences}["prompt"] != "decode":
        engine.step()
    chunks = [batch.num_tokens - 1 for batch in runner.batches[first:]]
    assert sum(chunks) >= 299
    if spared:
        assert sorted(chunks)[int(len(chunks) * 0.9)] <= 15
    else:
        assert chunks[0] == 63 and len(chunks) <= 6
