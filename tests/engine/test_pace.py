"""The pace of prompts beside replies: learnt from times, bound to a share, given up where more prompts wait and for a
moment."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from virtual import Clock, Loop, VirtualRunner, seconds_of

from emberd.engine import Engine
from emberd.engine.pace import LONGEST_GAP, LONGEST_GAPS, MOMENT, SELDOM, Pace
from emberd.engine.steps import Mix

Seconds = Callable[[int, int], float]  # of a step with so many replies and prompt tokens
ENDLESS = 10**9  # tokens of a prompt


def run(
    pace: Pace, seconds: Seconds, num_replies: int, num_steps: int, prompts_per_reply: float = 1
) -> list[Mix]:
    """Steps beside a prompt without end."""
    steps = []
    for _ in range(num_steps):
        budget = pace.budget(num_replies, prompts_per_reply, ENDLESS, ENDLESS)
        steps.append(Mix(num_replies, budget, seconds(num_replies, budget)))
        pace.note(steps[-1])
    return steps


def percentile(values: list[float], percent: int) -> float:
    return sorted(values)[int(len(values) * percent / 100)]


def test_replies_take_half_of_the_time_and_their_gaps_stay_within_twice_what_they_take_alone(
    rng: np.random.Generator,
) -> None:
    kinds = set()
    for _ in range(12):
        alone = float(10 ** rng.uniform(-2.5, -1))
        token = alone * float(10 ** rng.uniform(-3, 0))
        replies = int(rng.choice([1, 3, 8, 31]))
        smallest = max(16, 1 << replies.bit_length()) - replies
        least = alone + token * smallest
        if 1.7 < least / alone < 2.1:
            continue

        def seconds(rows: int, tokens: int, a: float = alone, b: float = token) -> float:
            return float((a + b * tokens) * rng.uniform(1, 1.05))

        steps = run(Pace(0.5, 512), seconds, replies, 1200)[100:]
        times = [step.seconds for step in steps]
        prompts = sum(step.num_prompt_tokens for step in steps) * token
        assert prompts < 0.58 * sum(times)
        noise = (
            1.5 if smallest == 1 else 1.25
        )  # of one token beside many replies half may be chance
        assert max(times) <= max(LONGEST_GAP, LONGEST_GAPS * alone, least) * noise
        kinds.add(least < 2 * alone)
        if least < 2 * alone:
            assert percentile(times, 95) <= 2 * alone * 1.2
            fits = min(512, 1 << int(alone / token + replies).bit_length() - 1) - replies
            assert max(step.num_prompt_tokens for step in steps) >= min(fits, 512 - replies) // 2
        else:  # seldom a larger step
            assert percentile(times, 50) <= 1.1 * alone
            assert max(step.num_prompt_tokens for step in steps) >= smallest
            large = min(max(LONGEST_GAP, LONGEST_GAPS * alone), alone + token * 512) / 2
            assert prompts > min(0.25, 0.5 * large / (large + SELDOM * alone)) * sum(times)
    assert kinds


def test_one_prompt_token_beside_many_replies_tells_nothing_of_what_many_take() -> None:
    """The smallest step beside 31 replies: what it takes beyond them may be next to nothing by chance."""
    alone = 0.027

    def seconds(rows: int, tokens: int) -> float:
        return alone + 1e-5 if tokens == 1 else alone + 0.0008 * tokens

    steps = run(Pace(0.5, 512), seconds, 31, 1200)
    assert max(step.seconds for step in steps) <= LONGEST_GAPS * alone * 1.25
    assert max(step.num_prompt_tokens for step in steps) > 31


def test_the_first_step_of_a_size_is_not_believed() -> None:
    pace = Pace(0.5, 512)

    def budget() -> int:
        return pace.budget(2, 1, ENDLESS, ENDLESS)

    assert budget() == 0  # how long replies take is not known
    pace.note(Mix(2, 0, 5.0))  # made a plan
    assert budget() == 0
    pace.note(Mix(2, 0, 0.010))
    assert budget() == 14
    pace.note(Mix(2, 14, 3.0))
    pace.note(Mix(2, 14, 0.005))
    assert (
        budget() == 62
    )  # no longer than of so many times the tokens is expected of the next sizes
    pace.note(Mix(2, 62, 3.0))
    pace.note(Mix(2, 62, 0.100))
    assert budget() == 30


def test_what_prompts_take_without_replies_tells_how_long_a_step_of_both_is() -> None:
    pace = Pace(0.5, 512)
    for seconds in (3.0, 0.008):
        pace.note(Mix(0, 128, seconds))
    for seconds in (3.0, 0.010):
        pace.note(Mix(2, 0, seconds))
    assert pace.budget(2, 1, ENDLESS, ENDLESS) == 126


def test_one_step_is_enough_to_see_how_long_prompts_take() -> None:
    pace = Pace(0.5, 512)
    for seconds in (3.0, 0.010):
        pace.note(Mix(2, 0, seconds))
    assert pace.budget(2, 1, ENDLESS, ENDLESS) == 14
    assert pace.budget(2, 1, ENDLESS, ENDLESS) == 0
    pace.note(Mix(2, 14, 0.011))
    assert pace.budget(2, 1, ENDLESS, ENDLESS) == 126


def test_a_size_that_was_too_long_is_tried_again() -> None:
    pace, slow = Pace(0.5, 64), True

    def seconds(rows: int, tokens: int) -> float:
        return 0.01 + (0.05 if slow and tokens > 14 else 0.0)

    steps = run(pace, seconds, 2, 60)
    assert steps[-1].num_prompt_tokens <= 14
    slow = False
    steps = run(pace, seconds, 2, 1600)
    assert max(step.num_prompt_tokens for step in steps[-100:]) == 62


def test_a_size_that_took_long_by_chance_is_tried_again_soon() -> None:
    """As where kernels were compiled in its first two steps, and in those of the prompts before."""
    pace, seen = Pace(0.5, 512), 0
    for _ in range(2):
        pace.note(Mix(0, 128, 0.5))

    def seconds(rows: int, tokens: int) -> float:
        nonlocal seen
        seen += tokens > 62
        return 0.01 + 5e-5 * tokens + (0.5 if tokens > 62 and seen < 3 else 0.0)

    steps = run(pace, seconds, 2, 80)
    assert max(step.num_prompt_tokens for step in steps[-20:]) == 126


@pytest.mark.parametrize("tail", [2, 3, 5, 9, 15])
def test_the_end_of_a_prompt_waits_no_longer_than_its_middle(tail: int) -> None:
    """It is a smaller step than any that was seen, and takes as long as the smallest that there is."""

    def seconds(rows: int, tokens: int) -> float:
        return 0.01 if not tokens else 0.032 + 1e-4 * max(15, tokens)

    pace = Pace(0.5, 512)
    run(pace, seconds, 1, 1200)
    for _ in range(4):
        budgets = []
        while not budgets or not budgets[-1]:
            budgets.append(min(tail, pace.budget(1, 1, tail, 4000)))
            pace.note(Mix(1, budgets[-1], seconds(1, budgets[-1])))
        assert len(budgets) <= SELDOM + 1


def test_a_clock_that_shows_no_time_stops_nothing() -> None:
    """As one of 16 ms where steps take less."""
    steps = run(Pace(0.5, 512), lambda rows, tokens: 0.0, 1, 200)
    assert max(step.num_prompt_tokens for step in steps) == 511
    rng, now = np.random.default_rng(1), 0.0

    def coarse(rows: int, tokens: int) -> float:
        nonlocal now
        before, now = now, now + 0.003 + 1e-4 * tokens * float(rng.uniform(1, 1.1))
        return (now // 0.016 - before // 0.016) * 0.016

    steps = run(Pace(0.5, 512), coarse, 1, 2000)
    assert sum(step.num_prompt_tokens for step in steps) > 2000


def test_where_no_step_with_prompts_is_short_they_are_large_and_seldom() -> None:
    """As on the CPU: the first prompt token costs as much as a hundred more."""
    steps = run(
        Pace(0.5, 512, 2), lambda rows, tokens: 0.01 + (tokens > 0) * 0.03 + tokens * 3e-4, 1, 2000
    )[1000:]
    found = [float(step.num_prompt_tokens) for step in steps if step.num_prompt_tokens]
    assert percentile(found, 50) == 255
    assert len(steps) / (1.3 * SELDOM) < len(found) < 1.2 * len(steps) / SELDOM
    cheap = run(Pace(0.5, 512, 2), lambda rows, tokens: 0.01 + tokens * 3e-4, 1, 200)
    assert max(step.seconds for step in cheap[50:]) <= 2 * 0.01


def test_more_prompts_than_replies_get_more() -> None:
    found = []
    for prompts_per_reply in (0.1, 1, 4, 1000):
        pace = Pace(0.5, 512)
        steps = run(pace, lambda rows, tokens: 0.01 + 0.0002 * tokens, 1, 100, prompts_per_reply)
        found.append(max(step.num_prompt_tokens for step in steps[50:]))
    assert found[0] == found[1] < found[2] < found[3] == 511
    assert Pace(1.0, 512).budget(3, 1, 600, 600) == 509


def learnt(seconds: Seconds, num_replies: int) -> Pace:
    pace = Pace(0.5, 512)
    for size in (16, 32, 64, 128, 256, 512):
        for mix in (Mix(num_replies, 0), Mix(num_replies, size - num_replies)):
            for _ in range(2):
                mix.seconds = seconds(mix.num_replies, mix.num_prompt_tokens)
                pace.note(mix)
    return pace


def test_what_is_read_within_a_moment_is_read_at_once_until_the_moment_is_used_up() -> None:
    """A step of 512 tokens takes 0.11 s, so a moment is nine of them."""

    def seconds(rows: int, tokens: int) -> float:
        return 0.01 + 0.0002 * tokens

    pace, budgets = learnt(seconds, 4), []
    for _ in range(20):
        budgets.append(pace.budget(4, 1, 600, 600))
        pace.note(Mix(4, budgets[-1], seconds(4, budgets[-1])))
    assert budgets[:8] == [508] * 8 and budgets[12:] == [28] * 8
    assert pace.budget(4, 0, 600, 600) == 28
    for _ in range(int(MOMENT / 0.01)):  # replies alone save it up again
        pace.note(Mix(4, 0, 0.01))
    assert pace.budget(4, 0, 600, 600) == 28, "there are no moments for a worse class"
    assert pace.budget(4, 1, 600, 8000) == 28, "nor for the end of a long prompt"
    assert pace.budget(4, 1, 8000, 600) == 28, "nor for more than a moment"
    assert pace.budget(4, 1, 100, 600) == 124
    assert pace.budget(4, 1, 4000, 4000) == 508
    slow = learnt(lambda rows, tokens: 0.01 + 0.001 * tokens, 4)
    assert slow.budget(4, 1, 600, 600) == 124, "a step of a moment is no longer than LONGEST_GAP"


@pytest.mark.parametrize("size", ["1B", "8B"])
def test_a_closed_loop_of_short_prompts_loses_little_of_the_speed(
    rng: np.random.Generator, size: str
) -> None:
    """With the step times of an H200 and one slower by up to a quarter; 32 clients that send 64 requests of 128 + 128
    tokens, against 32 such requests at once without pace."""
    points = {
        "1B": [(1, 0.66e-3), (8, 1.2e-3), (32, 2.92e-3), (64, 4.7e-3), (512, 19.4e-3)],
        "8B": [(1, 2.26e-3), (8, 5.5e-3), (32, 12.65e-3), (64, 20.9e-3), (512, 112.6e-3)],
    }[size]
    scale = float(rng.uniform(0.75, 1))
    seconds = seconds_of([(tokens, time * scale) for tokens, time in points])

    def loop(share: float) -> Loop:
        clock = Clock()
        runner = VirtualRunner(clock, seconds)
        return Loop(Engine(runner, clock=clock, prompt_share=share), clock)

    alone = 32 * 128 / loop(1.0).closed(32, 32, 128, 128, 0.0)
    served = loop(0.5)
    served.closed(32, 32, 128, 32, 0.001)  # to learn from
    assert 64 * 128 / served.closed(32, 64, 128, 128, 0.001) > 0.9 * alone


def test_a_first_burst_is_read_at_once_while_every_step_takes_as_long_as_the_largest() -> None:
    """As on a GPU whose plans of other sizes are still being made."""
    smooth = seconds_of([(1, 0.66e-3), (8, 1.2e-3), (32, 2.6e-3), (64, 4e-3), (512, 19.4e-3)])
    clock = Clock()

    def seconds(rows: int, tokens: int) -> float:
        early = clock.now < 101
        return smooth(0, 512 if tokens else 32) if early else smooth(rows, tokens)

    loop = Loop(Engine(VirtualRunner(clock, seconds), clock=clock, prompt_share=0.5), clock)
    took = loop.closed(32, 64, 128, 128, 0.0004)
    most = 64 * 128 / 512 * smooth(0, 512) + 2 * 128 * smooth(32, 0)  # prompts and replies apart
    assert took < 1.25 * most


@pytest.mark.parametrize(
    ("points", "slower"),
    [
        ([(1, 0.66e-3), (16, 1.6e-3), (64, 4.7e-3), (512, 19.4e-3)], 3.7),
        pytest.param(
            [(1, 2.26e-3), (16, 7.9e-3), (64, 20.9e-3), (512, 112.6e-3)],
            2.6,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["1B", "8B"],
)
def test_a_reply_beside_a_long_prompt_goes_on(
    rng: np.random.Generator, points: list[tuple[int, float]], slower: float
) -> None:
    """Whose smallest step takes more than twice what the reply takes alone, as on an H200; and a step comes late behind
    a large one. The prompt takes as much longer as SELDOM asks for."""
    scale = float(rng.uniform(0.75, 1))
    late = 2 * points[0][1]
    smooth, before_it = seconds_of([(tokens, time * scale) for tokens, time in points]), [0]

    def seconds(rows: int, tokens: int) -> float:
        was, before_it[0] = before_it[0], tokens
        return smooth(rows, tokens) + (late if was > 64 else 0.0)

    clock = Clock()
    engine = Engine(
        VirtualRunner(clock, seconds, context_length=65536), clock=clock, prompt_share=0.5
    )
    loop = Loop(engine, clock)
    loop.send(64, 16000)
    for _ in range(50):
        loop.step()
    alone = loop.sent["0"].gaps[-1]
    began, before = clock.now, len(loop.sent["0"].gaps)
    loop.send(45000, 1)
    while loop.step() != {"1"}:
        pass
    gaps = loop.sent["0"].gaps[before:]
    assert percentile(gaps, 95) <= 1.1 * alone and max(gaps) <= LONGEST_GAP
    assert clock.now - began < slower * 45000 / 512 * smooth(0, 512)


@pytest.mark.parametrize(("reply", "prompt", "spared"), [(1, 1, True), (0, 2, True), (2, 1, False)])
def test_replies_are_spared_but_for_those_of_a_worse_class(
    reply: int, prompt: int, spared: bool
) -> None:
    clock = Clock()
    runner = VirtualRunner(
        clock, lambda rows, tokens: 0.002 + 1e-4 * (rows + tokens), context_length=16384
    )
    loop = Loop(Engine(runner, clock=clock, prompt_share=0.5), clock)
    loop.send(5, 4000, priority=reply)
    for _ in range(6):
        loop.step()
    loop.send(12000, 1, priority=prompt)
    first = len(runner.steps)
    while loop.step() != {"1"}:
        pass
    chunks = [float(tokens) for rows, tokens, _ in runner.steps[first:] if rows]
    if spared:
        assert percentile(chunks, 90) <= 15
    else:
        assert chunks[1] == 511 and len(chunks) <= 12000 / 511 + 6


def test_any_number_of_replies_may_follow_any_other(rng: np.random.Generator) -> None:
    """Also as many as the step that half as large a size is known of."""
    for _ in range(20):
        pace = Pace(0.5, 512)
        for _ in range(300):
            replies = int(rng.integers(1, 41))
            tokens = pace.budget(replies, 1.0, 1000, 1000)
            assert 0 <= tokens <= 512 - replies
            for prompts in (0, int(rng.integers(1, 20)), tokens):
                seconds = 0.01 + 1e-4 * prompts * float(rng.random())
                pace.note(Mix(replies, prompts, seconds))
