"""The prefix cache in the engine: what is reused, when, and that answers do not change (K15)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from depths import depths

from emberd.engine import Engine
from emberd.engine.prefix import BlockKeys
from emberd.protocol import EmbedRequest, GenerateRequest, SamplingParams, StepMessage
from fakes import ScriptedRunner, lone_run

SIZE = 4  # of the runner's blocks


def prompt(length: int, start: int = 0) -> tuple[int, ...]:
    return tuple((start + place * 7) % 900 for place in range(length))


def make_request(
    name: str, token_ids: tuple[int, ...], max_tokens: int = 5, **fields: object
) -> GenerateRequest:
    params = SamplingParams(max_tokens=max_tokens, seed=3)
    return GenerateRequest(name, token_ids, params, **fields)  # type: ignore[arg-type]


class Site:
    """An engine over a scripted runner, and what was heard of each request."""

    def __init__(self, **runner: int) -> None:
        self.runner = ScriptedRunner(**runner)  # type: ignore[arg-type]
        self.engine = Engine(self.runner)
        self.token_ids: dict[str, list[int]] = defaultdict(list)
        self.cached: dict[str, int] = {}

    def step(self) -> StepMessage:
        message = self.engine.step()
        self.engine.check_integrity()
        for update in message.updates:
            self.token_ids[update.request_id] += update.token_ids
            self.cached[update.request_id] = update.num_cached_tokens
        return message

    def run(self, *requests: GenerateRequest) -> list[int]:
        """Runs them to their end, checks what they got, and gives the tokens each took from the cache."""
        for request in requests:
            self.engine.add(request)
        while self.engine.has_work:
            self.step()
        for request in requests:
            context_length = self.engine.context_length
            expected = lone_run(request, context_length=context_length)[0]
            assert tuple(self.token_ids[request.request_id]) == expected
        return [self.cached[request.request_id] for request in requests]

    @property
    def num_computed(self) -> int:
        return sum(batch.num_tokens for batch in self.runner.batches)


@depths
@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 50])
def test_a_prompt_sent_three_times_is_computed_once_k15(steps_in_flight: int, length: int) -> None:
    site = Site(steps_in_flight=steps_in_flight)
    known = (length - 1) // SIZE * SIZE  # the last token is always run: what follows comes from it
    assert [site.run(make_request(name, prompt(length)))[0] for name in "abc"] == [0, known, known]
    assert site.num_computed == 3 * (length + 4) - 2 * known


@depths
@pytest.mark.parametrize("shared", [0, 3, 4, 5, 8, 17])
def test_a_shared_beginning_is_reused_by_whole_blocks_k15(
    steps_in_flight: int, shared: int
) -> None:
    site = Site(steps_in_flight=steps_in_flight)
    first = prompt(shared) + prompt(13, 500)
    second = prompt(shared) + prompt(11, 600)
    assert site.run(make_request("a", first)) == [0]
    assert site.run(make_request("b", second)) == [shared // SIZE * SIZE]


@depths
def test_the_next_turn_of_a_chat_finds_prompt_and_reply(steps_in_flight: int) -> None:
    site = Site(steps_in_flight=steps_in_flight)
    turn = prompt(10)
    for number in range(5):
        request = make_request(f"turn {number}", turn, max_tokens=9)
        (cached,) = site.run(request)
        if number:
            known = (
                len(turn) - 3 - 1
            )  # what was not run: the new words, the last token of the reply
            assert cached == known // SIZE * SIZE
        turn += lone_run(request)[0] + (7, 8, 9)


@depths
def test_n_copies_share_one_prefill(steps_in_flight: int) -> None:
    site = Site(steps_in_flight=steps_in_flight, max_batch_tokens=16)
    copies = [make_request(f"copy {number}", prompt(50), max_tokens=1) for number in range(4)]
    assert site.run(*copies) == [0, 48, 48, 48]
    assert site.num_computed == 50 + 3 * 2


@depths
def test_the_prefix_of_a_running_sequence_is_shared_and_takes_no_blocks(
    steps_in_flight: int,
) -> None:
    site = Site(steps_in_flight=steps_in_flight, num_blocks=40)
    site.engine.add(make_request("first", prompt(40), max_tokens=200))
    for _ in range(3):
        site.step()
    free = site.step().num_free_blocks
    site.engine.add(make_request("second", prompt(40), max_tokens=200))
    site.step()
    assert free - site.step().num_free_blocks <= 3, "a block of its own and what both grow by"
    site.run()
    assert site.cached["second"] == 36
    assert site.token_ids["second"] == site.token_ids["first"]


@depths
def test_blocks_that_steps_in_flight_still_write_are_reused_behind_them(
    steps_in_flight: int,
) -> None:
    """The scripted runner checks every slot at the time the step that reads it is submitted."""
    site = Site(steps_in_flight=steps_in_flight, max_batch_tokens=8)
    site.engine.add(make_request("first", prompt(60)))
    site.step()  # up to three steps of 8 tokens are submitted, one is collected
    site.engine.cancel("first")
    assert site.run(make_request("second", prompt(60))) == [8 * steps_in_flight]


@depths
def test_a_cancelled_prefill_frees_its_blocks_at_once_k13(steps_in_flight: int) -> None:
    site = Site(steps_in_flight=steps_in_flight, max_batch_tokens=8, num_blocks=20)
    site.engine.add(make_request("gone", prompt(70)))
    site.step()
    site.engine.cancel("gone")
    assert site.step().num_free_blocks == 20
    other = make_request("other", prompt(75, 400), max_tokens=4)
    assert site.run(other) == [0], "and the whole pool is there for somebody else"


def test_salts_part_requests_and_none_takes_no_part() -> None:
    site = Site()
    assert site.run(make_request("a", prompt(20))) == [0]
    assert site.run(make_request("b", prompt(20), cache_salt="x")) == [0]
    assert site.run(make_request("c", prompt(20), cache_salt="x")) == [16]
    assert site.run(make_request("d", prompt(20), cache_salt=None)) == [0]
    assert site.run(make_request("e", prompt(24, 300), cache_salt=None)) == [0]
    assert site.run(make_request("f", prompt(24, 300))) == [0], "it left nothing there"


def test_scored_prompts_and_embeddings_are_run_in_full() -> None:
    site = Site()
    site.run(make_request("a", prompt(20)))
    scored = make_request("b", prompt(20), prompt_logprobs=2)
    site.engine.add(scored)
    update = site.step().updates[0]
    assert len(update.prompt_logprobs) == 19 and update.num_cached_tokens == 0
    site.run()
    before = site.num_computed
    site.engine.add(EmbedRequest("c", prompt(20), "mean"))
    site.step()
    assert site.num_computed - before == 20


@depths
def test_what_was_used_last_stays_when_room_is_short(steps_in_flight: int) -> None:
    site = Site(steps_in_flight=steps_in_flight, num_blocks=16)
    old, new = make_request("old", prompt(20), 1), make_request("new", prompt(20, 300), 1)
    site.run(old)
    site.run(new)
    site.run(replace(old, request_id="old again"))
    site.run(make_request("large", prompt(40, 600), 1))  # ten of sixteen blocks
    assert site.run(replace(old, request_id="old third")) == [16]
    assert site.run(replace(new, request_id="new again")) == [0]


@depths
def test_a_preempted_sequence_finds_its_blocks_again_and_tells_what_it_found_first(
    steps_in_flight: int,
) -> None:
    site = Site(steps_in_flight=steps_in_flight, num_blocks=14, max_batch_tokens=32)
    requests = [make_request(f"r{n}", prompt(9, 100 * n), max_tokens=24) for n in range(3)]
    assert site.run(*requests) == [0, 0, 0]
    admissions = [admission for batch in site.runner.batches for admission in batch.admissions]
    assert len(admissions) > 3, "the pool was meant to be too small"
    in_full = sum(len(admission.token_ids) for admission in admissions)
    num_decoded = sum(batch.num_decode_rows for batch in site.runner.batches)
    assert site.num_computed < in_full + num_decoded


def test_keys_name_the_whole_prefix() -> None:
    keys = BlockKeys(list(range(12)), 4, "").first(3)
    assert len(set(keys)) == 3 and BlockKeys(list(range(8)), 4, "").first(2) == keys[:2]
    assert not set(keys) & set(BlockKeys([9, *range(1, 12)], 4, "").first(3))
    assert not set(keys) & set(BlockKeys(list(range(12)), 4, "salt").first(3))
    assert not set(keys) & set(BlockKeys(list(range(4, 12)), 4, "").first(2))
