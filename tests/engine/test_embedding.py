"""Texts to embed, beside sequences that generate, on the scripted runner; and the engine of encoders."""

from __future__ import annotations

import numpy as np
import pytest
from depths import depths

from emberd.engine import EncoderEngine, Engine
from emberd.errors import BadRequestError, ContextOverflowError
from emberd.protocol import (
    EmbedRequest,
    FloatArray,
    GenerateRequest,
    IntArray,
    Pooling,
    SamplingParams,
    WorkerInfo,
)
from fakes import ScriptedRunner, lone_run

poolings = pytest.mark.parametrize("pooling", ["mean", "cls", "last"])


def state(ids: list[int], position: int) -> tuple[int, int, int]:
    return position, ids[position], sum(ids[: position + 1])


def expected(ids: list[int], pooling: Pooling) -> FloatArray:
    states = np.array([state(ids, position) for position in range(len(ids))], np.float64)
    pooled = {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[pooling]
    vector: FloatArray = pooled.astype(np.float32)
    return vector


def run_to_end(engine: Engine | EncoderEngine) -> dict[str, tuple[list[int], str, bytes | None]]:
    results: dict[str, tuple[list[int], str, bytes | None]] = {}
    tokens: dict[str, list[int]] = {}
    while engine.has_work:
        for update in engine.step().updates:
            assert update.request_id not in results, "an update after the last"
            tokens.setdefault(update.request_id, []).extend(update.token_ids)
            if update.finish_reason is not None:
                results[update.request_id] = (
                    tokens[update.request_id],
                    update.finish_reason,
                    update.embedding,
                )
        if isinstance(engine, Engine):
            engine.check_integrity()
    return results


def check(result: tuple[list[int], str, bytes | None], ids: list[int], pooling: Pooling) -> None:
    tokens, reason, raw = result
    assert (tokens, reason) == ([], "stop") and raw is not None
    assert np.allclose(np.frombuffer(raw, "<f4"), expected(ids, pooling), rtol=1e-6)


@depths
@poolings
@pytest.mark.parametrize("length", [1, 2, 8, 9, 50, 256])
def test_a_text_is_pooled_over_its_chunks(
    steps_in_flight: int, pooling: Pooling, length: int, rng: np.random.Generator
) -> None:
    ids = rng.integers(0, 900, length).tolist()
    runner = ScriptedRunner(max_batch_tokens=8, steps_in_flight=steps_in_flight)
    engine = Engine(runner)
    engine.add(EmbedRequest("a", tuple(ids), pooling))
    check(run_to_end(engine)["a"], ids, pooling)
    assert not any(batch.sample.any() for batch in runner.batches), "nothing is sampled"
    wanted = sum(0 if b.hidden_at is None else len(b.hidden_at) for b in runner.batches)
    assert wanted == (length if pooling == "mean" else 1), "only wanted states are read back"


@depths
def test_embedding_and_generating_share_steps_and_do_not_disturb_each_other(
    steps_in_flight: int, rng: np.random.Generator
) -> None:
    """Also with so few blocks that sequences are preempted and run again."""
    runner = ScriptedRunner(
        num_blocks=24, max_batch_tokens=16, max_sequences=6, steps_in_flight=steps_in_flight
    )
    engine = Engine(runner)
    texts: dict[str, tuple[list[int], Pooling]] = {}
    chats: dict[str, GenerateRequest] = {}
    kinds: tuple[Pooling, ...] = ("mean", "cls", "last")
    for number in range(30):
        ids = rng.integers(0, 900, int(rng.integers(1, 40))).tolist()
        name = f"r{number}"
        if rng.random() < 0.5:
            texts[name] = (ids, kinds[number % 3])
            engine.add(EmbedRequest(name, tuple(ids), texts[name][1]))
        else:
            params = SamplingParams(max_tokens=int(rng.integers(1, 40)), seed=number)
            chats[name] = GenerateRequest(name, tuple(ids), params)
            engine.add(chats[name])
    results = run_to_end(engine)
    assert results.keys() == texts.keys() | chats.keys()
    for name, (ids, pooling) in texts.items():
        check(results[name], ids, pooling)
    for name, request in chats.items():
        assert (tuple(results[name][0]), results[name][1]) == lone_run(
            request, context_length=engine.context_length
        )


@depths
def test_a_text_may_fill_the_context_and_no_more(steps_in_flight: int) -> None:
    engine = Engine(ScriptedRunner(context_length=16, steps_in_flight=steps_in_flight))
    with pytest.raises(ContextOverflowError):
        engine.add(EmbedRequest("a", tuple(range(17)), "mean"))
    with pytest.raises(BadRequestError, match="empty"):
        engine.add(EmbedRequest("a", (), "mean"))
    engine.add(EmbedRequest("b", tuple(range(16)), "mean"))
    check(run_to_end(engine)["b"], list(range(16)), "mean")


@depths
def test_a_cancelled_text_gives_its_blocks_back(steps_in_flight: int) -> None:
    engine = Engine(ScriptedRunner(max_batch_tokens=4, steps_in_flight=steps_in_flight))
    engine.add(EmbedRequest("a", tuple(range(40)), "mean"))
    engine.step()
    engine.cancel("a")
    results = run_to_end(engine)
    assert results["a"] == ([], "cancelled", None)
    assert engine.step().num_free_blocks == 64


class FakeEncoder:
    """protocol.EncoderRunner: states as ScriptedRunner's, seen inside each text."""

    max_batch_tokens = 16

    def __init__(self, dense: FloatArray | None = None) -> None:
        self.dense = dense
        self.calls: list[list[int]] = []
        self.fails = False

    def info(self) -> WorkerInfo:
        return WorkerInfo("fake", "cpu", 16, 0, 0, 16, 0, 0, 0.0)

    def hidden_states(self, token_ids: IntArray, query_start: IntArray) -> FloatArray:
        if self.fails:
            raise RuntimeError("the device was lost")
        assert token_ids.dtype == query_start.dtype == np.int32
        assert query_start[0] == 0 and query_start[-1] == len(token_ids) <= self.max_batch_tokens
        self.calls.append(np.diff(query_start).tolist())
        parts = np.split(token_ids, query_start[1:-1])
        states = [state(part.tolist(), place) for part in parts for place in range(len(part))]
        return np.array(states, np.float32)

    def close(self) -> None: ...


def test_pooled_states_are_multiplied_by_what_the_encoder_has_for_that() -> None:
    texts = [[3, 4, 5], [70, 1]]
    dense = np.array([[1, 0, 2], [0, -1, 0.5], [3, 3, 3], [0, 0, 1]], np.float32)
    engine = EncoderEngine(FakeEncoder(dense))
    for index, ids in enumerate(texts):
        engine.add(EmbedRequest(str(index), tuple(ids), "mean"))
    for ids, (_, _, raw) in zip(texts, run_to_end(engine).values(), strict=True):
        assert raw is not None
        found = np.frombuffer(raw, "<f4")
        np.testing.assert_allclose(found, dense @ expected(ids, "mean"), rtol=1e-6)


@poolings
def test_encoder_texts_are_answered_in_order_in_batches_of_whole_texts(pooling: Pooling) -> None:
    runner = FakeEncoder()
    engine = EncoderEngine(runner)
    lengths = [3, 16, 5, 5, 5, 7, 1]
    texts = [list(range(n * 10, n * 10 + n)) for n in lengths]
    for index, ids in enumerate(texts):
        engine.add(EmbedRequest(str(index), tuple(ids), pooling))
    results = run_to_end(engine)
    assert list(results) == [str(index) for index in range(len(texts))]
    assert runner.calls == [[3], [16], [5, 5, 5], [7, 1]]
    for index, ids in enumerate(texts):
        check(results[str(index)], ids, pooling)


def test_encoder_refuses_what_it_cannot_do() -> None:
    engine = EncoderEngine(FakeEncoder())
    with pytest.raises(ContextOverflowError):
        engine.add(EmbedRequest("a", tuple(range(17)), "mean"))
    with pytest.raises(BadRequestError, match="encoder"):
        engine.add(GenerateRequest("a", (1,), SamplingParams()))
    with pytest.raises(BadRequestError, match="vocabulary"):
        engine.add(EmbedRequest("a", (1, -1), "mean"))
    assert not engine.has_work


def test_encoder_forgets_cancelled_texts_and_answers_all_after_a_failure() -> None:
    runner = FakeEncoder()
    engine = EncoderEngine(runner)
    for name in "abc":
        engine.add(EmbedRequest(name, (1, 2), "mean"))
    engine.cancel("b")
    runner.fails = True
    with pytest.raises(RuntimeError):
        engine.step()
    updates = {u.request_id: u.finish_reason for u in engine.fail("it broke").updates}
    assert updates == {"a": "error", "b": "cancelled", "c": "error"}
    assert not engine.has_work
