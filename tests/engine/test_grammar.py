"""Grammars in the engine: what is sampled fits, at every depth of the pipeline and whatever happens around it."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
import pytest
from depths import depths

from emberd.engine import Engine
from emberd.engine.grammar import GrammarError, Grammars, Matcher
from emberd.errors import BadRequestError
from emberd.protocol import GenerateRequest, MaskArray, SamplingParams, StepMessage, TokenTable
from fakes import END, TABLE, TURN, ScriptedRunner, lone_run

LETTERS = "start: /[a-h]{4,9}/ TAIL\nTAIL: /[0-9][!?]/"
PATTERN = re.compile(rb"[a-h]{4,9}[0-9][!?]")


def make_request(name: str, grammar: str | None = LETTERS, **params: object) -> GenerateRequest:
    prompt = tuple((len(name) * 31 + place * 7) % 900 for place in range(5))
    params = {"max_tokens": 40, "stop_token_ids": (END, TURN), **params}
    return GenerateRequest(name, prompt, SamplingParams(grammar=grammar, **params))  # type: ignore[arg-type]


def make_engine(steps_in_flight: int = 3, **settings: int) -> tuple[Engine, ScriptedRunner]:
    runner = ScriptedRunner(steps_in_flight=steps_in_flight, **settings)
    engine = Engine(runner)
    engine.use_table(TABLE)
    return engine, runner


class Collected:
    def __init__(self) -> None:
        self.token_ids: dict[str, list[int]] = defaultdict(list)
        self.ends: dict[str, tuple[str, str | None]] = {}

    def take(self, message: StepMessage) -> None:
        for update in message.updates:
            assert update.request_id not in self.ends, "an update after the last"
            self.token_ids[update.request_id] += update.token_ids
            if update.finish_reason:
                self.ends[update.request_id] = (update.finish_reason, update.error)

    def result(self, name: str) -> tuple[tuple[int, ...], str]:
        return tuple(self.token_ids[name]), self.ends[name][0]

    def text(self, name: str) -> bytes:
        return b"".join(TABLE.pieces[token_id] for token_id in self.token_ids[name])


def run_to_end(engine: Engine) -> Collected:
    collected = Collected()
    while engine.has_work:
        collected.take(engine.step())
        engine.check_integrity()
    return collected


def alone(request: GenerateRequest) -> tuple[tuple[int, ...], str]:
    engine, _ = make_engine(1)
    engine.add(request)
    return run_to_end(engine).result(request.request_id)


@depths
def test_what_is_sampled_fits_and_ends_with_the_grammar_k08(steps_in_flight: int) -> None:
    engine, runner = make_engine(steps_in_flight)
    requests = [make_request("r" * n, seed=n) for n in range(1, 8)]
    for request in requests:
        engine.add(request)
    collected = run_to_end(engine)
    for request in requests:
        assert PATTERN.fullmatch(collected.text(request.request_id))
        assert collected.ends[request.request_id] == ("stop", None)
    # The last token ends it: where nothing is in flight, no step is run to find the end.
    if steps_in_flight == 1:
        assert sum(int(b.sample.sum()) for b in runner.batches) == sum(
            len(ids) for ids in collected.token_ids.values()
        )


@depths
def test_a_neighbour_without_a_grammar_is_untouched(steps_in_flight: int) -> None:
    engine, runner = make_engine(steps_in_flight)
    free = [make_request(f"free {n}", None, seed=n) for n in range(3)]
    bound = [make_request(f"bound {n}", seed=n) for n in range(3)]
    for pair in zip(free, bound, strict=True):
        for request in pair:
            engine.add(request)
    collected = run_to_end(engine)
    assert all(collected.result(r.request_id) == lone_run(r) for r in free)
    assert all(collected.result(r.request_id) == alone(r) for r in bound)
    mixed = [b for b in runner.batches if b.masked is not None and not b.masked.all()]
    assert mixed, "masked and other rows were meant to share steps"


def test_steps_without_masks_stay_in_flight() -> None:
    """Three deep again when the grammar has ended, and no mask is asked for before it begins."""
    engine, runner = make_engine(3)
    engine.add(make_request("free", None, stop_token_ids=(), max_tokens=60))
    engine.step()
    assert len(runner.batches) == 3
    engine.add(make_request("bound"))
    collected = Collected()
    while "bound" not in collected.ends:
        collected.take(engine.step())
    before = len(runner.batches)
    engine.step()
    assert len(runner.batches) >= before + 2 and runner.batches[-1].masked is None


def test_the_forward_pass_is_submitted_before_the_masks_are_made() -> None:
    order: list[str] = []

    class Runner(ScriptedRunner):
        def submit(self, batch):  # type: ignore[no-untyped-def]
            order.append("submit")
            super().submit(batch)

        def sample(self, masks: MaskArray) -> None:
            order.append("sample")
            super().sample(masks)

        def collect(self):  # type: ignore[no-untyped-def]
            order.append("collect")
            return super().collect()

    engine = Engine(Runner(steps_in_flight=2))
    engine.use_table(TABLE)
    engine.add(make_request("a"))
    for _ in range(3):
        engine.step()
    assert order == ["submit", "sample", *["submit", "collect", "sample"] * 2]


@depths
def test_preemption_keeps_the_place_in_the_grammar(steps_in_flight: int) -> None:
    engine, runner = make_engine(steps_in_flight, num_blocks=11, max_batch_tokens=16)
    long = "start: /[a-h]{40,50}/"
    requests = [make_request(f"r{n}", long, seed=n) for n in range(5)]
    for request in requests:
        engine.add(request)
    collected = run_to_end(engine)
    assert all(collected.result(r.request_id) == alone(r) for r in requests)
    assert sum(len(batch.admissions) for batch in runner.batches) > len(requests), (
        "the pool was meant to be too small"
    )


@depths
@pytest.mark.parametrize("num_steps", range(6))
def test_cancel_while_a_masked_step_is_in_flight_k13(steps_in_flight: int, num_steps: int) -> None:
    engine, _ = make_engine(steps_in_flight)
    kept, free = make_request("kept", seed=4), make_request("free", None, max_tokens=9)
    for request in (make_request("gone", seed=3), kept, free):
        engine.add(request)
    collected = Collected()
    for _ in range(num_steps):
        collected.take(engine.step())
    engine.cancel("gone")
    engine.check_integrity()
    while engine.has_work:
        collected.take(engine.step())
        engine.check_integrity()
    assert collected.ends["gone"][0] == "cancelled"
    assert collected.result("kept") == alone(kept)
    assert collected.result("free") == lone_run(free)


@depths
def test_a_grammar_that_goes_wrong_ends_its_sequence_alone(
    steps_in_flight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that becomes too complex on the way."""
    engine, _ = make_engine(steps_in_flight)
    free, bad = make_request("free", None), make_request("bad")
    engine.add(free)
    engine.add(bad)
    real, calls = Matcher.mask, 0

    def mask(matcher: Matcher) -> MaskArray:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise GrammarError("too complex")
        return real(matcher)

    monkeypatch.setattr(Matcher, "mask", mask)
    collected = run_to_end(engine)
    assert collected.ends["bad"] == ("refused", "too complex")
    assert collected.result("bad")[0] == alone(bad)[0][:2]
    assert collected.result("free") == lone_run(free)
    assert engine.step().num_free_blocks == 64


