"""Speculation: the look-up, when it pays, and that no token is another for it, in any company."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from drafted import Told, in_company, run_all
from emberd.engine import Engine
from emberd.engine.speculation import (
    FIRST_REST,
    LONGEST_REST,
    MAX_DRAFTED,
    MIN_MATCH,
    Speculation,
    can_be_guessed,
    look_up,
)
from emberd.protocol import GenerateRequest, SamplingParams
from fakes import END, TABLE, ScriptedRunner, hashed


def found(tokens: Sequence[int], count: int = 4) -> list[int]:
    return look_up(np.array(tokens, np.int32), count)


def test_what_followed_the_longest_match_is_guessed() -> None:
    assert found([7, 1, 2, 3, 50, 51, 52, 53, 8, 1, 2, 3]) == [50, 51, 52, 53]
    assert found([7, 1, 2, 3, 50, 9, 0, 1, 2, 3, 60, 61, 62, 63, 7, 1, 2, 3]) == [50, 9, 0, 1]
    assert found([1, 2, 3, 50, 9, 1, 2, 3, 60, 1, 2, 3]) == [60, 1, 2, 3], "the last of equal ones"


def test_short_matches_and_short_texts_lead_nowhere() -> None:
    assert MIN_MATCH == 3
    assert found([2, 3, 50, 51, 52, 2, 3]) == []
    assert found([1]) == found([1, 1]) == found([1, 2, 3]) == []


def test_what_repeats_itself_is_guessed_to_go_on() -> None:
    assert found([5, 5, 5, 5], 6) == [5] * 6
    assert found([1, 2, 1, 2, 1], 5) == [2, 1, 2, 1, 2]


def test_what_has_a_state_that_guesses_would_spoil_is_not_guessed() -> None:
    assert can_be_guessed(SamplingParams())
    for params in (
        SamplingParams(repetition_penalty=1.1),
        SamplingParams(presence_penalty=0.1),
        SamplingParams(num_logprobs=0),
        SamplingParams(max_drafted=0),
    ):
        assert not can_be_guessed(params)
    assert can_be_guessed(SamplingParams(repetition_penalty=1.1, penalty_window=0))
    assert can_be_guessed(SamplingParams(grammar="start: /a/"))


def test_what_is_expected_is_guessed_too() -> None:
    """A reply that goes on as the caller said, of which nothing stands in the prompt."""
    expected = list(range(100, 160))
    speculation, known = Speculation(expected=expected), [1, 2, 3]
    for place, token_id in enumerate(expected[:9]):
        assert speculation.propose(known, 100) == []
        known.append(token_id)
        speculation.took(place, 1, 0)
    assert speculation.propose(known, 100) == expected[9:17]
    assert speculation.propose(known, 3) == expected[9:12]


class Reader:
    """A Speculation that is shown tokens, with a clock in which each step costs what it is told."""

    def __init__(self, most: int | None = None) -> None:
        self.speculation, self.now = Speculation(most), 0.0
        self.known: list[int] = [1, 2, 3, 4] * 8

    def step(self, coming: Sequence[int], cost: float = 1.0) -> tuple[int, int]:
        """One step of a sequence that goes on as `coming`: how many were guessed, and how many right."""
        drafted = self.speculation.propose(self.known, 100)
        right = 0
        while right < len(drafted) and drafted[right] == coming[right]:
            right += 1
        self.now += cost if drafted else 1.0
        self.speculation.took(self.now, right + 1, len(drafted))
        self.known += coming[: right + 1]
        return len(drafted), right


def test_right_guesses_get_longer_and_wrong_ones_shorter() -> None:
    reader = Reader()
    lengths = [reader.step(list(itertools.islice(itertools.cycle([1, 2, 3, 4]), 40)))[0]]
    for _ in range(20):
        phase = len(reader.known) % 4
        lengths.append(reader.step(([1, 2, 3, 4] * 12)[phase:])[0])
    assert lengths[0] == 0 and sorted(lengths) == lengths and lengths[-1] == MAX_DRAFTED
    phase = len(reader.known) % 4
    coming = ([1, 2, 3, 4] * 12)[phase:]
    assert reader.step([*coming[:2], 99, *coming])[1] == 2
    reader.known += coming[3:12]  # so that it matches again
    assert reader.step([0] * 40)[0] == 6


def test_guesses_that_do_not_pay_become_rare() -> None:
    """The last tokens are always found, and what is guessed behind them is always wrong."""
    reader, steps = Reader(), []
    for count in range(2000):
        reader.known = reader.known[:32]
        reader.speculation._tokens = reader.speculation._tokens[:0]
        steps.append(reader.step([1000 + count], cost=2.0)[0] > 0)
    times = np.flatnonzero(steps)
    assert np.diff(times).max() <= LONGEST_REST + 1 and np.diff(times).min() > FIRST_REST
    assert reader.now < 2000 * 1.05, "guessing costs at most a twentieth"


def test_at_most_what_the_request_allows() -> None:
    reader = Reader(most=2)
    for _ in range(30):
        assert reader.step(([1, 2, 3, 4] * 12)[len(reader.known) % 4 :])[0] <= 2


def wordy(history: Sequence[int], params: SamplingParams) -> int:
    """A next token that mostly follows from the last two, so that texts repeat themselves; now and then any."""
    if hashed(history, params) % 12 == 0:
        return hashed(history, params) % 40
    return zlib.crc32(np.array(history[-2:], np.int64).tobytes()) % 5


def request_of(
    rng: np.random.Generator, longest: int, name: str, texts: list[tuple[int, ...]]
) -> GenerateRequest:
    prompt = tuple(rng.integers(0, 5, size=int(rng.integers(1, longest))).tolist())
    if texts and rng.integers(2):
        earlier = texts[int(rng.integers(len(texts)))]
        prompt = (earlier[: int(rng.integers(len(earlier) + 1))] + prompt)[: len(prompt)]
    params = SamplingParams(
        max_tokens=int(rng.integers(1, 90)),
        seed=int(rng.integers(3)),
        stop_token_ids=tuple(rng.integers(4, 40, size=int(rng.integers(0, 6))).tolist()),
        presence_penalty=float(rng.integers(5) == 0),
        max_drafted=(None, None, 0, 2)[int(rng.integers(4))],
    )
    salt = ("", "", "salt", None)[int(rng.integers(4))]
    return GenerateRequest(name, prompt, params, cache_salt=salt)


@pytest.mark.parametrize(
    "steps_in_flight",
    [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)],
)
def test_no_token_is_another_for_it(rng: np.random.Generator, steps_in_flight: int) -> None:
    """Arrivals, cancels, preemption, stop tokens, shared prefixes; guesses that pay, by a random clock, or do not."""
    num_right = num_told = num_preempted = 0
    for num_rounds in itertools.count(1):
        runner = ScriptedRunner(
            next_token=wordy,
            num_blocks=int(rng.integers(10, 60)),
            block_size=int(rng.choice([1, 4, 16])),
            max_sequences=int(rng.integers(1, 17)),
            max_batch_tokens=int(rng.integers(1, 40)),
            context_length=int(rng.integers(60, 200)),
            steps_in_flight=steps_in_flight,
            window=int(rng.choice([0, 0, 30])),
        )
        gaps = itertools.accumulate(rng.exponential(size=100_000).tolist())
        engine = Engine(runner, speculate=True, clock=lambda gaps=gaps: next(gaps))
        longest = engine.context_length // 2
        num_told += in_company(rng, engine, partial(request_of, rng, longest), wordy, 12)[0]
        assert engine.step().num_free_blocks == runner.num_blocks
        num_right += runner.num_right
        admitted = sum(len(batch.admissions) for batch in runner.batches)
        num_preempted += admitted > 12
        if num_rounds >= 8 and num_told > 20 and num_preempted:
            break
        assert num_rounds < 80, "guesses were meant to be right, and some requests to be preempted"
    assert num_right >= num_told


GRAMMARS = ("start: /(<[a-d]{2,5}>){9,20}/", "start: /([a-c]{3}-){12,30}[0-9]/", None)


def lettered(history: Sequence[int], params: SamplingParams) -> int:
    """A next token that follows from the last one: what a grammar leaves of it repeats itself; now and then any."""
    rare = hashed(history, params) % 40 == 0
    return (hashed(history, params) if rare else history[-1] * 7 + 3) % 300


def by_letters(
    runner: ScriptedRunner, requests: list[GenerateRequest], speculate: bool
) -> dict[str, Told]:
    engine = Engine(runner, clock=itertools.count().__next__, speculate=speculate)
    engine.use_table(TABLE)
    return run_all(engine, requests)


@pytest.mark.parametrize("steps_in_flight", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_grammars_bind_guesses_too(rng: np.random.Generator, steps_in_flight: int) -> None:
    """A guess that does not fit is not made, each place has its own mask, and no token is another for it."""
    requests = [
        GenerateRequest(
            f"r{place}",
            tuple(rng.integers(0, 300, int(rng.integers(1, 9))).tolist()),
            SamplingParams(
                max_tokens=int(rng.integers(20, 120)),
                seed=int(rng.integers(1 << 31)),
                grammar=GRAMMARS[place % 3],
                stop_token_ids=(END,),
            ),
        )
        for place in range(9)
    ]
    sizes = {"max_sequences": 16, "num_blocks": 400, "steps_in_flight": steps_in_flight}
    plain = by_letters(ScriptedRunner(next_token=lettered, **sizes), requests, False)
    guessed = by_letters(ScriptedRunner(next_token=lettered, **sizes), requests, True)
    assert {name: one[:2] for name, one in guessed.items()} == {
        name: one[:2] for name, one in plain.items()
    }
    bound = [guessed[request.request_id] for request in requests if request.params.grammar]
    assert sum(right for *_, right in bound) > 20, "guesses were meant to be right"
