"""Verdicts about what fits, and the two estimates of what a model takes against each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emberd.config import Config
from emberd.estimate import LargestMatrix, MemoryEstimate, MemoryQuestion
from emberd.models.facts import read_facts
from emberd.models.fit import judge, worker_options
from emberd.models.memory import need_of
from emberd.protocol import WorkerInfo
from emberd.reference.estimate import estimate as estimate_cpu
from emberd.runtime import estimate as runtime_estimate
from emberd.runtime.estimate import estimate
from made_up_gpu import made_up_gpu
from shape_files import LLAMA_1B, LLAMA_8B, LlamaShape, embedding_gemma_file, shape_file

GIB = 1 << 30


def made(**changes: Any) -> MemoryEstimate:
    """A device of 1,000,000 bytes; a model of 400,000 that takes 100 bytes a token of context."""
    values: dict[str, Any] = {
        "device": "Card",
        "device_kind": "gpu",
        "tier": "small",
        "device_memory": 1_200_000,
        "memory": 1_000_000,
        "max_binding_bytes": 1 << 30,
        "largest": LargestMatrix("token_embd.weight", 1000, 1),
        "weight_bytes": 300_000,
        "scratch_bytes": 80_000,
        "scratch_token_bytes": 15.0,
        "optional_bytes": 20_000,
        "optional_token_bytes": 5.0,
        "kv_token_bytes": {"f16": 80},
        "kv_binding_tokens": {"f16": 1 << 20},
        "trained_context": 16384,
        "max_context": 16384,
        "default_context": 4096,
        "block_size": 32,
        "kv_type": "f16",
        "context_length": 4096,
        "kv_bytes": 4096 * 80,
    }
    return MemoryEstimate(**(values | changes))


def test_a_context_that_fits_is_told_with_the_largest_one() -> None:
    fit = judge(made(), Config())
    assert (fit.verdict, fit.wanted) == ("fits", 4096)
    assert fit.largest == {"f16": 600_000 // 100 // 32 * 32}
    figures = fit.description()["memory"]
    assert figures["scratch"] == {"bytes": 80_000 + 15 * 4096, "source": "estimated"}
    assert figures["kv_per_1024_tokens"]["bytes"] == 80 * 1024


def test_a_smaller_context_is_named_where_the_wanted_one_is_refused() -> None:
    refused = made(context_length=0, kv_bytes=0, refusal="a context of 8192 tokens needs ...")
    fit = judge(refused, Config(ctx=8192))
    assert fit.verdict == "fits with a smaller context"
    assert f"8192 tokens are refused; --ctx {fit.largest['f16']} is served" in fit.reason
    figures = fit.description()["memory"]  # of what was wanted
    assert figures["kv"]["bytes"] == 80 * 8192
    assert figures["scratch"]["bytes"] == 80_000 + 15 * 8192


def test_q8_0_is_named_where_only_that_fits() -> None:
    both = {"f16": 80, "q8_0": 43}
    refused = made(context_length=0, kv_token_bytes=both, refusal="no")
    assert judge(refused, Config(ctx=8192)).verdict == "fits with q8_0 KV"
    assert judge(refused, Config(ctx=16000)).verdict == "fits with a smaller context"


def test_a_model_that_does_not_fit_says_why() -> None:
    fit = judge(made(memory=300_000, context_length=0, refusal="weights take 301 KB"), Config())
    assert (fit.verdict, fit.reason) == ("does not fit", "weights take 301 KB")
    assert fit.largest == {"f16": 0}


def test_a_device_that_does_not_tell_its_memory_is_no_fit() -> None:
    fit = judge(made(memory=None, device_memory=None), Config())
    assert fit.verdict == "not known" and "--memory" in fit.reason
    assert fit.largest == {"f16": 16384}


def test_kv_memory_and_bindings_bound_the_largest_context() -> None:
    assert judge(made(), Config(kv_memory=80 * 100)).largest == {"f16": 96}
    assert judge(made(kv_binding_tokens={"f16": 640}), Config()).largest == {"f16": 640}


def test_what_a_loaded_model_measured_is_told_as_measured() -> None:
    info = WorkerInfo("Card", "gpu", 4096, 128, 32, 8, 301_000, 327_680, 1.0, scratch_bytes=141_000)
    figures = judge(made(), Config(), info).description()["memory"]
    assert figures["weights"] == {"bytes": 301_000, "source": "measured"}
    assert figures["scratch"] == {"bytes": 141_000, "source": "measured"}
    assert figures["optional"]["source"] == "estimated"


def test_kv_ram_counts_where_main_memory_is_the_devices() -> None:
    config = Config(kv_ram=150_000)
    card = judge(made(kv_ram=150_000), config)
    assert card.verdict == "fits" and "146.5 KiB (--kv-ram) of main memory beside it" in card.reason
    assert card.largest == judge(made(), Config()).largest
    own = judge(made(kv_ram=150_000, tier="integrated"), config)
    assert own.largest["f16"] == 450_000 // 100 // 32 * 32 and "that is in it" in own.reason
    for fit in (card, own):
        assert fit.description()["memory"]["kv_ram"] == {"bytes": 150_000, "source": "estimated"}
    assert "kv_ram" not in judge(made(), Config()).description()["memory"]


@pytest.mark.parametrize("kind", ["DiscreteGPU", "IntegratedGPU", "cpu"])
def test_kv_ram_is_taken_from_the_cache_by_estimate_and_plan_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    from emberd.runtime import device
    from emberd.worker.process import estimate_memory

    path = shape_file(tmp_path / "m.gguf", LLAMA_1B._replace(layers=4))
    adapter = replace(made_up_gpu(), kind=kind)
    monkeypatch.setattr(runtime_estimate, "device_memory", lambda _adapter: 16 * GIB)
    monkeypatch.setattr(device, "choose_adapter", lambda _name: (adapter, "made up"))
    sizes, needs = [], []
    for ram in (0, GIB):
        config = Config(
            device="cpu" if kind == "cpu" else "gpu", memory=4 * GIB, kv_ram=ram, ctx=2048
        )
        made = estimate_memory(MemoryQuestion(worker_options(config, path), config.memory))
        assert made.kv_ram == ram and not made.refusal
        sizes.append(made.memory - made.fixed(2048))
        needs.append(need_of(read_facts(path, tmp_path), config, made.tier).fixed)
    counted = 0 if kind == "DiscreteGPU" else GIB
    assert sizes[0] - sizes[1] == needs[1] - needs[0] == counted


@pytest.mark.parametrize("max_batch_tokens", [512, 4096])
def test_what_loads_of_an_encoder_are_planned_with_is_what_the_loader_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_batch_tokens: int
) -> None:
    """Its calls hold a text of the whole context, however few tokens a step may have."""
    path = embedding_gemma_file(tmp_path / "m.gguf")
    config = Config(max_batch_tokens=max_batch_tokens)
    monkeypatch.setattr(runtime_estimate, "device_memory", lambda _adapter: 80 * GIB)
    question = MemoryQuestion(worker_options(config, path))
    counted, facts = estimate(made_up_gpu(), question), read_facts(path, tmp_path)
    assert counted.context_length == 2048
    need = need_of(facts, config, counted.tier)
    assert need.fixed == pytest.approx(counted.fixed(2048), rel=0.05)
    assert need.kv_most == 0 and counted.kv_token_bytes == {}
    on_cpu, planned = estimate_cpu(question), need_of(facts, config, "cpu")
    assert planned.fixed == pytest.approx(on_cpu.fixed(2048), rel=0.05)
    assert planned.fixed - 4 * facts.num_parameters == on_cpu.scratch_bytes


@pytest.mark.parametrize("shape", [LLAMA_1B, LLAMA_8B._replace(layers=12)])
def test_what_loads_are_planned_with_is_what_the_loader_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: LlamaShape
) -> None:
    """The manager decides by facts that are kept, without a worker: they are within 5 % of the worker's count."""
    path, config = shape_file(tmp_path / "m.gguf", shape), Config(ctx=8192)
    monkeypatch.setattr(runtime_estimate, "device_memory", lambda _adapter: 80 * GIB)
    question = MemoryQuestion(worker_options(config, path))
    counted = estimate(made_up_gpu(), question)
    need = need_of(read_facts(path, tmp_path), config, counted.tier)
    assert need.fixed == pytest.approx(counted.fixed(8192), rel=0.05)
    assert need.kv_wanted == 8192 * counted.kv_token_bytes["f16"]
    on_cpu = estimate_cpu(question)
    planned = need_of(read_facts(path, tmp_path), config, "cpu")
    assert planned.fixed == pytest.approx(on_cpu.fixed(8192), rel=0.05)
    assert planned.fixed - 4 * read_facts(path, tmp_path).num_parameters == (
        on_cpu.fixed(8192) - on_cpu.weight_bytes
    ), "a step's arrays are counted alike"
    assert planned.kv_wanted == 8192 * on_cpu.kv_token_bytes["f32"]
