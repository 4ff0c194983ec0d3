"""GpuRunner's masks, biases and log-probabilities under the engine, against CpuRunner and against itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from batches import GREEDY, Row, make_batch
from emberd.engine import Engine
from emberd.protocol import (
    GenerateRequest,
    Runner,
    SamplingParams,
    SequenceUpdate,
    TokenTable,
    WorkerOptions,
)
from emberd.reference.runner import CpuRunner
from emberd.runtime.replay import make_replayer
from emberd.runtime.runner import GpuRunner
from emberd.worker.client import _merge
from tiny_gguf import random_model

pytestmark = pytest.mark.device

VOCAB = 256
END = 0
TABLE = TokenTable(tuple(bytes([i]) for i in range(VOCAB)), (END,), (END,))
"""Tokens are bytes; the first is an end."""
F16 = 1e-2
"""How far a log-probability may be where keys and values are f16 on one side; other tokens' are about 1 away."""
GRAMMAR = "start: /[a-f]{3,12}[0-9]/"


def options(path: Path) -> WorkerOptions:
    return WorkerOptions(
        str(path),
        "gpu",
        context_length=256,
        kv_memory=32 << 20,
        max_sequences=8,
        max_batch_tokens=32,
    )


@pytest.fixture(scope="module")
def runners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GpuRunner, CpuRunner]]:
    """Of a float model: both give the same logits but for rounding."""
    path = random_model(tmp_path_factory.mktemp("model") / "m.gguf", quant="F32")
    made = GpuRunner.load(options(path)), CpuRunner.load(options(path))
    yield made
    for runner in made:
        runner.close()


def request_of(
    rng: np.random.Generator, name: str, prompt_logprobs: int | None = None, **params: object
) -> GenerateRequest:
    ids = tuple(rng.integers(1, VOCAB, int(rng.integers(1, 40))).tolist())
    chosen = {"max_tokens": 12, "seed": int(rng.integers(1 << 31)), "stop_token_ids": (END,)}
    return GenerateRequest(name, ids, SamplingParams(**{**chosen, **params}), prompt_logprobs)  # type: ignore[arg-type]


def run(runner: Runner, requests: list[GenerateRequest]) -> dict[str, SequenceUpdate]:
    engine = Engine(runner)
    engine.use_table(TABLE)
    updates: dict[str, list[SequenceUpdate]] = {}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for update in engine.step().updates:
            updates.setdefault(update.request_id, []).append(update)
    return {name: _merge(found) for name, found in updates.items()}


def mixed_requests(rng: np.random.Generator) -> list[GenerateRequest]:
    return [
        request_of(rng, "free", temperature=0.0),
        request_of(rng, "bound", grammar=GRAMMAR, temperature=0.0),
        request_of(rng, "sampled", grammar=GRAMMAR, temperature=0.8, top_k=40, top_p=0.95),
        request_of(rng, "told", num_logprobs=5, temperature=0.7),
        request_of(rng, "all", 3, grammar=GRAMMAR, num_logprobs=2, repetition_penalty=1.2),
        request_of(rng, "biased", logit_bias=((97, 100.0),), num_logprobs=0),
        request_of(rng, "penalized", presence_penalty=0.5, seed=3),
    ]


def test_what_needs_most_beside_what_needs_nothing_k12(
    runners: tuple[GpuRunner, CpuRunner], rng: np.random.Generator
) -> None:
    """Together and each alone, the same; and what was asked for is there."""
    requests = mixed_requests(rng)
    together = run(runners[0], requests)
    for request in requests:
        alone = run(runners[0], [request])[request.request_id]
        found = together[request.request_id]
        assert (found.token_ids, found.finish_reason) == (alone.token_ids, alone.finish_reason)
        assert len(found.logprobs) == len(alone.logprobs)
        for one, other in zip(found.logprobs, alone.logprobs, strict=True):
            assert one.token_id == other.token_id
            assert abs(one.logprob - other.logprob) < 1e-3
    for name in ("bound", "sampled", "all"):
        text = bytes(together[name].token_ids)
        ended = together[name].finish_reason == "stop"
        assert re.fullmatch(rb"[a-f]{3,12}[0-9]" if ended else rb"[a-f]{1,12}", text), text
    assert set(together["biased"].token_ids) == {97}
    assert [len(one.top) for one in together["told"].logprobs] == [5] * 12


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_pipelines_depth_does_not_show(
    runners: tuple[GpuRunner, CpuRunner], rng: np.random.Generator, depth: int
) -> None:
    gpu, requests = runners[0], mixed_requests(rng)
    expected = run(gpu, requests)
    replaced = _with_depth(gpu, depth)
    found = run(gpu, requests)
    _with_depth(gpu, replaced)
    for name, update in expected.items():
        assert found[name].token_ids == update.token_ids, name


