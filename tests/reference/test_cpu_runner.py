"""CpuRunner against the plain forward pass: paged, chunked and batched runs give what one pass gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from random_weights import VARIANTS, VOCAB, random_weights

import tiny_gguf
from batches import GREEDY, Row, make_batch
from emberd.errors import ModelLoadError
from emberd.gguf.rope import rope_tables
from emberd.gguf.spec import open_model
from emberd.protocol import FROM_LAST_STEP, Runner, SamplingParams, WorkerOptions
from emberd.reference.kv_cache import BLOCK_SIZE, DEFAULT_CONTEXT, plan_cache, token_bytes
from emberd.reference.runner import CpuRunner
from emberd.reference.transformer import forward, layer_rope_tables
from emberd.reference.weights import Weights, load_weights
from tolerance import check

OPTIONS = WorkerOptions("unused", context_length=256, max_sequences=6, max_batch_tokens=128)


@pytest.fixture(params=VARIANTS)
def weights(request: pytest.FixtureRequest, rng: np.random.Generator) -> Weights:
    return random_weights(rng, **VARIANTS[request.param])


@pytest.fixture
def runner(weights: Weights) -> Iterator[CpuRunner]:
    runner = CpuRunner(weights, OPTIONS)
    yield runner
    runner.close()


def tokens(rng: np.random.Generator, count: int) -> list[int]:
    return rng.integers(0, VOCAB, count).tolist()


def deal(runner: Runner, rng: np.random.Generator, lengths: list[int]) -> list[list[int]]:
    """A block table for each length, from blocks in random order."""
    free = rng.permutation(runner.num_blocks).tolist()
    return [[free.pop() for _ in range(-(-length // BLOCK_SIZE))] for length in lengths]


def run(runner: Runner, rows: list[Row], logits_at: list[int] | None = None) -> Any:
    runner.submit(make_batch(rows, runner.block_size, logits_at))
    return runner.collect()


def test_it_is_a_runner(runner: CpuRunner) -> None:
    as_runner: Runner = runner
    info = as_runner.info()
    assert info.device_kind == "cpu" and info.context_length == 256
    assert info.max_batch_tokens == runner.max_batch_tokens > 0
    assert info.num_blocks == runner.num_blocks and info.block_size == runner.block_size
    assert info.kv_bytes == info.num_blocks * info.block_size * token_bytes(runner.weights.spec)


@pytest.mark.parametrize(
    ("asked", "max_sequences", "served"), [(512, 6, 128), (100, 6, 100), (512, 200, 200)]
)
def test_a_step_is_short_but_every_sequence_has_a_place_in_it(
    weights: Weights, asked: int, max_sequences: int, served: int
) -> None:
    """A step of many tokens takes seconds, for which running replies wait (K11)."""
    options = replace(OPTIONS, max_batch_tokens=asked, max_sequences=max_sequences)
    assert CpuRunner(weights, options).max_batch_tokens == served


@pytest.mark.parametrize("chunk", [1, 15, 16, 17, 40])
def test_chunked_prefill_equals_one_pass(
    runner: CpuRunner, weights: Weights, rng: np.random.Generator, chunk: int
) -> None:
    ids = tokens(rng, 40)
    [blocks] = deal(runner, rng, [40])
    parts = []
    for start in range(0, 40, chunk):
        part = ids[start : start + chunk]
        row = Row(0, part, start, blocks, False, GREEDY if start == 0 else None)
        parts.append(run(runner, [row], list(range(len(part)))).logits)
    check(np.concatenate(parts), forward(weights, np.array(ids)), "float")


def test_decode_and_prefill_rows_in_one_batch_equal_lone_runs(
    runner: CpuRunner, weights: Weights, rng: np.random.Generator
) -> None:
    lengths, queries = [33, 1, 20, 48, 17], [1, 1, 1, 30, 17]
    sequences = [tokens(rng, length) for length in lengths]
    tables = deal(runner, rng, lengths)
    for index, (ids, blocks, query) in enumerate(zip(sequences, tables, queries, strict=True)):
        if len(ids) > query:
            run(runner, [Row(index, ids[:-query], 0, blocks, False)])
    rows = [
        Row(index, ids[-query:], len(ids) - query, blocks, admit=GREEDY)
        for index, (ids, blocks, query) in enumerate(zip(sequences, tables, queries, strict=True))
    ]
    last = (np.cumsum(queries) - 1).tolist()
    output = run(runner, rows, last)
    for index, ids in enumerate(sequences):
        alone = forward(weights, np.array(ids))[-1]
        check(output.logits[index], alone, "float")
        assert output.token_ids[index] == np.argmax(output.logits[index])


def test_decode_feeds_the_sampled_token_back(
    runner: CpuRunner, weights: Weights, rng: np.random.Generator
) -> None:
    prompts = [tokens(rng, 5), tokens(rng, 21)]
    tables = deal(runner, rng, [40, 40])
    output = run(
        runner,
        [Row(i, ids, 0, tables[i], admit=GREEDY) for i, ids in enumerate(prompts)],
    )
    texts = [[*ids, int(output.token_ids[i])] for i, ids in enumerate(prompts)]
    for _ in range(12):
        rows = [Row(i, [FROM_LAST_STEP], len(texts[i]) - 1, tables[i]) for i in (1, 0)]
        output = run(runner, rows, [0, 1])
        for place, i in enumerate((1, 0)):
            check(output.logits[place], forward(weights, np.array(texts[i]))[-1], "float")
            texts[i].append(int(output.token_ids[place]))


def test_only_asked_rows_are_sampled(runner: CpuRunner, rng: np.random.Generator) -> None:
    tables = deal(runner, rng, [8, 8])
    rows = [
        Row(0, tokens(rng, 4), 0, tables[0], sample=False),
        Row(1, tokens(rng, 4), 0, tables[1], admit=GREEDY),
    ]
    output = run(runner, rows)
    assert output.token_ids[0] == -1 and 0 <= output.token_ids[1] < VOCAB
    assert output.logits is None


def test_draws_are_the_same_alone_and_beside_others(
    runner: CpuRunner, rng: np.random.Generator
) -> None:
    """K12: also at another place of the runner's state."""
    prompt, others = tokens(rng, 9), [tokens(rng, length) for length in (3, 12, 30)]
    seeded = SamplingParams(temperature=0.8, seed=42)
    tables = deal(runner, rng, [16, 16, 16, 32])
    alone = run(runner, [Row(0, prompt, 0, tables[0], admit=seeded)]).token_ids[0]
    rows = [
        Row(index, ids, 0, table, admit=SamplingParams(temperature=0.8, seed=index))
        for index, (ids, table) in enumerate(zip(others, tables[1:], strict=True))
    ]
    rows.insert(1, Row(5, prompt, 0, tables[0], admit=seeded))
    assert run(runner, rows).token_ids[1] == alone


