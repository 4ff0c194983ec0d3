"""Where a prompt parts from earlier ones: what the engine tells with its first token."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest

from emberd.engine import Engine
from emberd.engine.paths import Paths
from emberd.engine.prefix import BlockKeys, PrefixCache
from emberd.inspection import PrefixFinding
from emberd.protocol import GenerateRequest, SamplingParams
from fakes import ScriptedRunner

SIZE = 4


class Site:
    def __init__(self, num_blocks: int = 200, steps_in_flight: int = 1) -> None:
        runner = ScriptedRunner(num_blocks=num_blocks, steps_in_flight=steps_in_flight)
        self.engine = Engine(runner)

    def run(
        self, name: str, token_ids: Sequence[int], max_tokens: int = 1, **fields: object
    ) -> tuple[PrefixFinding | None, int, list[int]]:
        """What was found, how much of it was reused, and the reply."""
        params = SamplingParams(max_tokens=max_tokens)
        self.engine.add(GenerateRequest(name, tuple(token_ids), params, **fields))  # type: ignore[arg-type]
        found, cached, reply = [], 0, list[int]()
        while self.engine.has_work:
            for update in self.engine.step().updates:
                found.append(update.finding)
                cached = update.num_cached_tokens
                reply += update.token_ids
        assert found[1:] == [None] * (len(found) - 1), "told once, with the first token"
        return found[0], cached, reply


@pytest.mark.parametrize("steps_in_flight", [1, 3])
def test_the_first_token_that_differs_is_told_with_whose_it_is(
    rng: np.random.Generator, steps_in_flight: int
) -> None:
    site = Site(1500, steps_in_flight)
    sent: dict[str, list[int]] = {}
    for number in range(60):
        prompt = rng.integers(0, 900, rng.integers(1, 30)).tolist()
        if sent:
            before = list(sent.values())[rng.integers(len(sent))]
            prompt = before[: rng.integers(1, len(before) + 1)] + prompt
        found, cached, reply = site.run(f"r{number}", prompt, max_tokens=3)
        assert found is not None and cached <= found.num_known and found.num_gone == 0

        def common(path: list[int], prompt: list[int] = prompt) -> int:
            pairs = zip(path, prompt, strict=False)
            return next(
                (at for at, (a, b) in enumerate(pairs) if a != b), min(map(len, (path, prompt)))
            )

        longest = max(map(common, sent.values()), default=0)
        # A record ends at most at a full block, less its last token, behind the last that was published.
        assert longest - 1 <= found.num_known <= longest
        if found.num_known == longest and longest:
            assert found.request_id is not None
            path = sent[found.request_id]
            assert common(path) == longest
            if longest < len(prompt):
                assert list(found.theirs) == path[longest : longest + len(found.theirs)]
        sent[f"r{number}"] = prompt + reply


def test_a_prompt_that_is_known_to_its_end_parts_nowhere() -> None:
    site = Site()
    prompt = list(range(3 * SIZE))
    assert site.run("a", prompt)[0] == PrefixFinding(0, 0)
    for name in "bc":
        assert site.run(name, prompt)[0] == PrefixFinding(12, 0, "a")
    longer = [*prompt[:9], 500]
    found, cached, _ = site.run("d", longer)
    assert (found, cached) == (PrefixFinding(9, 0, "a", (9, 10, 11)), 8)
    assert site.run("e", longer[:9])[0] == PrefixFinding(9, 0, "a")


def test_blocks_that_went_are_told_apart_from_a_difference() -> None:
    site = Site(num_blocks=12)
    first, other = list(range(5 * SIZE + 1)), list(range(500, 500 + 9 * SIZE))
    site.run("first", first)
    site.run("other", other)  # of the first's five blocks, two are left
    found, cached, _ = site.run("again", [*first, 700])
    assert found is not None and cached < 5 * SIZE
    assert found.num_known == len(first) and found.num_gone == 5 * SIZE - cached
    assert found.request_id == "first"


def test_salts_see_nothing_of_each_other_and_who_takes_no_part_is_told_nothing() -> None:
    site = Site()
    prompt = list(range(3 * SIZE + 2))
    site.run("a", prompt)
    assert site.run("b", prompt, cache_salt="x")[0] == PrefixFinding(0, 0)
    assert site.run("c", [*prompt[:-3], 600], cache_salt="x")[0] == PrefixFinding(11, 0, "b", (11,))
    assert site.run("d", prompt, cache_salt=None)[0] is None
    found, _, _ = site.run("e", [*prompt, 1])
    assert found is not None and found.request_id == "a", "d left no record"


def test_records_are_bounded_and_those_of_blocks_that_are_there_stay(
    rng: np.random.Generator,
) -> None:
    cache = PrefixCache()
    paths = Paths(cache, 40)
    kept = BlockKeys(list(range(20 * SIZE)), SIZE, "")
    for place, key in enumerate(kept.first(20)):
        cache.put(key, kept.first(place)[-1] if place else None, place)
        paths.note(kept, place, "kept")
    for number in range(200):
        keys = BlockKeys([number, *rng.integers(0, 9, 2 * SIZE).tolist()], SIZE, "")
        for place in range(2):
            paths.note(keys, place, f"r{number}")
        assert len(paths) <= 40 + 20
    whole = [*range(20 * SIZE), 7]
    finding = paths.finding(BlockKeys(whole, SIZE, ""), len(whole), 20)
    assert finding == PrefixFinding(80, 0, "kept")


def test_a_record_takes_less_than_a_kilobyte() -> None:
    """Beside KV blocks of a hundred KiB and more."""
    cache, size, count = PrefixCache(), 32, 2000
    keys = BlockKeys(list(range(size * count)), size, "")
    keys.first(count)
    paths = Paths(cache, 10 * count)
    tracemalloc.start()
    for place in range(count):
        paths.note(keys, place, "request")
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print("bytes a record:", taken / count)
    assert taken < 1024 * count