def _with_depth(runner: GpuRunner, depth: int) -> int:
    """Sets how many steps may be in flight; gives what it was."""
    runner._replayer.close()
    before, runner.steps_in_flight = runner.steps_in_flight, depth
    runner._replayer = make_replayer(runner._device, runner._plans.output_bytes, depth)
    return before


def test_prompts_are_scored_as_on_the_cpu_ok01(
    runners: tuple[GpuRunner, CpuRunner], rng: np.random.Generator
) -> None:
    """In chunks, more places than rows of logits, beside a sequence that generates."""
    ids = tuple(rng.integers(1, VOCAB, 75).tolist())
    whole = GenerateRequest("whole", ids, SamplingParams(max_tokens=0), 4)
    other = request_of(rng, "other", 2, temperature=0.0, num_logprobs=3)
    on_gpu, on_cpu = (run(runner, [other, whole]) for runner in runners)
    assert on_gpu["whole"].finish_reason == "length"
    for name, length in (("whole", len(ids)), ("other", len(other.token_ids))):
        told, expected = on_gpu[name].prompt_logprobs, on_cpu[name].prompt_logprobs
        assert len(told) == len(expected) == length - 1
        for one, same in zip(told, expected, strict=True):
            assert one.token_id == same.token_id
            assert abs(one.logprob - same.logprob) < F16
            assert np.allclose([p for _, p in one.top], [p for _, p in same.top], atol=F16)


def test_logprobs_are_of_raw_logits_k18(
    runners: tuple[GpuRunner, CpuRunner], rng: np.random.Generator
) -> None:
    """Behind a bias, a penalty and a mask: what the CPU device's logits say of the GPU's tokens."""
    gpu, cpu = runners
    prompt = rng.integers(1, VOCAB, 9).tolist()
    params = SamplingParams(
        seed=5, num_logprobs=4, logit_bias=((98, 30.0),), repetition_penalty=1.4, top_k=5
    )
    blocks = [1, 3]
    batch = make_batch([Row(0, prompt, 0, blocks, admit=params)], gpu.block_size)
    batch.masked = np.array([True])
    gpu.submit(batch)
    mask = np.zeros((1, VOCAB // 32), np.uint32)
    mask[0, 3] = 0b1110  # 97, 98, 99
    gpu.sample(mask)
    output = gpu.collect()
    assert output.token_ids.tolist() == [98] and output.logprobs is not None
    plain = make_batch([Row(0, prompt, 0, blocks, admit=GREEDY)], cpu.block_size, [8])
    cpu.submit(plain)
    logits = cpu.collect().logits
    assert logits is not None
    exact = logits[0].astype(np.float64)
    exact -= exact.max() + np.log(np.exp(exact - exact.max()).sum())
    assert abs(output.logprobs.chosen[0] - exact[98]) < F16
    assert np.allclose(output.logprobs.top[0, :4], np.sort(exact)[::-1][:4], atol=F16)


def test_the_wrapper_replays_masked_steps_too(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = random_model(tmp_path / "m.gguf", quant="Q4_0")
    requests = mixed_requests(rng)
    direct = GpuRunner.load(options(path))
    monkeypatch.setenv("EMBERD_REPLAY", "wrapper")
    wrapper = GpuRunner.load(options(path))
    found = [run(runner, requests) for runner in (direct, wrapper)]
    for name in found[0]:
        assert found[0][name].token_ids == found[1][name].token_ids
    for runner in (direct, wrapper):
        runner.close()


def test_a_cancelled_sequence_leaves_its_neighbours_masks_alone_k13(
    runners: tuple[GpuRunner, CpuRunner], rng: np.random.Generator
) -> None:
    gone = request_of(rng, "gone", grammar="start: /[a-z]+/", max_tokens=100)
    kept = request_of(rng, "kept", grammar=GRAMMAR)
    alone = run(runners[0], [kept])["kept"]
    engine = Engine(runners[0])
    engine.use_table(TABLE)
    for request in (gone, kept):
        engine.add(replace(request))
    token_ids: list[int] = []
    for step in range(100):
        if step == 3:
            engine.cancel("gone")
        for update in engine.step().updates:
            token_ids += update.token_ids if update.request_id == "kept" else ()
        if not engine.has_work:
            break
    assert tuple(token_ids) == alone.token_ids
