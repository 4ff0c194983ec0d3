"""Blocks that leave the pool and come back: from main memory, from the disk, after preemption and after a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from depths import depths
from tier_sites import IDENTITY, TierSite, a_request, again

from emberd.engine import Engine
from emberd.engine.rates import ALL, Rates
from emberd.protocol import NORMAL, GenerateRequest, SamplingParams
from fakes import ScriptedRunner

SIZE = 4


@depths
def test_a_prefix_comes_back_from_main_memory(
    rng: np.random.Generator, steps_in_flight: int
) -> None:
    site = TierSite(ram=40, num_blocks=20, steps_in_flight=steps_in_flight)
    first = a_request("first", rng, 61)
    site.run(first)
    site.run(a_request("other", rng, 70))  # takes nearly all of the pool
    assert site.run(again(first, "again")) == [60]
    counts = site.tiers.counts
    assert counts.promoted > 10 and counts.spilled > 10 and counts.lost == 0
    assert counts.ram_bytes == counts.ram_blocks * site.runner.block_bytes


@depths
@pytest.mark.parametrize("ram", [0, 6])
def test_a_prefix_comes_back_from_the_disk(
    rng: np.random.Generator, tmp_path: Path, steps_in_flight: int, ram: int
) -> None:
    site = TierSite(ram, 100, tmp_path, num_blocks=20, steps_in_flight=steps_in_flight)
    first = a_request("first", rng, 61)
    site.run(first)
    site.run(a_request("other", rng, 70))
    assert site.run(again(first, "again")) == [60]
    site.engine.close()


@depths
def test_the_disk_outlives_the_engine(
    rng: np.random.Generator, tmp_path: Path, steps_in_flight: int
) -> None:
    """What was computed before the model was unloaded is found when it is loaded again."""
    first = a_request("first", rng, 61, max_tokens=9)
    for number, known in enumerate([0, 60, 60]):
        site = TierSite(0, 100, tmp_path, steps_in_flight=steps_in_flight)
        assert site.run(again(first, f"run {number}")) == [known]
        site.engine.close()
    assert site.num_computed == 1 + 8


def test_another_model_finds_nothing(rng: np.random.Generator, tmp_path: Path) -> None:
    first = a_request("first", rng, 61)
    for number in range(2):
        site = TierSite(0, 100, tmp_path, identity=bytes([number]) * 32)
        assert site.run(first) == [0]
        site.engine.close()


@depths
@pytest.mark.parametrize("with_disk", [False, True])
def test_preempted_sequences_come_back_without_being_run_again(
    rng: np.random.Generator, tmp_path: Path, steps_in_flight: int, with_disk: bool
) -> None:
    """Three that together need twice the pool: the tokens are the same, and few are run twice."""

    def computed(ram: int, disk: int) -> tuple[int, int]:
        site = TierSite(
            ram, disk, tmp_path, num_blocks=30, max_batch_tokens=16, steps_in_flight=steps_in_flight
        )
        site.run(*requests)
        site.engine.close()
        return site.num_computed, site.tiers.counts.promoted

    requests = [a_request(f"r{n}", rng, 30, max_tokens=60) for n in range(3)]
    alone = 3 * (30 + 59)
    again_without, none = computed(0, 0)
    again_with, promoted = computed(0 if with_disk else 100, 100 if with_disk else 0)
    assert none == 0 and again_without > alone + 30
    assert promoted > 0
    # Of each that was preempted the last, unfinished block is run again; and no more.
    assert again_with <= alone + 3 * SIZE * 10 and again_with < again_without


@depths
def test_what_costs_more_to_bring_back_is_computed(
    rng: np.random.Generator, steps_in_flight: int
) -> None:
    site = TierSite(ram=40, num_blocks=20, steps_in_flight=steps_in_flight)
    first = a_request("first", rng, 61)
    site.run(first, a_request("other", rng, 70))
    site.rates.upload.note(1, 1e3)  # the median of what was measured so far, and this
    for _ in range(20):
        site.rates.upload.note(1, 1e3)
        site.rates.prefill.note(1e9, 1)
    (cached,) = site.run(again(first, "again"))
    assert site.tiers.counts.promoted == 0 and cached < 60


def test_a_refused_way_is_tried_again_now_and_then() -> None:
    rates = Rates(block_size=16, block_bytes=1 << 20)
    assert rates.worth_copying(from_disk=False) == ALL, "nothing was measured"
    assert rates.worth_copying(from_disk=True) == 16, "a disk is measured first"
    rates.prefill.note(16, 1.0)
    assert rates.worth_copying(from_disk=True) == 16
    rates.upload.note(2 << 20, 1.0)
    rates.fetch.note(4 << 20, 1.0)
    assert rates.worth_copying(from_disk=False) == rates.worth_copying(from_disk=True) == ALL
    for _ in range(2):
        rates.fetch.note(1 << 20, 1.0)  # a second, and half of one to go up
    found = [rates.worth_copying(from_disk=True) for _ in range(320)]
    assert found.count(16) == 10 and found.count(0) == 310
    assert rates.worth_copying(from_disk=False) == ALL


def test_what_was_measured_outlives_the_engine(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    rates, later = (Rates(block_size=16, block_bytes=1000) for _ in range(2))
    later.load(path)
    assert later.fetch.value is None
    rates.prefill.note(320, 2.0)
    rates.fetch.note(5000, 1.0)
    rates.save(path)
    later.load(path)
    assert (later.prefill.value, later.upload.value, later.fetch.value) == (160, None, 5000)
    for damaged in ("", "[]", '{"fetch": "x"}', '{"fetch": null}', f'{{"fetch": 1{400 * "0"}}}'):
        path.write_text(damaged)
        (fresh := Rates(16, 1000)).load(path)
        assert fresh.fetch.value is None


def test_a_slow_disk_costs_no_more_than_a_look(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first blocks tell how fast it is; what it would bring slower than it is computed is computed."""
    monkeypatch.setattr("emberd.engine.rates._FEW_BYTES", 2 * ScriptedRunner().block_bytes)
    monkeypatch.setattr("emberd.engine.disk_tier._LEAST_MEASURED", 1)
    first = a_request("first", rng, 61)
    site = TierSite(disk=40, folder=tmp_path)
    site.run(first)
    site.tiers.close()
    assert (tmp_path / IDENTITY.hex()[:32] / "rates.json").is_file()
    site = TierSite(disk=40, folder=tmp_path)
    site.rates.prefill.note(1e12, 1)
    (cached,) = site.run(again(first, "again"))
    assert site.tiers.counts.promoted == 2 and cached == 2 * site.runner.block_size
    fast = TierSite(disk=40, folder=tmp_path)
    fast.rates.prefill.note(1e-3, 1)
    (cached,) = fast.run(again(first, "once more"))
    assert cached == 60 and fast.tiers.counts.promoted == 60 // fast.runner.block_size


