"""Blocks that hold what is not a number are found by nobody, in the pool and below."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emberd.engine import Engine
from emberd.engine.block_files import BlockFiles
from emberd.engine.disk_tier import DiskTier
from emberd.engine.distrust import _has_token
from emberd.engine.rates import Rates
from emberd.engine.sequence import Sequence
from emberd.engine.tiers import Tiers
from emberd.engine.updates import NOT_FINITE
from emberd.protocol import Batch, GenerateRequest, SamplingParams, StepOutput
from fakes import ScriptedCopy, ScriptedRunner, lone_run

POISON = 1000  # beyond what is sampled and what the prompts here have
depths = pytest.mark.parametrize("steps_in_flight", [1, 3])


class SpoilingRunner(ScriptedRunner):
    """As attention does: a row with POISON spoils all that it writes, and whoever reads a spoiled slot is spoiled."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self._spoiled: set[int] = set()  # slots
        self._failing: list[list[int]] = []  # rows of the steps in flight

    def submit(self, batch: Batch) -> None:
        super().submit(batch)
        failing = []
        for row in range(batch.num_rows):
            start, end = batch.query_start[row : row + 2].tolist()
            slots = batch.slot_mapping[start:end].tolist()
            table = batch.block_tables[row].tolist()
            length = int(batch.context_lens[row])
            first = length - (end - start)
            seen = range(self._first_seen(first), first)
            before = [self._slot(table, position) for position in seen]
            if POISON in batch.token_ids[start:end] or self._spoiled.intersection(before):
                self._spoiled.update(slots)
                failing.append(row)
            else:
                self._spoiled.difference_update(slots)
        self._failing.append(failing)

    def collect(self) -> StepOutput:
        output = super().collect()
        output.token_ids[self._failing.pop(0)] = -1
        return output

    def read_blocks(self, blocks: Any) -> ScriptedCopy:
        words = super().read_blocks(blocks).take().view(np.int64).reshape(len(blocks), -1, 3)
        for place, block in enumerate(blocks):
            for offset in range(self.block_size):
                if block * self.block_size + offset in self._spoiled:
                    words[place, offset, 0] = -2 - words[place, offset, 0]
        return ScriptedCopy(words.reshape(len(blocks), -1).view(np.uint8))

    def write_blocks(self, blocks: Any, data: Any) -> None:
        words = np.stack(data).view(np.int64).reshape(len(blocks), -1, 3)
        for place, block in enumerate(blocks):
            for offset in range(self.block_size):
                slot = block * self.block_size + offset
                self._spoiled.discard(slot)
                if words[place, offset, 0] < -1:
                    words[place, offset, 0] = -2 - words[place, offset, 0]
                    self._spoiled.add(slot)
        super().write_blocks(blocks, words.reshape(len(blocks), -1).view(np.uint8))


class Site:
    """An engine, with tiers where there is a folder; every step leaves all in order."""

    def __init__(self, folder: Path | None = None, **sizes: Any) -> None:
        runner = SpoilingRunner(**sizes)
        tiers = None
        if folder is not None:
            rates = Rates(runner.block_size, runner.block_bytes)
            files = BlockFiles(folder, bytes(32), runner.block_bytes)
            disk = DiskTier(files, 1 << 20, rates.fetch)
            tiers = Tiers(runner, rates, 30 * runner.block_bytes, disk)
        self.engine = Engine(runner, tiers)

    def run(self, *requests: GenerateRequest) -> dict[str, tuple[bool, int]]:
        """Whether each was right, and how many tokens it found; else it has ended for what is not finite. Tells of
        others that run too."""
        token_ids: defaultdict[str, tuple[int, ...]] = defaultdict(tuple)
        found: dict[str, tuple[bool, int]] = {}
        for request in requests:
            self.engine.add(request)
        while self.engine.has_work:
            for update in self.engine.step().updates:
                token_ids[update.request_id] += update.token_ids
                assert update.error in (None, NOT_FINITE)
                found[update.request_id] = (update.error is None, update.num_cached_tokens)
            self.engine.check_integrity()
        for request in requests:
            if found[request.request_id][0]:
                assert token_ids[request.request_id] == lone_run(request)[0]
        return found


def asked(name: str, token_ids: list[int], max_tokens: int = 4) -> GenerateRequest:
    return GenerateRequest(
        name, tuple(token_ids), SamplingParams(max_tokens=max_tokens), cache_salt=""
    )


def drawn(rng: np.random.Generator, count: int) -> list[int]:
    found: list[int] = rng.integers(0, POISON - 1, count).tolist()
    return found


