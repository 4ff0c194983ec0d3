"""K11 without text, in the engine: 64 chats in three orders, each as on an idle one."""

from __future__ import annotations

import numpy as np
import pytest
from tier_sites import TierSite

from emberd.engine.rates import ALL
from emberd.protocol import GenerateRequest, SamplingParams
from fakes import lone_run

NUM_CHATS, NUM_AT_ONCE, NUM_TURNS = 64, 16, 2


@pytest.mark.parametrize(
    "order",
    [
        pytest.param("as they come", marks=pytest.mark.slow),
        pytest.param("from the last", marks=pytest.mark.slow),
        "at random",
    ],
)
def test_64_chats_get_what_each_gets_alone_k11(rng: np.random.Generator, order: str) -> None:
    """Of two turns, with one system prompt and a marker each, 16 at a time over four places, a tenth cancelled midway,
    greedy and drawn; some are preempted, and the pool is short, so that blocks go down and come back."""
    site = TierSite(
        ram=600,
        num_blocks=26,
        max_sequences=4,
        max_batch_tokens=16,
        context_length=64,
        steps_in_flight=int(rng.integers(1, 4)),
    )
    site.rates.worth_copying = lambda *, from_disk: ALL  # type: ignore[method-assign]
    system = tuple(rng.integers(100, 900, int(rng.integers(8, 14))).tolist())
    words = [rng.integers(100, 900, int(rng.integers(1, 16))).tolist() for _ in range(NUM_CHATS)]
    chats = {f"chat{n}": (*system, n, *words[n]) for n in range(NUM_CHATS)}
    cancelled = {name for name in chats if name.endswith("3")}
    names = list(chats)
    if order == "at random":
        rng.shuffle(names)
    elif order == "from the last":
        names.reverse()
    turns: dict[str, list[GenerateRequest]] = {name: [] for name in chats}
    running: dict[str, str] = {}  # request to chat
    most_waiting = num_preempted = 0

    def say(name: str) -> None:
        params = SamplingParams(
            temperature=len(name) % 2, max_tokens=8, seed=int(rng.integers(1000))
        )
        request = GenerateRequest(f"{name} {len(turns[name])}", chats[name], params)
        turns[name].append(request)
        running[request.request_id] = name
        site.engine.add(request)

    while names or running:
        while names and len(running) < NUM_AT_ONCE:
            say(names.pop(0))
        for request_id, name in list(running.items()):
            if name in cancelled and len(site.token_ids[request_id]) > 2:
                site.engine.cancel(request_id)
                del running[request_id]
        before = {one.request_id for one in site.engine.status(whole=False).sequences}
        site.step()
        states = site.engine.status(whole=False).sequences
        most_waiting = max(most_waiting, sum(one.position is not None for one in states))
        if rng.random() < 0.1:
            num_preempted += site.engine.preempt(None) is not None
        for request_id in sorted(before - {one.request_id for one in states}):
            name = running.pop(request_id)
            if name not in cancelled and len(turns[name]) < NUM_TURNS:
                chats[name] += (*site.token_ids[request_id], 7)
                names.append(name)
    while site.engine.has_work:
        site.step()
    for name, requests in turns.items():
        assert len(requests) == (1 if name in cancelled else NUM_TURNS)
        for request in requests:
            got = tuple(site.token_ids[request.request_id])
            alone = lone_run(request, context_length=64)[0]
            assert got == (alone[: len(got)] if name in cancelled else alone), request.request_id
    assert most_waiting >= NUM_AT_ONCE - 4 and num_preempted > 0
    assert site.tiers.counts.promoted > 0
