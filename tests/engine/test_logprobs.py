"""Log-probabilities in the engine: each at its token, those of the prompt once, whatever the chunks are."""

from __future__ import annotations

import numpy as np
import pytest
from depths import depths

from emberd.engine import Engine
from emberd.errors import ContextOverflowError
from emberd.protocol import GenerateRequest, SamplingParams, SequenceUpdate, TokenLogprobs
from fakes import ScriptedRunner, lone_run, told_logprobs


def request_of(
    rng: np.random.Generator,
    name: str,
    length: int,
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> GenerateRequest:
    params = SamplingParams(
        max_tokens=max_tokens, seed=int(rng.integers(1000)), num_logprobs=logprobs
    )
    ids = tuple(rng.integers(0, 1000, length).tolist())
    return GenerateRequest(name, ids, params, prompt_logprobs)


def run(engine: Engine, requests: list[GenerateRequest]) -> dict[str, list[SequenceUpdate]]:
    for request in requests:
        engine.add(request)
    updates: dict[str, list[SequenceUpdate]] = {request.request_id: [] for request in requests}
    while engine.has_work:
        for update in engine.step().updates:
            updates[update.request_id].append(update)
        engine.check_integrity()
    return updates


def expected(history: tuple[int, ...], places: range, num_top: int) -> list[TokenLogprobs]:
    told = told_logprobs([history[: place + 1] for place in places])
    return [told.told(i, history[place], num_top) for i, place in enumerate(places)]


def check(request: GenerateRequest, updates: list[SequenceUpdate]) -> None:
    token_ids = tuple(i for update in updates for i in update.token_ids)
    assert (token_ids, updates[-1].finish_reason) == lone_run(request)
    history, num_prompt = (*request.token_ids, *token_ids), len(request.token_ids)
    told = [one for update in updates for one in update.logprobs]
    num_top = request.params.num_logprobs
    if num_top is None:
        assert told == []
    else:
        assert told == expected(history, range(num_prompt, len(history)), num_top)
        assert all(len(update.logprobs) == len(update.token_ids) for update in updates)
    prompt = [update.prompt_logprobs for update in updates if update.prompt_logprobs]
    if request.prompt_logprobs is None or num_prompt == 1:
        assert prompt == []
    else:
        assert prompt == [tuple(expected(history, range(1, num_prompt), request.prompt_logprobs))]
        assert updates[0].prompt_logprobs, "told with the first token, or the end"


@depths
def test_logprobs_of_prompt_and_reply_oc13(rng: np.random.Generator, steps_in_flight: int) -> None:
    """Chunks of prompts side by side, in a pool that is too small for all."""
    runner = ScriptedRunner(
        steps_in_flight=steps_in_flight, num_blocks=16, max_batch_tokens=9, max_sequences=5
    )
    requests = [
        request_of(
            rng, f"r{number}", int(rng.integers(1, 25)), int(rng.integers(15, 35)), top, prompt
        )
        for number, (top, prompt) in enumerate(
            [(None, 3), (5, None), (0, 0), (20, 20), (None, None), (2, 1), (1, 2), (None, 0)] * 3
        )
    ]
    updates = run(Engine(runner), requests)
    for request in requests:
        check(request, updates[request.request_id])
    assert sum(len(batch.admissions) for batch in runner.batches) > len(requests), (
        "the pool was meant to be too small"
    )
    scored = sum(len(b.scored_at) for b in runner.batches if b.scored_at is not None)
    wanted = sum(len(r.token_ids) - 1 for r in requests if r.prompt_logprobs is not None)
    assert scored == wanted, "no place is scored twice, preempted or not"


@depths
def test_a_prompt_may_be_scored_without_a_token_ok01(
    rng: np.random.Generator, steps_in_flight: int
) -> None:
    """max_tokens 0: told, then "length"; it may fill the context, nothing being generated."""
    runner = ScriptedRunner(steps_in_flight=steps_in_flight, context_length=32, max_batch_tokens=7)
    engine = Engine(runner)
    whole = request_of(rng, "whole", 32, 0, None, 4)
    updates = run(engine, [whole, request_of(rng, "one", 1, 0, None, 4)])
    check(whole, updates["whole"])
    assert len(updates["whole"]) == 1
    assert [(u.token_ids, u.finish_reason, u.prompt_logprobs) for u in updates["one"]] == [
        ((), "length", ())
    ]
    assert not any(batch.sample.any() for batch in runner.batches)
    assert engine.step().num_free_blocks == runner.num_blocks
    with pytest.raises(ContextOverflowError):
        engine.add(request_of(rng, "long", 33, 0, None, 4))
    with pytest.raises(ContextOverflowError):
        engine.add(request_of(rng, "full", 32, 1, None, 4))


def test_a_prompt_that_is_scored_can_be_cancelled(rng: np.random.Generator) -> None:
    engine = Engine(ScriptedRunner(steps_in_flight=3, max_batch_tokens=5))
    engine.add(request_of(rng, "gone", 40, 0, None, 4))
    engine.step()
    engine.cancel("gone")
    updates = [update for _ in range(4) for update in engine.step().updates]
    assert [update.finish_reason for update in updates] == ["cancelled"]
    assert not engine.has_work and engine.step().num_free_blocks == 64
