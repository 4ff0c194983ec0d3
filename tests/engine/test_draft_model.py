"""Draft models under an engine: no token is another for them, their guesses are used, and they keep nothing back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from drafted import in_company, run_all
from emberd.engine import Engine
from emberd.engine.draft_model import CATCH_UP, DraftModel
from emberd.engine.speculation import (
    ASKED_TOKENS,
    FIRST_REST,
    LONGEST_DRAFT_REST,
    MAX_DRAFTED,
    PLAIN_TOKENS,
    Speculation,
)
from emberd.protocol import GenerateRequest, SamplingParams
from fakes import END, TABLE, VOCABULARY, ScriptedRunner, hashed, lone_run


def often_right(history: Sequence[int], params: SamplingParams) -> int:
    """As the model goes on, or, one time in five, not."""
    token_id = hashed(history, params)
    return token_id if token_id % 5 else (token_id + 1) % VOCABULARY


def draft_of(
    next_token: Any = often_right, num_tokens: int = VOCABULARY, **sizes: Any
) -> DraftModel:
    runner = ScriptedRunner(next_token=next_token, goes_back=True, **sizes)
    return DraftModel(runner, num_tokens)


@pytest.mark.parametrize("steps_in_flight", [1, 3])
def test_a_model_that_guesses_itself_is_always_right(
    rng: np.random.Generator, steps_in_flight: int
) -> None:
    """And saves the steps of its right guesses: a reply takes far fewer than it has tokens."""
    sizes: dict[str, Any] = {"num_blocks": 200, "steps_in_flight": steps_in_flight}
    runner, draft = ScriptedRunner(max_sequences=16, **sizes), draft_of(hashed, **sizes)
    engine = Engine(runner, clock=itertools.count().__next__, draft=draft)
    prompt = tuple(rng.integers(0, VOCABULARY, int(rng.integers(1, 150))).tolist())
    request = GenerateRequest(
        "r", prompt, SamplingParams(max_tokens=100, seed=int(rng.integers(99)))
    )
    engine.add(replace(request, request_id="seen"))
    while not (now := engine.status().sequences[0]).num_drafted_tokens:
        engine.step()
    assert now.num_drafted_tokens == now.num_accepted_tokens
    engine.cancel("seen")
    engine.step()
    before = len(runner.batches)
    ids, reason, drafted, right = run_all(engine, [request])["r"]
    assert (ids, reason) == lone_run(request)
    assert drafted == right > 70
    assert len(runner.batches) - before < 50 + len(prompt) // 16
    assert draft.blocks.num_free == 200


def random_request(
    rng: np.random.Generator, longest: int, name: str, texts: list[tuple[int, ...]]
) -> GenerateRequest:
    """Some begin as an earlier text does, or as its reply went on."""
    params = SamplingParams(
        max_tokens=int(rng.integers(1, 150)),
        seed=int(rng.integers(1 << 31)),
        stop_token_ids=tuple(rng.integers(0, VOCABULARY, 4).tolist()),
        presence_penalty=float(rng.integers(6) == 0),
        max_drafted=(None, None, 0, 2)[int(rng.integers(4))],
    )
    prompt = tuple(rng.integers(0, VOCABULARY, int(rng.integers(1, longest))).tolist())
    if texts and rng.integers(2):
        earlier = texts[int(rng.integers(len(texts)))]
        prompt = (*earlier[: int(rng.integers(len(earlier)))], *prompt)[:longest]
    salt = ("", "", "salt", None)[int(rng.integers(4))]
    return GenerateRequest(name, prompt, params, cache_salt=salt)


@pytest.mark.slow
@pytest.mark.parametrize("steps_in_flight", [1, 2, 3])
def test_no_token_is_another_for_it(rng: np.random.Generator, steps_in_flight: int) -> None:
    """Arrivals, cancels, preemption by the engine and by hand, stop tokens; pools of both models that are too small."""
    counts = np.zeros(2, np.int64)  # of right guesses, of those put back
    for num_rounds in itertools.count(1):
        sizes = {"block_size": int(rng.choice([1, 4, 16])), "steps_in_flight": steps_in_flight}
        runner = ScriptedRunner(
            num_blocks=int(rng.integers(20, 60)),
            max_sequences=int(rng.integers(2, 17)),
            max_batch_tokens=int(rng.integers(2, 40)),
            context_length=int(rng.integers(60, 200)),
            **sizes,
        )
        num_blocks = int(rng.integers(10, 60))
        draft = draft_of(
            num_blocks=num_blocks,
            max_sequences=int(rng.integers(1, 17)),
            max_batch_tokens=int(rng.integers(1, 160)),
            context_length=int(rng.integers(100, 200)),
            num_tokens=int(rng.choice([VOCABULARY, VOCABULARY - 2])),
            **sizes,
        )
        seconds = np.ones(100_000) if rng.integers(3) else rng.exponential(size=100_000)
        gaps = itertools.accumulate(seconds.tolist())
        engine = Engine(runner, clock=lambda gaps=gaps: next(gaps), draft=draft)
        longest = engine.context_length // 2
        counts += in_company(rng, engine, partial(random_request, rng, longest), hashed, 10, 0.05)
        assert engine.step().num_free_blocks == runner.num_blocks
        assert draft.blocks.num_free == num_blocks, "the draft model keeps blocks of what has ended"
        if num_rounds >= 5 and counts[0] > 25 and counts[1]:
            break
        assert num_rounds < 50, "guesses and preemption were meant to come"


def test_replies_wait_for_a_part_of_a_long_prompt_and_for_none_that_does_not_pay(
    rng: np.random.Generator,
) -> None:
    """Two prompts that would fit in one step of the draft; then one whose reply is over too soon."""
    sizes: dict[str, Any] = {"num_blocks": 400, "max_batch_tokens": 700, "context_length": 700}
    runner, beside = ScriptedRunner(**sizes), ScriptedRunner(goes_back=True, **sizes)
    draft = DraftModel(beside, VOCABULARY)
    engine = Engine(runner, clock=itertools.count().__next__, draft=draft)

    def requests(count: int, max_tokens: int) -> list[GenerateRequest]:
        params = SamplingParams(max_tokens=max_tokens)
        prompts = rng.integers(0, VOCABULARY, (count, 2 * CATCH_UP + 40)).tolist()
        return [GenerateRequest(f"r{n}", tuple(one), params) for n, one in enumerate(prompts)]

    found = run_all(engine, requests(2, 50))
    assert all(right > 10 for _, _, _, right in found.values())
    assert CATCH_UP <= max(batch.num_tokens for batch in beside.batches) < CATCH_UP + 40
    before = len(beside.batches)
    run_all(engine, requests(1, FIRST_REST + 4))
    assert len(beside.batches) == before


@pytest.mark.parametrize("salt", ["", None])
def test_a_turn_finds_what_the_one_before_left(rng: np.random.Generator, salt: str | None) -> None:
    """In the draft's own pool: of prompt and reply all but the last blocks. Nothing where nothing is to be kept."""
    sizes: dict[str, Any] = {"num_blocks": 200, "block_size": 4, "context_length": 500}
    beside = ScriptedRunner(goes_back=True, **sizes)
    engine = Engine(
        ScriptedRunner(max_sequences=16, **sizes),
        clock=itertools.count().__next__,
        draft=DraftModel(beside, VOCABULARY),
    )
    params = SamplingParams(max_tokens=60)
    prompt = tuple(rng.integers(0, VOCABULARY, 200).tolist())
    first = run_all(engine, [GenerateRequest("a", prompt, params, cache_salt=salt)])["a"][0]
    ran = sum(batch.num_tokens for batch in beside.batches)
    turn = (*prompt, *first, 1, 2, 3)
    run_all(engine, [GenerateRequest("b", turn, params, cache_salt=salt)])
    more = sum(batch.num_tokens for batch in beside.batches) - ran
    assert ran > 200
    shape = engine.status().draft_blocks
    assert shape is not None and (shape.held, shape.total) == (0, 200)
    assert (shape.idle > 60) == (salt == "")
    assert more < 120 if salt == "" else more > 260


