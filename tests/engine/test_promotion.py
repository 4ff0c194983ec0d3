"""Blocks that come up from main memory: at once on an idle engine, in parts beside replies, which go on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from depths import depths
from tier_sites import TierSite, a_request, again

from emberd.engine.rates import ALL
from emberd.protocol import GenerateRequest, SamplingParams
from fakes import lone_run

SIZE, PART = 4, 2

MakeSite = Callable[..., tuple[TierSite, GenerateRequest, list[int]]]


@pytest.fixture
def make_site(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> MakeSite:
    """A site whose tier in main memory has all but the last block of a request of 61 tokens, and how many blocks
    come up in each step from then on."""

    def make(steps_in_flight: int) -> tuple[TierSite, GenerateRequest, list[int]]:
        site = TierSite(ram=200, num_blocks=40, steps_in_flight=steps_in_flight)
        site.rates.worth_copying = lambda *, from_disk: ALL  # type: ignore[method-assign]
        known = a_request("known", rng, 61, max_tokens=2)
        site.run(known)
        for number in range(3):
            site.run(a_request(f"other {number}", rng, 150))
        site.tiers._per_step = PART
        parts: list[int] = []
        write = site.runner.write_blocks

        def write_blocks(blocks: list[int], data: list[np.ndarray]) -> None:
            parts.append(len(blocks))
            write(blocks, data)

        monkeypatch.setattr(site.runner, "write_blocks", write_blocks)
        return site, known, parts

    return make


def reply(rng: np.random.Generator, site: TierSite, max_tokens: int) -> GenerateRequest:
    """One whose reply runs."""
    request = a_request("reply", rng, 3, max_tokens=max_tokens)
    site.engine.add(request)
    while not site.token_ids["reply"]:
        site.step()
    return request


@depths
def test_beside_a_reply_a_part_comes_up_in_each_step(
    rng: np.random.Generator, make_site: MakeSite, steps_in_flight: int
) -> None:
    site, known, parts = make_site(steps_in_flight)
    running = reply(rng, site, 40)
    asked = again(known, "again")
    site.engine.add(asked)
    said = []
    while not site.token_ids["again"]:
        before = len(site.token_ids["reply"])
        site.step()
        said.append(len(site.token_ids["reply"]) - before)
    assert site.cached["again"] == 60
    missing = sum(parts)
    assert missing >= 10 and max(parts) == PART and len(parts) >= missing // PART
    assert set(said) == {1}, "the reply goes on in every step"
    site.run()
    for request in (asked, running):
        expected = lone_run(request, context_length=site.engine.context_length)[0]
        assert tuple(site.token_ids[request.request_id]) == expected


@depths
def test_on_an_idle_engine_all_comes_up_at_once(make_site: MakeSite, steps_in_flight: int) -> None:
    site, known, parts = make_site(steps_in_flight)
    assert site.run(again(known, "again")) == [60]
    assert len(parts) == 1 and parts[0] >= 10


@depths
@pytest.mark.parametrize("how", ["cancelled", "preempted"])
def test_who_goes_meanwhile_leaves_no_block_half_written(
    rng: np.random.Generator, make_site: MakeSite, steps_in_flight: int, how: str
) -> None:
    """Its blocks go to others in the same moment; who comes next with that beginning finds it below again."""
    site, known, parts = make_site(steps_in_flight)
    reply(rng, site, 60)
    site.engine.add(again(known, "gone"))
    while len(parts) < 2:
        site.step()
    assert site.tiers.awaits(site.engine._sequences["gone"])
    if how == "cancelled":
        site.engine.cancel("gone")
    else:
        assert site.engine.preempt("gone") == "gone"
    others = [a_request("large", rng, 70), again(known, "next")]
    assert site.run(*others)[1] == 60
    if how == "preempted":
        assert tuple(site.token_ids["gone"]) == lone_run(known)[0]


@depths
def test_one_that_needs_what_comes_up_waits_for_it(
    rng: np.random.Generator, make_site: MakeSite, steps_in_flight: int
) -> None:
    """It is published when it is there, and comes up once."""
    site, known, parts = make_site(steps_in_flight)
    reply(rng, site, 40)
    params = SamplingParams(max_tokens=3)
    other = GenerateRequest("other", (*known.token_ids[:50], 7, 8, 9), params)
    site.engine.add(again(known, "again"))
    site.step()
    first = site.tiers.counts.promoted
    site.run(other)
    assert site.cached["again"] == 60 and site.cached["other"] == 48
    assert site.tiers.counts.promoted == first == sum(parts)


@depths
def test_who_goes_before_the_last_part_is_written_publishes_nothing(
    rng: np.random.Generator, make_site: MakeSite, steps_in_flight: int
) -> None:
    """Another may push it out in the schedule that asks for the last blocks, which are not written then."""
    site, known, parts = make_site(steps_in_flight)
    reply(rng, site, 60)
    site.engine.add(again(known, "gone"))
    while not parts:
        site.step()
    gone = site.engine._sequences["gone"]
    while site.tiers.awaits(gone):
        site.tiers.let_arrive(beside_replies=False)
    table = list(gone.block_table)
    assert site.tiers.arrives(gone)
    site.engine.preempt("gone")
    written = sum(parts)
    pool = site.engine._scheduler.blocks.prefixes
    assert sum(block in pool for block in table) <= written
    assert site.run(again(known, "next")) == [60]
    assert tuple(site.token_ids["gone"]) == tuple(site.token_ids["next"]) == lone_run(known)[0]