def test_a_grammar_that_the_vocabulary_cannot_write_is_refused_alone() -> None:
    engine, _ = make_engine()
    pieces = tuple(b"" if b"!" in piece else piece for piece in TABLE.pieces)
    engine.use_table(TokenTable(pieces, TABLE.control_ids, TABLE.end_ids))
    bad, free = make_request("bad", 'start: "1" "!"'), make_request("free", None)
    engine.add(bad)
    engine.add(free)
    collected = run_to_end(engine)
    assert collected.ends["bad"] == ("refused", "no token of this model fits")
    assert collected.result("free") == lone_run(free)


def test_a_grammar_that_is_refused_says_why() -> None:
    engine, _ = make_engine()
    with pytest.raises(BadRequestError, match='unknown name: "nothing"') as caught:
        engine.add(make_request("a", "start: nothing"))
    assert caught.value.param == "grammar" and not engine.has_work
    with pytest.raises(BadRequestError, match="vocabulary"):
        Engine(ScriptedRunner()).add(make_request("a"))


def test_an_end_is_allowed_where_the_grammar_is_complete_and_only_there() -> None:
    matcher = Grammars(TABLE).matcher('start: "1" /2*/')

    def allowed() -> set[int]:
        bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
        return set(np.flatnonzero(bits).tolist())

    assert allowed() == {ord("1")}
    matcher.take(ord("1"))
    assert allowed() == {ord("2"), TURN, END}
    assert not matcher.is_over
    matcher.take(END)
    assert matcher.is_over


def test_forced_text_may_be_split_as_the_model_likes() -> None:
    matcher = Grammars(TABLE).matcher('start: "abcd"')
    bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
    assert {TABLE.pieces[token_id] for token_id in np.flatnonzero(bits)} == {b"a", b"ab"}


def test_a_token_that_does_not_fit_is_an_error_not_a_crash() -> None:
    matcher = Grammars(TABLE).matcher('start: "x"')
    with pytest.raises(GrammarError, match="doesn't satisfy"):
        matcher.take(ord("q"))
    with pytest.raises(GrammarError):
        matcher.mask()


def test_a_vocabulary_without_an_end_still_has_grammars() -> None:
    table = TokenTable((b"a", b"b", b"<x>"), (2,), ())
    matcher = Grammars(table).matcher('start: "a" "b"*')
    matcher.take(0)
    assert matcher.mask().tolist() == [0b010]
    over = Grammars(table).matcher('start: "a"')
    over.take(0)
    assert over.is_over


@pytest.mark.slow
@depths
def test_random_grammars_pools_and_cancels(rng: np.random.Generator, steps_in_flight: int) -> None:
    for _ in range(4):
        engine, runner = make_engine(
            steps_in_flight,
            num_blocks=int(rng.integers(12, 24)),
            block_size=int(rng.choice([2, 4])),
            max_sequences=int(rng.integers(2, 7)),
            max_batch_tokens=int(rng.integers(8, 24)),
            context_length=48,
        )
        requests = {}
        for number in range(12):
            grammar = (None, LETTERS, 'start: "ab"* "c"')[int(rng.integers(3))]
            max_tokens = int(rng.integers(1, 20))
            request = make_request(
                f"r{number}", grammar, seed=int(rng.integers(1 << 31)), max_tokens=max_tokens
            )
            requests[request.request_id] = request
        collected = Collected()
        waiting = list(requests.values())
        while waiting or engine.has_work:
            for _ in range(min(len(waiting), int(rng.poisson(0.7)))):
                engine.add(waiting.pop())
            if rng.random() < 0.1:
                engine.cancel(f"r{rng.integers(12)}")
            collected.take(engine.step())
            engine.check_integrity()
        for name, request in requests.items():
            token_ids, end = collected.result(name)
            expected = lone_run(request) if request.params.grammar is None else alone(request)
            if end == "cancelled":
                assert token_ids == expected[0][: len(token_ids)]
            else:
                assert (token_ids, end) == expected
        assert engine.step().num_free_blocks == runner.num_blocks