def test_ids_that_the_draft_does_not_know_never_reach_it(rng: np.random.Generator) -> None:
    """As of biases, and of texts: it follows those no further than to the first such id."""
    shared, known = 500, 40

    def going_beyond(history: Sequence[int], params: SamplingParams) -> int:
        return hashed(history, params) % shared + shared * (len(history) >= known)

    sizes: dict[str, Any] = {"next_token": going_beyond, "num_blocks": 100, "max_sequences": 16}
    beside = ScriptedRunner(goes_back=True, **sizes)
    draft = DraftModel(beside, shared)
    engine = Engine(ScriptedRunner(**sizes), clock=itertools.count().__next__, draft=draft)
    params = SamplingParams(max_tokens=60, logit_bias=((7, 1.0), (shared, 2.0)))
    prompt = tuple(rng.integers(0, shared, 20).tolist())
    request = GenerateRequest("r", prompt, params)
    ids, _, drafted, right = run_all(engine, [request])["r"]
    assert ids == lone_run(request, going_beyond)[0] and 0 < drafted == right < known
    admitted = [one.params for batch in beside.batches for one in batch.admissions]
    assert {one.logit_bias for one in admitted} == {((7, 1.0),)}
    assert all(int(batch.positions.max()) < known + MAX_DRAFTED for batch in beside.batches)


