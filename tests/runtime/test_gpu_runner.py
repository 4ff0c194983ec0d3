"""GpuRunner against CpuRunner on small random models, and against itself in other batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import wgpu

from arch_models import architecture_model
from batches import GREEDY, Row, make_batch
from emberd.errors import DeviceError
from emberd.protocol import FROM_LAST_STEP, Runner, SamplingParams, WorkerOptions
from emberd.reference.runner import CpuRunner
from emberd.runtime import plan
from emberd.runtime.plan import Plan
from emberd.runtime.plan_key import PlanKey
from emberd.runtime.runner import GpuRunner
from emberd.runtime.sampler import Mode
from tiny_gguf import random_model

pytestmark = pytest.mark.device

INT8 = 3e-2
"""Logits of two int8 layers against float32, ‖out − ref‖ / ‖ref‖; the last norm magnifies 1e-2."""

CHUNKED = 2e-2
"""The same with other chunks: short ones round to int8 with a scale for every 16 values, long ones for every 32."""


def options(path: Path) -> WorkerOptions:
    return WorkerOptions(
        str(path),
        "gpu",
        context_length=512,
        kv_memory=32 << 20,
        max_sequences=8,
        max_batch_tokens=64,
    )


def blocks_of(index: int, count: int) -> list[int]:
    """Blocks in a scattered order that no two sequences share."""
    return [8 * place + (index + 3 * place) % 8 for place in reversed(range(count))]


def error(out: np.ndarray, ref: np.ndarray) -> float:
    return float(np.linalg.norm(out - ref) / np.linalg.norm(ref))


def logits_of(runner: Runner, token_ids: list[int], chunk: int = 64) -> np.ndarray:
    """Logits of every position, prefilled in chunks."""
    found = []
    for first in range(0, len(token_ids), chunk):
        part = token_ids[first : first + chunk]
        row = Row(0, part, first, blocks_of(0, 8), sample=False)
        runner.submit(make_batch([row], runner.block_size, list(range(len(part)))))
        out = runner.collect().logits
        assert out is not None
        found.append(out)
    return np.concatenate(found)


@pytest.fixture(scope="module")
def runners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GpuRunner, CpuRunner]]:
    path = random_model(tmp_path_factory.mktemp("model") / "m.gguf", quant="Q4_K", width=256)
    made = GpuRunner.load(options(path)), CpuRunner.load(options(path))
    yield made
    for runner in made:
        runner.close()


@pytest.mark.parametrize(
    ("architecture", "quant"),
    [("llama", "Q8_0"), ("qwen2", "F16"), ("qwen3", "Q6_K"), ("gemma3", "Q5_0")],
)
def test_logits_agree_with_the_reference(
    tmp_path: Path, rng: np.random.Generator, architecture: str, quant: str
) -> None:
    path = random_model(
        tmp_path / "m.gguf",
        architecture,  # type: ignore[arg-type]
        quant=quant,
        sliding_window=16 if architecture == "gemma3" else None,
    )
    gpu, cpu = GpuRunner.load(options(path)), CpuRunner.load(options(path))
    token_ids = rng.integers(0, 256, 70).tolist()
    ref = logits_of(cpu, token_ids)
    out = logits_of(gpu, token_ids)
    assert error(out, ref) < INT8
    for runner in (gpu, cpu):
        runner.close()


def test_chunked_prefill_equals_one_shot(
    runners: tuple[GpuRunner, CpuRunner], rng: np.random.Generator
) -> None:
    token_ids = rng.integers(0, 256, 60).tolist()
    whole = logits_of(runners[0], token_ids)
    for chunk in (1, 7, 33):
        assert error(logits_of(runners[0], token_ids, chunk), whole) < CHUNKED


def generate(
    runner: Runner, prompts: list[list[int]], params: list[SamplingParams], steps: int
) -> list[list[int]]:
    """Prefill all prompts in one step, then decode together, as many steps ahead as allowed."""
    rows = [
        Row(i, ids, 0, blocks_of(i, 8), admit=param)
        for i, (ids, param) in enumerate(zip(prompts, params, strict=True))
    ]
    rows.sort(key=lambda row: len(row.token_ids) > 1)
    order = [row.index for row in rows]
    batches = [make_batch(rows, runner.block_size)]
    for step in range(1, steps):
        again = [
            Row(i, [FROM_LAST_STEP], len(prompts[i]) + step - 1, blocks_of(i, 8)) for i in order
        ]
        batches.append(make_batch(again, runner.block_size))
    outputs = []
    in_flight = 0
    for batch in batches:
        runner.submit(batch)
        in_flight += 1
        if in_flight == runner.steps_in_flight:
            outputs.append(runner.collect().token_ids)
            in_flight -= 1
    outputs += [runner.collect().token_ids for _ in range(in_flight)]
    columns = np.array(outputs).T  # (rows, steps)
    return [columns[order.index(i)].tolist() for i in range(len(prompts))]


def test_tokens_of_a_batch_equal_those_of_lone_runs(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """Mixed greedy and sampled rows; prompts of one token among longer ones. Float weights: other products serve
    other numbers of rows, and where they round to int8 two close tokens may change places."""
    prompts = [rng.integers(0, 256, n).tolist() for n in (1, 5, 17, 30)]
    params = [
        GREEDY,
        SamplingParams(temperature=0.9, seed=7),
        SamplingParams(temperature=0.7, top_k=20, top_p=0.9, seed=11),
        SamplingParams(temperature=0.8, min_p=0.05, repetition_penalty=1.2, seed=3),
    ]
    runner = GpuRunner.load(options(random_model(tmp_path / "m.gguf", quant="F32")))
    together = generate(runner, prompts, params, steps=12)
    for i, (prompt, param) in enumerate(zip(prompts, params, strict=True)):
        alone = generate(runner, [prompt], [param], steps=12)[0]
        assert alone == together[i], f"row {i}"
    runner.close()


def test_logits_of_a_batch_are_those_of_lone_runs(
    runners: tuple[GpuRunner, CpuRunner], rng: np.random.Generator
) -> None:
    """Prefill and the decode step behind it, of weights whose products round to int8."""
    runner, lengths = runners[0], (5, 17, 30)
    prompts = [rng.integers(0, 256, n + 1).tolist() for n in lengths]
    lone = [logits_of(runner, ids)[-2:] for ids in prompts]
    rows = [Row(i, ids[:-1], 0, blocks_of(i, 8), sample=False) for i, ids in enumerate(prompts)]
    runner.submit(make_batch(rows, runner.block_size, (np.cumsum(lengths) - 1).tolist()))
    prefilled = runner.collect().logits
    rows = [
        Row(i, ids[-1:], len(ids) - 1, blocks_of(i, 8), sample=False)
        for i, ids in enumerate(prompts)
    ]
    runner.submit(make_batch(rows, runner.block_size, [0, 1, 2]))
    decoded = runner.collect().logits
    assert prefilled is not None and decoded is not None
    for i, (before, after) in enumerate(lone):
        assert error(prefilled[i], before) < CHUNKED, i
        assert error(decoded[i], after) < CHUNKED, i


def test_the_wrapper_replays_the_same_tokens(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = random_model(tmp_path / "m.gguf", quant="Q4_0")
    prompts = [rng.integers(0, 256, n).tolist() for n in (3, 9)]
    direct = GpuRunner.load(options(path))
    monkeypatch.setenv("EMBERD_REPLAY", "wrapper")
    wrapper = GpuRunner.load(options(path))
    both = [generate(runner, prompts, [GREEDY, GREEDY], steps=6) for runner in (direct, wrapper)]
    assert both[0] == both[1]
    direct.close()
    wrapper.close()


@pytest.mark.parametrize("baked", [False, True])
def test_the_head_takes_what_the_last_product_leaves(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, baked: bool
) -> None:
    """Of the rows that sample alone; with the params in the kernels' text as well as beside it."""
    monkeypatch.setattr(plan, "bakes", lambda *_: baked)
    path = random_model(tmp_path / "m.gguf", quant="Q4_K", width=256)
    runner = GpuRunner.load(options(path))
    for sampled in ([True], [True, False, True]):
        ids = rng.integers(0, 256, (len(sampled), 9)).tolist()
        rows = [Row(i, ids[i][:8], 0, blocks_of(i, 8), admit=GREEDY) for i in range(len(ids))]
        runner.submit(make_batch(rows, runner.block_size))
        runner.collect()
        rows = [Row(i, ids[i][8:], 8, blocks_of(i, 8), sample=s) for i, s in enumerate(sampled)]
        runner.submit(make_batch(rows, runner.block_size))
        runner.collect()
        out = runner.kernels.device.read(runner._transformer.scratch.logits)[: sum(sampled)]
        runner.submit(make_batch(rows, runner.block_size, np.flatnonzero(sampled).tolist()))
        apart = runner.collect().logits
        assert apart is not None and error(out, apart) < 1e-3
    names = [kernel.key for kernel in runner.kernels.all()]
    assert any(key.params for key in names) == baked
    assert any(dict(key.includes).get("token") == "token_given" for key in names)
    runner.close()