@depths
@pytest.mark.parametrize("with_tiers", [False, True])
def test_what_a_failed_prompt_has_in_common_with_others_is_computed_again(
    rng: np.random.Generator, tmp_path: Path, steps_in_flight: int, with_tiers: bool
) -> None:
    sizes = {"steps_in_flight": steps_in_flight, "num_blocks": 30}
    folder = tmp_path if with_tiers else None
    shared, end = drawn(rng, 24), drawn(rng, 5)
    site = Site(folder, **sizes)
    assert site.run(asked("bad", [*shared, POISON, *end])) == {"bad": (False, 0)}
    assert site.run(asked("good", shared + end)) == {"good": (True, 0)}
    assert site.run(asked("again", shared + end)) == {"again": (True, 28)}
    site.engine.close()
    site = Site(folder, **sizes)
    assert site.run(asked("later", shared + end)) == {"later": (True, 28 if with_tiers else 0)}
    site.engine.close()


@depths
def test_spoiled_blocks_that_were_left_below_fail_one_request_alone(
    rng: np.random.Generator, tmp_path: Path, steps_in_flight: int
) -> None:
    """Of one that was cancelled before anything was known: they went to main memory and to the disk."""
    sizes = {"steps_in_flight": steps_in_flight, "num_blocks": 30}
    shared = drawn(rng, 25)
    site = Site(tmp_path, **sizes)
    site.engine.add(asked("gone", [*shared, POISON, *drawn(rng, 60)]))
    site.engine.step()
    site.engine.cancel("gone")
    site.run(asked("other", drawn(rng, 100)))
    site.engine.close()
    site = Site(tmp_path, **sizes)
    assert site.run(asked("first", shared)) == {"first": (False, 0)}
    site.run(asked("other", drawn(rng, 100)))
    assert site.run(asked("next", shared)) == {"next": (True, 0)}
    site.engine.close()


@depths
def test_what_is_sound_is_found_again(rng: np.random.Generator, steps_in_flight: int) -> None:
    """A running reply has shown that the common beginning is sound, so it publishes that again."""
    site = Site(steps_in_flight=steps_in_flight)
    shared = drawn(rng, 24)
    site.engine.add(asked("reply", shared + drawn(rng, 2), 60))
    for _ in range(6):
        site.engine.step()
    found = site.run(asked("bad", [*shared, POISON]), asked("other", drawn(rng, 9)))
    assert found["bad"] == (False, 0) and found["other"][0] and found["reply"][0]
    assert site.run(asked("good", [*shared, 1])) == {"good": (True, 24)}


@depths
@pytest.mark.parametrize(("with_tiers", "window"), [(False, 0), (True, 0), (False, 10)])
def test_all_at_once(
    rng: np.random.Generator, tmp_path: Path, steps_in_flight: int, with_tiers: bool, window: int
) -> None:
    """Prompts that share beginnings in a pool that is too small, some of them poisoned: the others are right in the
    end."""
    folder = tmp_path if with_tiers else None
    sizes = {"steps_in_flight": steps_in_flight, "max_batch_tokens": 16, "window": window}
    site = Site(folder, num_blocks=40, **sizes)
    trunk = drawn(rng, 60)
    good = []
    for number in range(12):
        prompt = trunk[: int(rng.integers(1, 60))] + drawn(rng, int(rng.integers(1, 12)))
        good.append(asked(f"good {number}", prompt, int(rng.integers(1, 30))))
    bad = [asked(f"bad {n}", [*trunk[: int(rng.integers(60))], POISON]) for n in range(6)]
    requests = [(good + bad)[place] for place in rng.permutation(18)]
    found = site.run(*requests)
    assert not any(found[one.request_id][0] for one in bad)
    for (
        request
    ) in good:  # those that began as a poisoned one that was running may have failed with it
        if not found[request.request_id][0]:
            for name in ("again", "at last"):
                told = site.run(asked(name, list(request.token_ids)))
            assert told["at last"][0]
    site.engine.close()


def test_a_token_from_before_a_preemption_says_nothing_of_the_blocks_found_since() -> None:
    sequence = Sequence(asked("resumed", [1, 2, 3, 4]), 64)
    sequence.start(0, 0, 4)
    assert not _has_token(sequence)
    sequence.token_ids.append(5)
    assert _has_token(sequence)
    sequence.start(0, 1, 4)  # preempted, and back with a block that it found
    assert not _has_token(sequence)
    sequence.token_ids.append(6)
    assert _has_token(sequence)