@pytest.mark.slow
def test_a_draft_that_did_not_pay_is_tried_less_by_the_next_sequences(
    rng: np.random.Generator,
) -> None:
    """Time is counted in steps of both models. Once it is right, it is found out again."""
    right = False

    def moody(history: Sequence[int], params: SamplingParams) -> int:
        return (hashed(history, params) + (not right)) % VOCABULARY

    sizes: dict[str, Any] = {"num_blocks": 200, "max_sequences": 16}
    runner, beside = (
        ScriptedRunner(**sizes),
        ScriptedRunner(next_token=moody, goes_back=True, **sizes),
    )
    draft = DraftModel(beside, VOCABULARY)
    engine = Engine(
        runner, clock=lambda: len(runner.batches) + 0.5 * len(beside.batches), draft=draft
    )

    def run(count: int) -> list[int]:
        """Guesses of one sequence after the other."""
        drafted = []
        for _ in range(count):
            prompt = tuple(rng.integers(0, VOCABULARY, 9).tolist())
            request = GenerateRequest("r", prompt, SamplingParams(max_tokens=100))
            drafted.append(run_all(engine, [request])["r"][2])
        return drafted

    first, *later = run(9)
    assert first > 10 and np.mean(later) < first / 2
    right = True
    assert max(run(9)) > 40


def test_text_and_draft_model_guess_together(rng: np.random.Generator) -> None:
    """What repeats itself is guessed from the text; the draft model, always wrong here, is asked before it does."""
    period = rng.permutation(VOCABULARY)[:5].tolist()

    def repeating(history: Sequence[int], params: SamplingParams) -> int:
        return period[len(history) % 5] if len(history) > 30 else hashed(history, params)

    def wrong(history: Sequence[int], params: SamplingParams) -> int:
        return (repeating(history, params) + 1) % VOCABULARY

    request = GenerateRequest("r", (END,), SamplingParams(max_tokens=150))
    runner, draft = ScriptedRunner(next_token=repeating), draft_of(wrong)
    engine = Engine(runner, clock=itertools.count().__next__, speculate=True, draft=draft)
    ids, _, drafted, right = run_all(engine, [request])["r"]
    assert ids == lone_run(request, repeating)[0]
    assert drafted > right > 50


def test_grammars_bind_a_draft_models_guesses(rng: np.random.Generator) -> None:
    def lettered(history: Sequence[int], params: SamplingParams) -> int:
        return (history[-1] * 7 + 3) % 300

    requests = [
        GenerateRequest(
            f"r{place}",
            tuple(rng.integers(0, 300, 5).tolist()),
            SamplingParams(max_tokens=60, grammar=grammar, stop_token_ids=(END,)),
        )
        for place, grammar in enumerate(["start: /[a-z]{40,50}/", "start: /(<[a-d]{2}>){9,20}/"])
    ]

    def run(draft: DraftModel | None) -> dict[str, tuple[Any, ...]]:
        runner = ScriptedRunner(next_token=lettered, max_sequences=16, num_blocks=200)
        engine = Engine(runner, clock=itertools.count().__next__, draft=draft)
        engine.use_table(TABLE)
        return run_all(engine, requests)

    plain, guessed = run(None), run(draft_of(lettered, num_blocks=200))
    assert {name: one[:2] for name, one in guessed.items()} == {
        name: one[:2] for name, one in plain.items()
    }


def replies(cost: float, right: float, rng: np.random.Generator, count: int) -> list[int]:
    """How many guesses each step of one sequence had, where a step with guesses takes `cost` and each guess is right
    with that probability, until it has `count` tokens."""
    speculation, now, steps, num_tokens = Speculation(looks_up=False, drafts=True), 0.0, [], 0
    while num_tokens < count:
        speculation.follow(True)
        asked = speculation.ask(100) if not speculation.propose([1] * (num_tokens + 1), 100) else 0
        came = 1
        while came <= asked and rng.random() < right:
            came += 1
        now += cost if asked else 1.0
        speculation.took(now, came, asked)
        num_tokens += came
        steps.append(asked)
    return steps


def test_a_draft_model_that_pays_is_asked_for_more_and_what_is_plain_is_measured_again(
    rng: np.random.Generator,
) -> None:
    steps = replies(2.0, 1.0, rng, 2000)
    assert steps[:FIRST_REST] == [0] * FIRST_REST and max(steps) == MAX_DRAFTED
    plain = sum(not asked for asked in steps[FIRST_REST:])
    assert (
        PLAIN_TOKENS * (2000 // (2 * ASKED_TOKENS))
        <= plain
        <= PLAIN_TOKENS * (2000 // ASKED_TOKENS + 1)
    )


def test_a_draft_model_that_does_not_pay_is_asked_seldom(rng: np.random.Generator) -> None:
    steps = replies(3.0, 0.1, rng, 4000)
    asked = np.flatnonzero(steps)
    assert np.diff(asked).max() <= LONGEST_DRAFT_REST + 1
    assert len(asked) < 4000 // LONGEST_DRAFT_REST * 4 + 12
