"""A draft beside its model in one worker, on the CPU device: vocabularies, memory, and the same replies."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from drafted import by_engine, repeating
from emberd.config import Config
from emberd.engine.draft_model import DraftModel
from emberd.errors import ModelLoadError
from emberd.estimate import MemoryEstimate, MemoryQuestion
from emberd.models.fit import judge
from emberd.protocol import GenerateRequest, Runner, SamplingParams, WorkerOptions
from emberd.reference.runner import CpuRunner
from emberd.worker.client import WorkerClient
from emberd.worker.draft import estimate_with_draft, load_draft, parted
from emberd.worker.process import estimate_memory, load_runner
from tiny_encoder import encoder_model
from tiny_gguf import byte_vocab, random_model


def small(path: Path, seed: int = 0, **changes: object) -> Path:
    sizes = {"width": 64, "ffn": 64, "heads": 2, "head_dim": 32, "seed": seed}
    return random_model(path, **(sizes | changes))  # type: ignore[arg-type]


@pytest.fixture
def options(tmp_path: Path) -> WorkerOptions:
    """A model and a draft of half its layers, of other weights."""
    model, draft = small(tmp_path / "m.gguf"), small(tmp_path / "d.gguf", 1, layers=1)
    return WorkerOptions(
        str(model),
        "cpu",
        context_length=256,
        max_sequences=12,
        max_batch_tokens=128,
        draft_path=str(draft),
    )


def loaded(options: WorkerOptions) -> tuple[Runner, Runner, DraftModel]:
    parts = parted(options, estimate_memory)
    runner = load_runner(parts.model, lambda _: None)
    assert isinstance(runner, CpuRunner)
    draft = load_draft(parts, runner)
    return runner, draft.runner, draft.model()


@pytest.mark.slow
def test_no_reply_is_another_for_any_draft(
    options: WorkerOptions, rng: np.random.Generator
) -> None:
    """Greedy and drawn, with grammars and penalties, all in one batch; half of them guess with the draft."""
    requests = repeating(rng)
    for place in range(4):
        params = SamplingParams(
            temperature=0.9 * (place % 2),
            seed=int(rng.integers(1 << 31)),
            max_tokens=50,
            presence_penalty=0.5 * (place == 3),
            max_drafted=0 if place == 2 else None,
        )
        prompt = tuple(rng.integers(0, 256, int(rng.integers(1, 60))).tolist())
        requests.append(GenerateRequest(f"p{place}", prompt, params))
    runner, _, draft = loaded(options)
    plain, none = by_engine(runner, requests, False)
    for speculate in (False, True):
        assert by_engine(runner, requests, speculate, draft)[0] == plain and none == 0
    assert draft.blocks.num_free == draft._runner.num_blocks
    own, _, itself = loaded(replace(options, draft_path=_copied(options.model_path)))
    guessed, num_right = by_engine(own, requests[4:6], False, itself)
    assert guessed == {name: plain[name] for name in guessed}
    assert num_right > 50, "of 100 tokens nearly all but the first 16 and those behind guesses"


def _copied(path: str) -> str:
    return shutil.copy(path, path + ".copy.gguf")


@pytest.mark.slow
def test_memory_is_shared_by_what_tokens_take(options: WorkerOptions) -> None:
    """The draft has a place for every token of its model's pool, and the estimate counts what both then take."""
    options = replace(options, kv_memory=1 << 20, context_length=64)
    runner, beside, _ = loaded(options)
    info, own = runner.info(), beside.info()
    assert own.num_blocks == info.num_blocks
    assert 0.9 * (1 << 20) < info.kv_bytes + own.kv_bytes <= 1 << 20
    assert info.kv_bytes == 2 * own.kv_bytes, "of twice as many layers"
    told = estimate_memory(MemoryQuestion(options))
    assert told.kv_bytes == info.kv_bytes + own.kv_bytes
    assert told.weight_bytes == info.weight_bytes + own.weight_bytes
    alone = estimate_memory(MemoryQuestion(replace(options, draft_path=None)))
    assert told.kv_token_bytes["f32"] == 1.5 * alone.kv_token_bytes["f32"]
    tight = told.fixed(64) + 64 * told.kv_token_bytes["f32"]
    fits = estimate_memory(MemoryQuestion(replace(options, kv_memory=None), tight))
    assert (fits.context_length, fits.refusal) == (64, "")