class Later:
    """A thread that begins when it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[Callable[[PlanKey], None], PlanKey, Future[None]]] = []

    def submit(self, run: Callable[[PlanKey], None], key: PlanKey) -> Future[None]:
        self.asked.append((run, key, Future()))
        return self.asked[-1][2]

    def work(self) -> list[PlanKey]:
        for run, key, done in self.asked:
            run(key)
            done.set_result(None)
        keys, self.asked = [key for _, key, _ in self.asked], []
        return keys

    def shutdown(self, cancel_futures: bool) -> None:
        assert cancel_futures


def test_a_step_runs_on_a_larger_plan_until_its_own_is_made(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same tokens, float weights being what they are; once for each mode of sampling."""
    runner = GpuRunner.load(options(random_model(tmp_path / "m.gguf", quant="F32")))
    plans, later = runner._plans, Later()
    plans.close()  # a real GPU's own thread has begun with what it was asked for at the load
    plans._made.clear()
    plans._asked_for.clear()
    monkeypatch.setattr(plans, "_thread", later)
    prompts = [rng.integers(0, 256, n).tolist() for n in (5, 17, 30)]
    for param in (GREEDY, SamplingParams(temperature=0.8, repetition_penalty=1.3, seed=3)):
        mode = Mode.PENALTIES if param.repetition_penalty != 1 else Mode.PLAIN
        before = set(plans._made)
        first = generate(runner, prompts, [param] * 3, steps=6)
        largest = {PlanKey(64, 8, 8, True, mode), PlanKey(8, 8, 8, False, mode)}
        assert set(plans._made) - before == largest
        own = {PlanKey(64, 0, 4, True, mode), PlanKey(4, 4, 4, False, mode)}
        assert set(later.work()) == own
        assert generate(runner, prompts, [param] * 3, steps=6) == first
        assert set(plans._made) - before == largest | own and not later.asked
    runner.close()