def test_admission_resets_what_the_place_held(runner: CpuRunner, rng: np.random.Generator) -> None:
    prompt = tokens(rng, 6)
    [blocks] = deal(runner, rng, [16])
    params = SamplingParams(temperature=0.0, presence_penalty=50.0)
    first = run(runner, [Row(0, prompt, 0, blocks, admit=params)]).token_ids[0]
    second = run(runner, [Row(0, [FROM_LAST_STEP], 6, blocks)]).token_ids[0]
    assert second not in {first, *prompt}
    again = run(runner, [Row(0, prompt, 0, blocks, admit=params)]).token_ids[0]
    assert again == first


@pytest.mark.parametrize(
    "architecture",
    [
        "llama",
        pytest.param("qwen2", marks=pytest.mark.slow),
        pytest.param("qwen3", marks=pytest.mark.slow),
        "gemma3",
    ],
)
def test_loading_a_file(tmp_path: Path, architecture: Any, rng: np.random.Generator) -> None:
    path = tiny_gguf.random_model(tmp_path / "m.gguf", architecture, quant="Q8_0", width=64, ffn=96)
    shares: list[float] = []
    options = WorkerOptions(str(path), context_length=64, max_sequences=2)
    runner = CpuRunner.load(options, shares.append)
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert runner.info().load_seconds > 0
    ids = rng.integers(0, 256, 20).tolist()
    output = run(runner, [Row(0, ids, 0, [3, 1], admit=GREEDY)], [19])
    check(output.logits[0], forward(runner.weights, np.array(ids))[-1], "float")
    runner.close()