def test_a_draft_of_other_tokens_is_refused_by_name(options: WorkerOptions, tmp_path: Path) -> None:
    other = small(tmp_path / "other.gguf", vocab=byte_vocab(["these", "those"]))
    with pytest.raises(
        ModelLoadError, match=r"^--draft: other\.gguf has another vocabulary"
    ) as told:
        parted(replace(options, draft_path=str(other)), estimate_memory)
    assert "m.gguf" in str(told.value) and "'these'" in str(told.value)
    encoder = encoder_model(tmp_path / "encoder.gguf").path
    with pytest.raises(
        ModelLoadError, match=r"--draft: encoder\.gguf makes embeddings and no tokens"
    ):
        parted(replace(options, draft_path=str(encoder)), estimate_memory)


def test_a_draft_that_has_no_q8_cache_is_named(options: WorkerOptions, tmp_path: Path) -> None:
    draft = small(tmp_path / "odd.gguf", head_dim=48)
    asked = replace(options, draft_path=str(draft), kv_type="q8_0")
    with pytest.raises(ModelLoadError, match=r"--draft: .*q8_0"):
        parted(asked, estimate_memory)


def test_auto_takes_a_kv_type_that_both_can_have(options: WorkerOptions, tmp_path: Path) -> None:
    tight = replace(options, kv_type="auto", kv_memory=1 << 18)  # too little for the context in f32
    assert estimate_memory(MemoryQuestion(tight)).kv_type == "q8_0"
    odd = replace(tight, draft_path=str(small(tmp_path / "odd.gguf", head_dim=48)))
    told = estimate_memory(MemoryQuestion(odd))
    assert (told.kv_type, list(told.kv_token_bytes)) == ("f32", ["f32"])
    runner, beside, _ = loaded(odd)
    assert runner.info().kv_type == beside.info().kv_type == "f32"


@pytest.mark.slow
def test_what_the_draft_is_refused_for_is_refused_of_both(options: WorkerOptions) -> None:
    """The draft is asked about as it would be loaded; here its device has no binding for its cache."""
    asked: list[WorkerOptions] = []

    def estimate(question: MemoryQuestion) -> MemoryEstimate:
        made = estimate_memory(question)
        if question.options.model_path != options.draft_path:
            return made
        asked.append(question.options)
        small = {"kv_binding_tokens": dict.fromkeys(made.kv_token_bytes, 64)}
        return replace(made, **small, refusal="a context needs more", lowered="sequences 12 -> 3")

    told = estimate_with_draft(MemoryQuestion(options), estimate)
    assert told.refusal == "--draft: a context needs more" and "sequences 12 -> 3" in told.lowered
    assert (told.context_length, told.kv_bytes) == (0, 0)
    runner, beside, _ = loaded(options)
    assert asked[-1].context_length == runner.info().context_length
    assert 0 <= asked[-1].kv_memory - beside.info().kv_bytes < 16 * told.kv_token_bytes["f32"]
    fit = judge(told, Config(ctx=256))
    assert fit.verdict == "fits with a smaller context" and fit.largest["f32"] == 64


@pytest.mark.slow
def test_a_worker_serves_with_its_draft_and_tells_of_it(options: WorkerOptions) -> None:
    async def work() -> None:
        worker = await WorkerClient.start(options)
        try:
            assert worker.info.draft == "d.gguf"
            assert 0 < worker.info.draft_bytes < worker.info.weight_bytes + worker.info.kv_bytes
            params = SamplingParams(temperature=0.0, max_tokens=40)
            updates = [u async for u in worker.generate(GenerateRequest("r", (1, 2, 3), params))]
            assert sum(len(update.token_ids) for update in updates) == 40
            assert sum(update.num_drafted for update in updates) > 0
        finally:
            await worker.close()

    asyncio.run(work())