def test_little_that_is_read_is_no_measure_of_the_disk(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    """However soon it would have been computed: it is there at once too."""
    first = a_request("first", rng, 61)
    for _ in range(3):
        site = TierSite(disk=40, folder=tmp_path)
        site.rates.prefill.note(1e12, 1)
        (cached,) = site.run(again(first, "again"))
        assert site.rates.fetch.value is None
        site.tiers.close()
    assert cached == 60


def test_a_few_tokens_are_no_measure_of_prefill() -> None:
    rates = Rates(block_size=16, block_bytes=1000)
    rates.note_step([1] * 40, 1.0)
    rates.note_step([1] * 60 + [20], 1.0)
    assert rates.prefill.value is None
    rates.note_step([1, 1, 98], 2.0)
    assert rates.prefill.value == 50


@depths
def test_one_that_is_cancelled_while_the_disk_is_read_keeps_nobody(
    rng: np.random.Generator, tmp_path: Path, steps_in_flight: int
) -> None:
    first, second = a_request("first", rng, 61), a_request("second", rng, 61)
    site = TierSite(0, 100, tmp_path)
    site.run(first, second)
    site.engine.close()
    site = TierSite(0, 100, tmp_path, steps_in_flight=steps_in_flight)
    site.engine.add(again(first, "gone"))
    site.step()
    site.engine.cancel("gone")
    assert site.run(again(second, "here")) == [60]
    assert site.run(again(first, "back")) == [60]
    site.engine.close()


@depths
def test_others_run_while_the_disk_is_read(
    rng: np.random.Generator, tmp_path: Path, steps_in_flight: int
) -> None:
    first = a_request("first", rng, 61)
    site = TierSite(0, 100, tmp_path)
    site.run(first)
    site.engine.close()
    site = TierSite(0, 100, tmp_path, steps_in_flight=steps_in_flight)
    other = a_request("other", rng, 20, max_tokens=30)
    assert site.run(again(first, "again"), other) == [60, 0]
    site.engine.close()


@depths
def test_one_of_a_better_class_takes_over_the_disk(
    rng: np.random.Generator, tmp_path: Path, steps_in_flight: int
) -> None:
    """Only one may run, so the one for whom files are read first is not asked again before the other has run."""
    first, second = a_request("first", rng, 61), a_request("second", rng, 61)
    site = TierSite(0, 100, tmp_path)
    site.run(first, second)
    site.engine.close()
    site = TierSite(0, 100, tmp_path, max_sequences=1, steps_in_flight=steps_in_flight)
    site.engine.add(replace(again(first, "slow"), priority=NORMAL + 1))
    site.step()
    site.engine.add(replace(again(second, "fast"), priority=NORMAL - 1))
    for _ in range(2000):
        if not site.engine.has_work:
            break
        site.step()
    assert site.cached == {"slow": 60, "fast": 60}
    site.engine.close()


def test_salts_and_none_hold_below_too(rng: np.random.Generator, tmp_path: Path) -> None:
    plain = a_request("plain", rng, 41)
    salted = GenerateRequest("salted", plain.token_ids, plain.params, None, "x")
    secret = a_request("secret", rng, 41, salt=None)
    site = TierSite(0, 100, tmp_path)
    assert site.run(salted, secret) == [0, 0]
    site.engine.close()
    assert len(list(tmp_path.rglob("*.kv"))) == 41 // SIZE, "nothing of the secret one"
    site = TierSite(0, 100, tmp_path)
    assert site.run(plain) == [0]
    assert site.run(again(salted, "salted again"), again(secret, "again")) == [40, 0]
    site.engine.close()


def test_n_copies_bring_a_prefix_back_once(rng: np.random.Generator, tmp_path: Path) -> None:
    first = a_request("first", rng, 61)
    site = TierSite(0, 100, tmp_path)
    site.run(first)
    site.engine.close()
    site = TierSite(0, 100, tmp_path)
    copies = [again(first, f"copy {n}") for n in range(4)]
    assert site.run(*copies) == [60] * 4
    assert site.tiers.counts.promoted == 15
    site.engine.close()


def test_an_engine_without_tiers_tells_none() -> None:
    engine = Engine(ScriptedRunner())
    engine.add(GenerateRequest("a", (1, 2, 3), SamplingParams(max_tokens=1)))
    assert engine.step().tiers is None
    engine.close()