def test_plans_that_hold_all_others_are_made_beside_the_first_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By a thread that ends with the runner. A plan that cannot be made is told of, and larger ones stay in use."""
    runner = GpuRunner.load(options(random_model(tmp_path / "m.gguf", quant="F32")))
    plans = runner._plans
    monkeypatch.setattr(plans, "_thread", ThreadPoolExecutor(1))
    monkeypatch.setattr(plans, "_likely", ())
    plans.prepare_first()
    while plans.prepare_next():
        pass
    assert all(asked.done() for asked in plans._asked_for.values())
    plans.close()
    made = {PlanKey(64, 8, 8, True, Mode.PLAIN), PlanKey(8, 8, 8, False, Mode.PLAIN)}
    assert made <= set(plans._made)

    def refuse(key: PlanKey) -> Plan:
        raise DeviceError("no room")

    later = Later()
    monkeypatch.setattr(plans, "_thread", later)
    monkeypatch.setattr(plans, "_make", refuse)
    tokens = generate(runner, [[1, 2, 3], [4, 5]], [GREEDY] * 2, steps=4)
    with caplog.at_level(logging.WARNING):
        assert later.work()
    assert "no room" in caplog.text
    assert generate(runner, [[1, 2, 3], [4, 5]], [GREEDY] * 2, steps=4) == tokens
    assert not later.asked
    caplog.clear()

    def refuse_by_the_library(key: PlanKey) -> Plan:
        raise wgpu.GPUOutOfMemoryError("not even for a plan")

    monkeypatch.setattr(plans, "_make", refuse_by_the_library)
    monkeypatch.setattr(plans, "_asked_for", {})
    monkeypatch.setattr(plans, "_likely", iter([PlanKey(2, 2, 2, False, Mode.PLAIN)]))
    assert plans.prepare_next() and not plans.prepare_next()
    assert "not even for a plan" in caplog.text
    runner.close()


def test_experts_are_those_of_the_plan_that_the_step_ran_on(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever plan has been made for such a step meanwhile: its inputs lie elsewhere."""
    path = architecture_model(tmp_path / "m.gguf", "qwen3moe", quant="F32")
    runner = GpuRunner.load(options(path))
    plans = runner._plans
    plans.close()  # only a real GPU has a thread of its own
    monkeypatch.setattr(plans, "_thread", ThreadPoolExecutor(1))
    row = Row(0, rng.integers(0, 256, 5).tolist(), 0, blocks_of(0, 8), sample=False)
    batch = make_batch([row], runner.block_size, list(range(5)))
    runner.submit(batch)
    alone = runner.collect(), runner.experts_of(batch)
    plans.close()
    plans._made.clear()
    plans._asked_for.clear()
    later = Later()
    monkeypatch.setattr(plans, "_thread", later)
    runner.submit(batch)
    out = runner.collect()
    assert later.work()
    for found, wanted in zip(runner.experts_of(batch), alone[1], strict=True):
        assert np.array_equal(found, wanted)
    assert out.logits is not None and alone[0].logits is not None
    assert error(out.logits, alone[0].logits) < 1e-5
    runner.close()
