"""Models in which every layer has a window: blocks behind it are given up, and prefixes are found without them."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from emberd.engine import Engine
from emberd.engine.blocks import HOLE, BlockManager
from emberd.engine.prefix import BlockKeys
from emberd.protocol import GenerateRequest, SamplingParams
from fakes import ScriptedRunner, lone_run

depths = pytest.mark.parametrize("steps_in_flight", [1, 3])
SIZE = 4


def run(engine: Engine, *requests: GenerateRequest) -> tuple[int, dict[str, int]]:
    """The fewest blocks that were free, and the cached tokens of each; answers are checked."""
    got: dict[str, list[int]] = defaultdict(list)
    cached: dict[str, int] = {}
    least = 1 << 30
    for request in requests:
        engine.add(request)
    while engine.has_work:
        message = engine.step()
        engine.check_integrity()
        least = min(least, message.num_free_blocks)
        for update in message.updates:
            got[update.request_id] += update.token_ids
            cached[update.request_id] = update.num_cached_tokens
    for request in requests:
        expected = lone_run(request, context_length=engine.context_length)[0]
        assert tuple(got[request.request_id]) == expected
    return least, cached


def a_request(
    name: str, rng: np.random.Generator, length: int, max_tokens: int, salt: str | None = ""
) -> GenerateRequest:
    token_ids = tuple(rng.integers(0, 900, length).tolist())
    return GenerateRequest(name, token_ids, SamplingParams(max_tokens=max_tokens), None, salt)


@depths
@pytest.mark.parametrize("salt", ["", None])
def test_a_long_reply_holds_its_window_alone(
    rng: np.random.Generator, steps_in_flight: int, salt: str | None
) -> None:
    window = int(rng.integers(1, 20))
    runner = ScriptedRunner(window=window, steps_in_flight=steps_in_flight)
    least, _ = run(Engine(runner), a_request("a", rng, 3, 200, salt))
    assert runner.num_blocks - least <= -(-window // SIZE) + 2, f"window {window}"


@depths
def test_a_long_prompt_gives_up_what_it_has_passed(
    rng: np.random.Generator, steps_in_flight: int
) -> None:
    runner = ScriptedRunner(
        window=10, num_blocks=64, max_batch_tokens=16, steps_in_flight=steps_in_flight
    )
    engine = Engine(runner)
    engine.add(a_request("a", rng, 200, 20))
    free = [engine.step().num_free_blocks for _ in range(12)]
    assert free[0] < 64 - 200 // SIZE + 4 * steps_in_flight
    assert free == sorted(free) and free[-1] > 64 - 10


@depths
def test_a_beginning_is_gone_on_from_by_its_window_alone(
    rng: np.random.Generator, steps_in_flight: int
) -> None:
    """Of a chat's earlier turns the blocks behind the window have been written over long since."""
    runner = ScriptedRunner(
        window=12, num_blocks=40, context_length=160, steps_in_flight=steps_in_flight
    )
    engine = Engine(runner)
    first = a_request("first", rng, 100, 5)
    run(engine, first)
    filler = [a_request(f"other {n}", rng, 40, 5) for n in range(2)]
    run(engine, *filler)
    history = first.token_ids + lone_run(first)[0]
    _, cached = run(engine, GenerateRequest("next", (*history, 1, 2), first.params))
    assert cached["next"] == (len(history) - 1) // SIZE * SIZE


def test_the_longest_beginning_whose_window_is_there_is_found() -> None:
    window, tokens = 6, list(range(40))
    blocks = BlockManager(10, SIZE, window)
    keys = BlockKeys(tokens, SIZE, "").first(8)
    table: list[int] = []
    blocks.grow(table, 32)
    for place in (0, 2, 3, 4, 6):  # block 1, 5 and 7 are known to nobody
        blocks.publish(table, place, keys[place], None)
    # From 20 on, positions 15 .. 19 are seen: blocks 3 and 4. From 28 on, 23 .. 27: 5 is missing.
    assert blocks.find(keys) == [HOLE, HOLE, HOLE, table[3], table[4]]
    assert blocks.find(keys[:4]) == [HOLE, HOLE, table[2], table[3]]
    assert blocks.find(keys[:3]) == [table[0]]
    blocks.check_integrity([table])


def test_blocks_are_freed_up_to_the_first_position_that_is_seen() -> None:
    blocks = BlockManager(10, SIZE, window=6)
    table: list[int] = []
    blocks.grow(table, 40)
    whole = list(table)
    assert blocks.free_behind(table, 8) == range(0)  # sees 3 .. 8
    assert blocks.free_behind(table, 9) == range(1)  # sees 4 .. 9
    assert blocks.free_behind(table, 20) == range(1, 3)
    assert table == [HOLE] * 3 + whole[3:]
    assert blocks.free_behind(table, 20) == range(3, 3)
    blocks.check_integrity([table])
    blocks.release(table)
    assert blocks.num_free == 10
