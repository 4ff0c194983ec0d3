"""Engine behaviour, one at a time, on the scripted runner at both pipelining depths."""

from __future__ import annotations

from collections import defaultdict

import pytest
from depths import depths

from emberd.engine import Engine
from emberd.errors import BadRequestError, ContextOverflowError
from emberd.protocol import GenerateRequest, SamplingParams, StepMessage
from fakes import ScriptedRunner, chain, hashed, lone_run

EOS = 999


def make_request(
    name: str, num_prompt_tokens: int, max_tokens: int = 8, **params: object
) -> GenerateRequest:
    prompt = tuple((len(name) * 31 + place * 7) % 900 for place in range(num_prompt_tokens))
    return GenerateRequest(name, prompt, SamplingParams(max_tokens=max_tokens, **params))  # type: ignore[arg-type]


class Collected:
    """What the gateway would have gathered."""

    def __init__(self) -> None:
        self.token_ids: dict[str, list[int]] = defaultdict(list)
        self.finish_reasons: dict[str, str] = {}

    def take(self, message: StepMessage) -> None:
        for update in message.updates:
            assert update.request_id not in self.finish_reasons, "an update after the last"
            self.token_ids[update.request_id] += update.token_ids
            if update.finish_reason:
                self.finish_reasons[update.request_id] = update.finish_reason

    def result(self, name: str) -> tuple[tuple[int, ...], str]:
        return tuple(self.token_ids[name]), self.finish_reasons[name]


def run_to_end(engine: Engine) -> Collected:
    collected = Collected()
    while engine.has_work:
        collected.take(engine.step())
        engine.check_integrity()
    return collected


@depths
def test_max_tokens_is_exact(steps_in_flight: int) -> None:
    """K05: an endless script with max_tokens 5 gives 5 tokens and "length"."""
    runner = ScriptedRunner(next_token=chain({}, default=5), steps_in_flight=steps_in_flight)
    engine = Engine(runner)
    engine.add(make_request("a", 3, max_tokens=5))
    assert run_to_end(engine).result("a") == ((5,) * 5, "length")
    num_sampled = sum(int(batch.sample.sum()) for batch in runner.batches)
    assert num_sampled == 5  # known ahead, so no row is wasted at any depth


@depths
def test_max_tokens_zero_ends_at_once(steps_in_flight: int) -> None:
    """K05."""
    runner = ScriptedRunner(steps_in_flight=steps_in_flight)
    engine = Engine(runner)
    engine.add(make_request("a", 3, max_tokens=0))
    assert run_to_end(engine).result("a") == ((), "length")
    assert runner.batches == []


@depths
def test_stop_token_ends_with_stop_and_is_returned(steps_in_flight: int) -> None:
    """K05: a script that ends by its end token gives "stop"; the token itself is counted."""
    script = chain({1: 2, 2: 3, 3: EOS}, default=4)
    runner = ScriptedRunner(next_token=script, steps_in_flight=steps_in_flight)
    engine = Engine(runner)
    engine.add(GenerateRequest("a", (1,), SamplingParams(stop_token_ids=(EOS,))))
    assert run_to_end(engine).result("a") == ((2, 3, EOS), "stop")


@depths
def test_stop_wins_where_length_falls_on_the_same_token(steps_in_flight: int) -> None:
    runner = ScriptedRunner(next_token=chain({1: EOS}), steps_in_flight=steps_in_flight)
    engine = Engine(runner)
    engine.add(GenerateRequest("a", (1,), SamplingParams(max_tokens=1, stop_token_ids=(EOS,))))
    assert run_to_end(engine).result("a") == ((EOS,), "stop")


@depths
def test_ignore_eos_goes_on(steps_in_flight: int) -> None:
    runner = ScriptedRunner(next_token=chain({}, default=EOS), steps_in_flight=steps_in_flight)
    engine = Engine(runner)
    params = SamplingParams(max_tokens=4, stop_token_ids=(EOS,), ignore_eos=True)
    engine.add(GenerateRequest("a", (1,), params))
    assert run_to_end(engine).result("a") == ((EOS,) * 4, "length")


@depths
def test_a_sequence_ends_at_the_context_length(steps_in_flight: int) -> None:
    runner = ScriptedRunner(context_length=10, steps_in_flight=steps_in_flight)
    engine = Engine(runner)
    engine.add(make_request("a", 7, max_tokens=100))
    token_ids, finish_reason = run_to_end(engine).result("a")
    assert (len(token_ids), finish_reason) == (3, "length")


@depths
def test_a_lone_sequence_may_fill_the_whole_pool(steps_in_flight: int) -> None:
    runner = ScriptedRunner(num_blocks=4, block_size=4, steps_in_flight=steps_in_flight)
    engine = Engine(runner)
    request = make_request("a", 5, max_tokens=100)
    engine.add(request)
    assert run_to_end(engine).result("a") == lone_run(request, context_length=16)