def test_a_chain_model_gives_the_logits_written_into_it(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """The last token alone decides, whatever stands before it (K16's logits)."""
    path = tiny_gguf.chain_model(tmp_path / "c.gguf", {97: {98: 2.0, 99: 1.0, 100: 0.0}})
    runner = CpuRunner.load(WorkerOptions(str(path), context_length=64, max_sequences=1))
    ids = [*rng.integers(0, 256, 19).tolist(), 97]
    logits = run(runner, [Row(0, ids, 0, [1, 0], sample=False)], [19]).logits[0]
    wanted = np.full(512, -30.0)
    wanted[98:101] = [2, 1, 0]
    np.testing.assert_allclose(logits, wanted, atol=1e-3)
    runner.close()


def test_rope_tables_follow_layers_and_factors(rng: np.random.Generator) -> None:
    """K26: the model's factors are used at all positions."""
    weights = random_weights(rng, **VARIANTS["gemma3"])
    factors = rng.uniform(1, 32, 8).astype(np.float32)
    tables = layer_rope_tables(replace(weights, rope_factors=factors), 50)
    for (cos, sin), layer in zip(tables, weights.spec.layers, strict=True):
        wanted = rope_tables(16, layer.rope_base, layer.rope_scale, factors, 50)
        np.testing.assert_array_equal((cos, sin), wanted)
    assert tables[0] is tables[2] and tables[0] is not tables[1]


def test_a_shared_embedding_is_counted_once(tmp_path: Path) -> None:
    """K25."""
    sizes: dict[str, Any] = {"width": 64, "ffn": 96}
    split = load_weights(open_model(tiny_gguf.random_model(tmp_path / "a.gguf", **sizes)))
    tied = load_weights(open_model(tiny_gguf.random_model(tmp_path / "b.gguf", tied=True, **sizes)))
    assert tied.output is tied.token_embedding
    assert split.nbytes - tied.nbytes == tied.token_embedding.nbytes


def test_weights_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_gguf.random_model(tmp_path / "m.gguf", width=64, ffn=96)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    with pytest.raises(ModelLoadError, match=r"m\.gguf needs .* GiB are free"):
        CpuRunner.load(WorkerOptions(str(path)))


@pytest.fixture
def plan(rng: np.random.Generator) -> Callable[..., tuple[int, int]]:
    spec = random_weights(rng, context_length=16384).spec

    def call(free_tokens: float, kv_tokens: int | None = None, **options: Any) -> tuple[int, int]:
        size = token_bytes(spec)
        kv_memory = None if kv_tokens is None else kv_tokens * size
        made = WorkerOptions("m", kv_memory=kv_memory, **options)
        return plan_cache(spec, made, int(free_tokens * size))

    return call


def test_the_context_is_the_default_or_the_trained_one(plan: Callable[..., Any]) -> None:
    assert plan(1e9)[0] == DEFAULT_CONTEXT
    assert plan(1e9, context_length=16000)[0] == 16000
    assert plan(1e9, context_length=99999)[0] == 16384


def test_the_pool_holds_all_sequences_and_no_more(plan: Callable[..., Any]) -> None:
    assert plan(1e9, context_length=100, max_sequences=3) == (100, 3 * 7)


def test_a_small_pool_lowers_the_context(
    plan: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """K14: a pool of 512 tokens serves a context of 512, and says so."""
    assert plan(1e9, kv_tokens=512, context_length=4096) == (512, 512 // BLOCK_SIZE)
    assert "lowered from 4096 to 512" in caplog.text


def test_a_context_asked_for_may_take_more_than_the_share(plan: Callable[..., Any]) -> None:
    assert plan(10_000)[0] < 2600
    assert plan(10_000, context_length=7000)[0] == 7000
    assert plan(10_000, context_length=16384)[0] == 8000


def test_no_room_for_one_block_is_an_error(plan: Callable[..., Any]) -> None:
    with pytest.raises(ModelLoadError, match="--kv-memory"):
        plan(1e9, kv_tokens=BLOCK_SIZE - 1)
