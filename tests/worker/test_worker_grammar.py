"""Grammars and log-probabilities through a real worker process: the vocabulary goes once, updates keep theirs."""

from __future__ import annotations

import asyncio
import re

import pytest
from test_worker_client import start

from emberd.errors import WorkerDiedError
from emberd.protocol import GenerateRequest, SamplingParams, SequenceUpdate, TokenTable
from emberd.worker.client import WorkerClient, _merge
from fakes import TABLE, lone_run, told_logprobs

GRAMMAR = "start: /[a-h]{4,9}[0-9]/"


def bound(name: str, grammar: str = GRAMMAR) -> GenerateRequest:
    return GenerateRequest(
        name, (1, 2, 3), SamplingParams(grammar=grammar, seed=len(name), max_tokens=50)
    )


async def last_of(worker: WorkerClient, request: GenerateRequest) -> SequenceUpdate:
    """All updates of a request as one."""
    return _merge([update async for update in worker.generate(request)])


@pytest.mark.slow
def test_the_vocabulary_is_made_once_and_only_for_a_grammar_k08() -> None:
    made = 0

    def table() -> TokenTable:
        nonlocal made
        made += 1
        return TABLE

    async def scenario() -> None:
        worker = await start(steps_in_flight=3)
        worker.token_table = table
        free = GenerateRequest("free", (1, 2, 3), SamplingParams(max_tokens=5))
        assert (await last_of(worker, free)).token_ids == lone_run(free)[0]
        assert made == 0
        found = await asyncio.gather(*(last_of(worker, bound("b" * n)) for n in range(1, 7)))
        assert made == 1
        for update in found:
            text = b"".join(TABLE.pieces[token_id] for token_id in update.token_ids)
            assert re.fullmatch(rb"[a-h]{4,9}[0-9]", text)
            assert update.finish_reason == "stop"
        refused = await last_of(worker, bound("bad", "start: nothing"))
        assert refused.finish_reason == "refused"
        assert refused.error is not None and "unknown name" in refused.error
        assert (await last_of(worker, free)).finish_reason == "length"
        await worker.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_vocabulary_that_cannot_be_made_fails_its_request_alone() -> None:
    def table() -> TokenTable:
        raise ZeroDivisionError("a bug")

    async def scenario() -> None:
        worker = await start()
        worker.token_table = table
        with pytest.raises(ZeroDivisionError):
            await last_of(worker, bound("b"))
        worker.token_table = lambda: TABLE
        assert (await last_of(worker, bound("b"))).finish_reason == "stop"
        await worker.close()
        with pytest.raises(WorkerDiedError):
            await last_of(worker, bound("late"))

    asyncio.run(scenario())


@pytest.mark.slow
def test_logprobs_of_prompt_and_tokens_arrive_whole_oc13() -> None:
    request = GenerateRequest(
        "told", (5, 6, 7, 8), SamplingParams(max_tokens=12, num_logprobs=3), prompt_logprobs=2
    )

    async def scenario() -> SequenceUpdate:
        worker = await start(steps_in_flight=2)
        update = await last_of(worker, request)
        await worker.close()
        return update

    update = asyncio.run(scenario())
    history = (*request.token_ids, *update.token_ids)
    told = told_logprobs([history[: place + 1] for place in range(1, len(history))])
    everything = [told.told(place, history[place + 1], 3) for place in range(len(history) - 1)]
    assert list(update.logprobs) == everything[3:]
    assert [(one.token_id, one.logprob) for one in update.prompt_logprobs] == [
        (one.token_id, one.logprob) for one in everything[:3]
    ]
    assert all(len(one.top) == 2 for one in update.prompt_logprobs)
