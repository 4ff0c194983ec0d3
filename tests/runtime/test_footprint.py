"""What a load takes on a GPU, told from the header: against what a loaded model has, and on made-up devices."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from emberd.config import Config
from emberd.estimate import MemoryEstimate, MemoryQuestion
from emberd.gguf.encoder import open_encoder
from emberd.gguf.model import ExpertSpec
from emberd.gguf.spec import open_bidirectional, open_model
from emberd.models.fit import judge
from emberd.protocol import WorkerOptions
from emberd.runtime import estimate as runtime_estimate
from emberd.runtime.counting import CountingDevice
from emberd.runtime.decode_attention import decode_partial_shape, decode_splits
from emberd.runtime.device import Device
from emberd.runtime.encoder import GpuEncoder
from emberd.runtime.estimate import estimate
from emberd.runtime.model import load_weights
from emberd.runtime.plan_key import Buckets
from emberd.runtime.runner import GpuRunner
from emberd.runtime.scratch import Scratch, partial_elements, widest_row
from emberd.runtime.text_runner import encoder_sizes
from made_up_gpu import made_up_gpu
from shape_files import LLAMA_1B, LLAMA_8B, shape_file
from tiny_bidirectional import bidirectional_model
from tiny_encoder import encoder_model
from tiny_gguf import random_model

pytestmark = pytest.mark.slow

GIB = 1 << 30

ODD = {"width": 100, "ffn": 37, "heads": 5, "kv_heads": 5, "head_dim": 20}


def asked(path: Path, memory: int | None = None, **options: Any) -> MemoryQuestion:
    return MemoryQuestion(WorkerOptions(str(path), "gpu", **options), memory)


@pytest.mark.device
@pytest.mark.parametrize("sizes", [{}, ODD])
def test_the_estimate_is_what_a_loaded_model_has(
    tmp_path: Path, rng: np.random.Generator, device: Device, sizes: dict[str, Any]
) -> None:
    layers, context = int(rng.integers(1, 4)), int(rng.integers(100, 400))
    path = random_model(tmp_path / "m.gguf", quant="F16", layers=layers, tied=True, **sizes)
    options = {"context_length": context, "max_sequences": 3, "max_batch_tokens": 48}
    told = estimate(device.info, asked(path, **options))
    runner = GpuRunner.load(WorkerOptions(str(path), "gpu", **options))
    try:
        info, device_bytes = runner.info(), runner._device.allocated_bytes
        runner._sampler.allocate_optional()
        runner._logprobs.allocate()
        optional = runner._device.allocated_bytes - device_bytes
    finally:
        runner.close()
    assert (told.weight_bytes, told.kv_bytes) == (info.weight_bytes, info.kv_bytes)
    assert told.context_length == info.context_length == context
    # What grows with the context grows in whole blocks.
    assert told.scratch(context) == pytest.approx(info.scratch_bytes, abs=4 * 3)
    assert told.optional(context) == pytest.approx(optional, abs=4 * 3)
    assert told.tier == info.tier == "software" or not device.info.is_software


@pytest.mark.device
@pytest.mark.parametrize("quant", ["Q6_K", "Q4_K", "IQ2_S"])
def test_weights_in_planes_and_decoded_ones_are_counted_as_they_are_kept(
    tmp_path: Path, device: Device, quant: str
) -> None:
    path = random_model(tmp_path / "m.gguf", quant=quant, layers=1)
    model = open_model(path)
    try:
        weights = load_weights(device, model, 64)
        weights.uploads.wait()
    finally:
        model.close()
    assert estimate(device.info, asked(path)).weight_bytes == weights.nbytes


@pytest.mark.device
def test_an_encoder_takes_what_was_told(tmp_path: Path, device: Device) -> None:
    path = encoder_model(tmp_path / "m.gguf").path
    told = estimate(device.info, asked(path))
    encoder = GpuEncoder.load(WorkerOptions(str(path), "gpu"))
    info = encoder.info()
    encoder.close()
    assert told.weight_bytes == info.weight_bytes
    assert told.scratch(told.context_length) == info.scratch_bytes
    assert told.kv_token_bytes == {} and told.kv_bytes == 0


def test_calls_of_an_encoder_are_no_larger_than_a_grid(tmp_path: Path) -> None:
    """Some kernels have a workgroup for each token."""
    metadata = {"context_length": 100_000}
    path = bidirectional_model(tmp_path / "m.gguf", metadata=metadata).path
    device = CountingDevice(made_up_gpu())
    model = open_bidirectional(path)
    assert encoder_sizes(device, model, WorkerOptions(str(path), "gpu")) == (65535, 65535)
    model.close()


@pytest.fixture
def llama_8b(tmp_path: Path) -> Path:
    return shape_file(tmp_path / "8b.gguf", LLAMA_8B)


def told_on(monkeypatch: pytest.MonkeyPatch, path: Path, memory: int | None) -> MemoryEstimate:
    monkeypatch.setattr(runtime_estimate, "device_memory", lambda _adapter: memory)
    return estimate(made_up_gpu(), asked(path))


def test_defaults_are_those_of_the_devices_class(
    monkeypatch: pytest.MonkeyPatch, llama_8b: Path
) -> None:
    found = {
        memory: told_on(monkeypatch, llama_8b, None if memory is None else memory * GIB)
        for memory in (None, 7, 24, 80)
    }
    tiers = {memory: made.tier for memory, made in found.items()}
    assert tiers == {None: "unknown", 7: "small", 24: "mid", 80: "large"}
    contexts = {memory: made.context_length for memory, made in found.items()}
    # Of 7 GiB the settings' share less the weights is what is left for the cache.
    small = found[7]
    left = small.memory - small.fixed(small.default_context)  # type: ignore[operator]
    assert small.context_length == left // small.kv_token_bytes["f16"] // 32 * 32 < 16384
    assert (contexts[None], contexts[24], contexts[80]) == (32768, 32768, 65536)
    assert found[None].memory is None and found[None].device_memory is None


def test_a_model_that_leaves_no_room_is_refused_with_the_numbers(
    monkeypatch: pytest.MonkeyPatch, llama_8b: Path
) -> None:
    made = told_on(monkeypatch, llama_8b, 5 * GIB)
    assert made.context_length == made.kv_bytes == 0
    assert str(made.fixed(made.default_context)) in made.refusal


def test_matrices_over_a_binding_are_told_with_their_parts(tmp_path: Path) -> None:
    path = shape_file(tmp_path / "1b.gguf", LLAMA_1B)
    whole = estimate(made_up_gpu(), asked(path))
    parts = estimate(made_up_gpu(binding=128 << 20), asked(path))
    assert whole.largest == dataclasses.replace(parts.largest, num_parts=1)
    assert parts.largest.name == "token_embd.weight"
    assert parts.largest.num_parts == -(-parts.largest.nbytes // (128 << 20)) == 2
    # One layer's keys: 8 heads of 64 dims in two bytes each.
    assert parts.kv_binding_tokens["f16"] == (128 << 20) // (8 * 64 * 2)


def test_a_step_is_as_large_as_a_binding_holds(tmp_path: Path) -> None:
    """K29: gate and up of 2 x 8192 values a token, logits of 128256."""
    path = shape_file(tmp_path / "1b.gguf", LLAMA_1B)
    whole = estimate(made_up_gpu(), asked(path))
    assert (whole.step_tokens, whole.sequences, whole.lowered) == (512, 32, "")
    small = estimate(made_up_gpu(binding=1 << 20), asked(path))
    assert (small.step_tokens, small.sequences) == ((1 << 20) // (4 * 2 * 8192), 2)
    assert "tokens a step 512 -> 16" in small.lowered and str(1 << 20) in small.lowered
    assert not small.refusal and 0 < small.context_length < whole.context_length
    assert "tokens a step 512 -> 16" in judge(small, Config()).reason


def test_what_no_binding_holds_is_a_verdict_with_the_reason(tmp_path: Path) -> None:
    path = shape_file(tmp_path / "1b.gguf", LLAMA_1B)
    told = judge(estimate(made_up_gpu(binding=48 << 10), asked(path)), Config())
    assert told.verdict == "does not fit" and "bytes in one binding" in told.reason
    assert set(told.largest.values()) == {0}


def test_texts_of_an_encoder_are_as_long_as_a_binding_holds(tmp_path: Path) -> None:
    """K29: of `up`, the widest, a token takes four bytes a value."""
    path = encoder_model(tmp_path / "m.gguf").path
    model = open_encoder(path)
    spec = model.spec
    model.close()
    token = 4 * max(3 * spec.hidden_size, spec.ffn_size)
    limit = token * (spec.context_length // 2)
    small = estimate(made_up_gpu(binding=limit), asked(path))
    assert (small.context_length, small.step_tokens) == (spec.context_length // 2,) * 2
    assert not small.refusal and small.max_context == spec.context_length
    refused = estimate(made_up_gpu(binding=limit), asked(path, context_length=spec.context_length))
    told = judge(refused, Config())
    assert told.verdict == "does not fit" and str(token * spec.context_length) in told.reason


@pytest.mark.parametrize("ffn", [64, 96, 1024, 1021])
@pytest.mark.parametrize("sizes", [{}, {"width": 601}, {"heads": 1, "kv_heads": 1, "head_dim": 2}])
@pytest.mark.parametrize(
    "experts", [None, ExpertSpec(8, 2, True, 1.0, 0), ExpertSpec(4, 3, True, 1.0, 509)]
)
def test_the_widest_row_is_that_of_the_largest_buffer(
    tmp_path: Path, ffn: int, sizes: dict[str, Any], experts: ExpertSpec | None
) -> None:
    model = open_model(random_model(tmp_path / "m.gguf", layers=1, ffn=ffn, **sizes))
    spec = dataclasses.replace(model.spec, experts=experts)
    model.close()
    device = CountingDevice(made_up_gpu())
    Scratch(device, SimpleNamespace(spec=spec), 7, 1)  # type: ignore[arg-type]
    sizes = [max(n) for label, n in device._by_label.items() if label not in ("partial", "logits")]
    assert max(sizes) == 7 * 4 * widest_row(spec)


def test_a_refused_context_says_what_it_needs_and_what_would_hold_it(tmp_path: Path) -> None:
    path = shape_file(tmp_path / "1b.gguf", LLAMA_1B)
    context, token = 4096, 2 * 16 * 8 * 64 * 2
    told = estimate(
        made_up_gpu(), asked(path, context_length=context, kv_memory=context * token - 1)
    )
    assert str(context * token) in told.refusal and "--kv-type q8_0" in told.refusal
    less = estimate(made_up_gpu(), asked(path, context_length=context, kv_memory=token * 32))
    assert less.refusal and "q8_0" not in less.refusal


def test_partial_results_of_every_step_have_room(tmp_path: Path) -> None:
    """Also where as many decode rows as there may be are no power of two."""
    device = CountingDevice(made_up_gpu())
    model = open_model(random_model(tmp_path / "m.gguf", heads=3, kv_heads=3, width=96))
    model.close()
    spec = dataclasses.replace(model.spec, context_length=4096)
    for most in range(1, 40):
        splits = partial(decode_splits, device, num_kv_heads=3, context=4096)
        keys = Buckets(64, most, lambda rows, _: 1, lambda rows, context: False).likely()
        rows = {key.decode_rows for key in keys if key.decode_rows}
        shape = {"num_heads": 3, "head_dim": spec.head_dim}
        needed = [decode_partial_shape(rows=n, splits=splits(rows=n), **shape) for n in rows]
        assert max(map(math.prod, needed)) <= partial_elements(device, spec, most), most
