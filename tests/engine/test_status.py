"""What an engine tells of itself, and that a cancelled prompt gives its blocks back within one step."""

from __future__ import annotations

import numpy as np
from depths import depths

from emberd.engine import Engine
from emberd.protocol import GenerateRequest, SamplingParams
from fakes import ScriptedRunner, lone_run


def request(rng: np.random.Generator, name: str, num_tokens: int) -> GenerateRequest:
    prompt = tuple(rng.integers(0, 900, size=num_tokens).tolist())
    return GenerateRequest(name, prompt, SamplingParams(max_tokens=20))


@depths
def test_a_prompt_cancelled_midway_frees_its_blocks_within_one_step(
    rng: np.random.Generator, steps_in_flight: int
) -> None:
    runner = ScriptedRunner(max_batch_tokens=16, steps_in_flight=steps_in_flight)
    engine = Engine(runner)
    engine.add(request(rng, "short", 5))
    engine.add(request(rng, "long", 150))
    for _ in range(int(rng.integers(2, 6))):
        engine.step()
    (short, long) = engine.status().sequences
    assert (long.request_id, long.state) == ("long", "prefill")
    assert 0 < long.num_computed_tokens < 150 and long.num_blocks == 38
    engine.cancel("long")
    engine.check_integrity()
    blocks = engine.status().blocks
    assert blocks.held == short.num_blocks or blocks.held == short.num_blocks + 1
    message = engine.step()
    engine.check_integrity()
    assert ("long", "cancelled") in [(u.request_id, u.finish_reason) for u in message.updates]
    assert message.num_free_blocks >= runner.num_blocks - 7  # at most those of 25 tokens are held


def test_states_positions_and_counts(rng: np.random.Generator) -> None:
    runner = ScriptedRunner(max_sequences=2, max_batch_tokens=8, num_blocks=32)
    engine = Engine(runner)
    for name, size in [("a", 4), ("b", 20), ("c", 4), ("d", 3)]:
        engine.add(request(rng, name, size))
    assert {one.state for one in engine.status().sequences} == {"waiting"}
    engine.step()
    status = engine.status()
    assert [(one.request_id, one.state, one.position) for one in status.sequences] == [
        ("a", "decode", None),
        ("b", "prefill", None),
        ("c", "waiting", 0),
        ("d", "waiting", 1),
    ]
    a, b, c, _ = status.sequences
    assert (a.num_prompt_tokens, a.num_completion_tokens, b.num_computed_tokens) == (4, 1, 4)
    assert (c.num_blocks, c.num_computed_tokens, c.num_preemptions) == (0, 0, 0)
    assert status.blocks.held == a.num_blocks + b.num_blocks and status.blocks.shared == 0
    assert status.blocks.total == 32 == status.blocks.free + status.blocks.held
    while engine.has_work:
        engine.step()
    ended = engine.status()
    assert ended.sequences == () and ended.blocks.held == 0 and ended.blocks.idle > 0


def test_blocks_of_a_common_beginning_are_counted_as_shared(rng: np.random.Generator) -> None:
    engine = Engine(ScriptedRunner(num_blocks=32))
    first = request(rng, "first", 17)
    engine.add(first)
    engine.step()
    engine.add(GenerateRequest("second", first.token_ids, first.params))
    engine.step()
    status = engine.status()
    assert status.blocks.shared == 4
    assert [one.num_cached_tokens for one in status.sequences] == [0, 16]


def test_a_sequence_is_put_back_and_goes_on(rng: np.random.Generator) -> None:
    """The reply is that of a lone run, and what it had computed is found again."""
    for steps_in_flight in (1, 3):
        runner = ScriptedRunner(steps_in_flight=steps_in_flight)
        engine = Engine(runner)
        one = request(rng, "one", int(rng.integers(20, 30)))
        engine.add(one)
        got: list[int] = []
        at = int(rng.integers(3, 10))
        for number in range(100):
            if number == at:
                assert engine.preempt("nobody") is None
                assert engine.preempt(("one", None)[int(rng.integers(2))]) == "one"
                assert engine.preempt("one") is None
                engine.check_integrity()
                assert engine.status().blocks.held == 0 and engine.status().blocks.idle >= 5
            got += [token for update in engine.step().updates for token in update.token_ids]
            engine.check_integrity()
            if not engine.has_work:
                break
        assert tuple(got) == lone_run(one)[0]


def test_the_prefix_tree_and_the_steps_are_summed_up(rng: np.random.Generator) -> None:
    engine = Engine(ScriptedRunner(num_blocks=64, max_batch_tokens=8))
    trunk = rng.integers(0, 900, size=12).tolist()
    for name, tail in [("a", [901] * 5), ("b", [902] * 9), ("c", [])]:
        params = SamplingParams(max_tokens=1)
        engine.add(GenerateRequest(name, (*trunk, *tail), params))
        while engine.has_work:
            engine.step()
    engine.add(GenerateRequest("d", (7, 7, 7, 7, 7), SamplingParams(max_tokens=3)))
    while engine.has_work:
        engine.step()
    status = engine.status()
    # a: trunk 3 + 1 block; b: 3 + 2; c within the trunk; d: 1
    assert (status.prefixes.blocks, status.prefixes.beginnings) == (7, 2)
    assert (status.prefixes.ends, status.prefixes.deepest) == (3, 5)
    assert status.num_steps == sum(times.count for times in status.steps.values())
    assert status.steps["replies"].count == 2 and "both" not in status.steps
    assert status.steps["prompts"].prompt_tokens == 17 + 9 + 4 + 5  # without what was found
    for times in status.steps.values():
        assert 0 < times.p50 <= times.p95 <= times.longest