@pytest.mark.parametrize(("num_blocks", "context_length", "limit"), [(64, 20, 20), (4, 256, 16)])
def test_what_can_never_fit_is_refused_at_once(
    num_blocks: int, context_length: int, limit: int
) -> None:
    """K14, K10: by the context or by the pool, with both numbers; requests behind it are served."""
    engine = Engine(ScriptedRunner(num_blocks=num_blocks, context_length=context_length))
    with pytest.raises(ContextOverflowError, match=f"{limit} tokens.*{limit + 5} tokens") as caught:
        engine.add(make_request("big", limit + 5))
    assert (caught.value.num_prompt_tokens, caught.value.context_length) == (limit + 5, limit)
    with pytest.raises(ContextOverflowError):
        engine.add(make_request("full", limit))
    requests = [make_request(f"small {number}", 3) for number in range(10)]
    for request in requests:
        engine.add(request)
    collected = run_to_end(engine)
    assert all(collected.result(r.request_id) == lone_run(r) for r in requests)


def test_bad_requests_are_refused() -> None:
    engine = Engine(ScriptedRunner())
    with pytest.raises(BadRequestError, match="empty"):
        engine.add(GenerateRequest("a", (), SamplingParams()))
    with pytest.raises(BadRequestError, match="Token id -1"):
        engine.add(GenerateRequest("a", (5, -1), SamplingParams()))
    engine.add(make_request("a", 3))
    with pytest.raises(BadRequestError, match="'a' is already running"):
        engine.add(make_request("a", 3))


@depths
@pytest.mark.parametrize("num_steps", range(6))
def test_cancel_frees_blocks_at_once(steps_in_flight: int, num_steps: int) -> None:
    """K13: waiting, in the middle of prefill, or decoding; the neighbour is untouched."""
    runner = ScriptedRunner(
        num_blocks=20, max_batch_tokens=8, max_sequences=2, steps_in_flight=steps_in_flight
    )
    engine = Engine(runner)
    neighbour = make_request("neighbour", 6, max_tokens=20)
    for request in (neighbour, make_request("gone", 20, max_tokens=40), make_request("queued", 4)):
        engine.add(request)
    collected = Collected()
    for _ in range(num_steps):
        collected.take(engine.step())
    engine.cancel("gone")
    engine.cancel("queued")
    engine.cancel("never seen")
    engine.check_integrity()
    message = engine.step()
    collected.take(message)
    assert (message.num_running, message.num_waiting) == (1, 0)
    assert message.num_free_blocks >= 20 - 3
    while engine.has_work:
        collected.take(engine.step())
        engine.check_integrity()
    assert collected.finish_reasons["gone"] == collected.finish_reasons["queued"] == "cancelled"
    assert collected.result("neighbour") == lone_run(neighbour)
    assert engine.step().num_free_blocks == 20


@depths
def test_a_place_is_reused_while_its_last_row_is_in_flight(steps_in_flight: int) -> None:
    runner = ScriptedRunner(
        next_token=lambda history, params: EOS if len(history) == 6 else hashed(history, params),
        max_sequences=1,
        num_blocks=4,
        steps_in_flight=steps_in_flight,
    )
    engine = Engine(runner)
    for number in range(5):
        engine.add(make_request(f"r{number}", 4, max_tokens=9, stop_token_ids=(EOS,), seed=number))
    collected = run_to_end(engine)
    assert set(collected.finish_reasons.values()) == {"stop"}
    assert all(len(token_ids) == 3 for token_ids in collected.token_ids.values())


@depths
def test_preemption_keeps_every_token_and_its_seed(steps_in_flight: int) -> None:
    """K12: the seed travels with its sequence through preemption and recompute."""
    runner = ScriptedRunner(num_blocks=7, max_batch_tokens=16, steps_in_flight=steps_in_flight)
    engine = Engine(runner)
    requests = [make_request(f"r{n}", 3 + n, max_tokens=18, seed=n) for n in range(4)]
    for request in requests:
        engine.add(request)
    collected = run_to_end(engine)
    assert all(collected.result(r.request_id) == lone_run(r) for r in requests)
    num_admissions = sum(len(batch.admissions) for batch in runner.batches)
    assert num_admissions > len(requests), "the pool was meant to be too small"


def test_a_seed_belongs_to_its_request() -> None:
    """K12: the same tokens alone, beside others, and joining late."""
    request = make_request("seeded", 5, max_tokens=12, seed=42)
    alone = lone_run(request)
    for num_others, num_steps_before in ((1, 0), (7, 0), (7, 3)):
        engine = Engine(ScriptedRunner(steps_in_flight=2))
        collected = Collected()
        for number in range(num_others):
            engine.add(make_request(f"other {number}", 5, max_tokens=20, seed=number))
        for _ in range(num_steps_before):
            collected.take(engine.step())
        engine.add(request)
        while engine.has_work:
            collected.take(engine.step())
        assert collected.result("seeded") == alone


def test_a_second_step_is_submitted_before_the_first_is_collected() -> None:
    runner = ScriptedRunner(steps_in_flight=2)
    engine = Engine(runner)
    engine.add(make_request("a", 3, max_tokens=6))
    message = engine.step()
    assert len(runner.batches) == 2 and len(message.updates) == 1
    assert runner.batches[1].token_ids.tolist() == [-1]


def test_fail_ends_every_sequence_with_the_reason() -> None:
    engine = Engine(ScriptedRunner(max_sequences=1))
    engine.add(make_request("a", 3))
    engine.add(make_request("b", 3))
    engine.step()
    message = engine.fail("the device was lost")
    assert [(u.request_id, u.finish_reason, u.error) for u in message.updates] == [
        ("a", "error", "the device was lost"),
        ("b", "error", "the device was lost"),
    ]
