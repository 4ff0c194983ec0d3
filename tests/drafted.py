"""Drafted tokens: what any runner must answer to rows that end in them, and engines that guess against lone runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from batches import Row, make_batch
from emberd.engine import Engine
from emberd.engine.draft_model import DraftModel
from emberd.protocol import GenerateRequest, Runner, SamplingParams, TokenTable
from fakes import NextToken, lone_run


def plainly(
    runner: Runner, prompt: list[int], params: SamplingParams, blocks: list[int], count: int
) -> list[int]:
    """`count` tokens sampled one a step, in place 0."""
    found: list[int] = []
    row = Row(0, prompt, 0, blocks, admit=params)
    while True:
        runner.submit(make_batch([row], runner.block_size))
        found.append(int(runner.collect().token_ids[0]))
        if len(found) == count:
            return found
        row = Row(0, found[-1:], len(prompt) + len(found) - 1, blocks)


def by_guesses(
    rng: np.random.Generator,
    runner: Runner,
    prompts: list[list[int]],
    params: list[SamplingParams],
    blocks: list[list[int]],
    truths: list[list[int]],
) -> list[list[int]]:
    """All together, each row with up to three guesses, which are the coming tokens or other ones. Checks that
    every token of a row is what it has to be while the guesses before it are right."""
    found: list[list[int]] = [[] for _ in prompts]
    rows = [Row(i, ids, 0, blocks[i], admit=params[i]) for i, ids in enumerate(prompts)]
    num_right = num_wrong = 0
    while rows:
        rows.sort(key=lambda row: len(row.token_ids) > 1)
        runner.submit(make_batch(rows, runner.block_size))
        output = runner.collect()
        behind = [] if output.behind_drafts is None else output.behind_drafts.tolist()
        assert len(behind) == sum(row.drafted for row in rows)
        for place, row in enumerate(rows):
            sampled = [int(output.token_ids[place]), *behind[: row.drafted]]
            del behind[: row.drafted]
            guesses = list(row.token_ids[len(row.token_ids) - row.drafted :])
            right = 0
            while right < len(guesses) and guesses[right] == sampled[right]:
                right += 1
            num_right += right
            num_wrong += len(guesses) - right
            found[row.index] += sampled[: right + 1]
        rows = []
        for index, known in enumerate(found):
            left = truths[index][len(known) :]
            if not left:
                continue
            guesses = left[: int(rng.integers(0, min(4, len(left))))]
            guesses = [abs(token - 1) if rng.random() < 0.2 else token for token in guesses]
            start = len(prompts[index]) + len(known) - 1
            rows.append(
                Row(index, known[-1:] + guesses, start, blocks[index], drafted=len(guesses))
            )
    assert num_right and num_wrong, "guesses of both kinds were meant to come"
    return found


END = 0
BYTES = TokenTable(tuple(bytes([i]) for i in range(256)), (END,), (END,))
"""Tokens are bytes; the first is an end."""


def repeating(rng: np.random.Generator) -> list[GenerateRequest]:
    """Greedy and drawn, with a grammar and without, of few letters: they repeat themselves."""
    letters = tuple((97 + place, 30.0) for place in range(3))
    choices = [
        {"temperature": 0.0},
        {"temperature": 0.6, "top_p": 0.9},
        {"temperature": 0.8, "top_k": 3, "grammar": "start: /[a-c]{60,90}/"},
        {"temperature": 0.0, "grammar": "start: /(<[a-b]{2}>){12,30}/"},
    ]
    return [
        GenerateRequest(
            f"r{place}",
            tuple(rng.integers(1, 256, int(rng.integers(1, 12))).tolist()),
            SamplingParams(
                seed=int(rng.integers(1 << 31)),
                logit_bias=letters,
                max_tokens=60,
                stop_token_ids=(END,),
                **chosen,  # type: ignore[arg-type]
            ),
        )
        for place, chosen in enumerate(choices)
    ]


def by_engine(
    runner: Runner,
    requests: list[GenerateRequest],
    speculate: bool,
    draft: DraftModel | None = None,
) -> tuple[dict[str, list[int]], int]:
    """All together: the tokens of each, and how many guesses were right. Every step costs the same."""
    engine = Engine(runner, clock=itertools.count().__next__, speculate=speculate, draft=draft)
    engine.use_table(BYTES)
    found = run_all(engine, requests)
    return {name: list(ids) for name, (ids, *_) in found.items()}, sum(
        right for *_, right in found.values()
    )


class Told(NamedTuple):
    """All that an engine told of a request."""

    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    num_drafted: int = 0
    num_accepted: int = 0


def run_all(engine: Engine, requests: list[GenerateRequest]) -> dict[str, Told]:
    """Added together and run to their end."""
    found = {request.request_id: Told() for request in requests}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for update in engine.step().updates:
            told = found[update.request_id]
            found[update.request_id] = Told(
                told.token_ids + update.token_ids,
                update.finish_reason,
                told.num_drafted + update.num_drafted,
                told.num_accepted + update.num_accepted,
            )
        engine.check_integrity()
    return found


def in_company(
    rng: np.random.Generator,
    engine: Engine,
    make_request: Callable[[str, list[tuple[int, ...]]], GenerateRequest],
    next_token: NextToken,
    count: int,
    preempt: float = 0.0,
) -> tuple[int, int]:
    """`count` requests that come by chance, of which a fifth may be cancelled; each step one is put back by hand with
    the probability `preempt`. Each must get what it gets alone. How many guesses were right, how many were put back.

    `make_request` gets a name and the texts of those before.
    """
    expected, got, ended, to_cancel, texts = {}, {}, {}, {}, []
    num_steps = num_right = num_preempted = 0
    while len(expected) < count or engine.has_work:
        if len(expected) < count and rng.random() < 0.3:
            name = f"r{len(expected)}"
            request = make_request(name, texts)
            expected[name] = lone_run(request, next_token, engine.context_length)
            texts.append(request.token_ids + expected[name][0])
            got[name] = []
            engine.add(request)
            if rng.random() < 0.2:
                to_cancel[num_steps + int(rng.integers(40))] = name
        if num_steps in to_cancel:
            engine.cancel(to_cancel[num_steps])
        if rng.random() < preempt:
            num_preempted += engine.preempt(None) is not None
        for update in engine.step().updates:
            got[update.request_id] += update.token_ids
            num_right += update.num_accepted
            assert update.num_accepted <= min(update.num_drafted, len(update.token_ids))
            if update.finish_reason:
                ended[update.request_id] = update.finish_reason
        engine.check_integrity()
        num_steps += 1
        assert num_steps < 20_000, "a sequence does not get on"
    for name, (token_ids, reason) in expected.items():
        if ended[name] == "cancelled":
            assert tuple(got[name]) == token_ids[: len(got[name])]
        else:
            assert (tuple(got[name]), ended[name]) == (token_ids, reason)
    return num_right, num_preempted
