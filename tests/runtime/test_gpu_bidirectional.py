"""EmbeddingGemma on the device: against NumPy and llama.cpp, and what it takes there."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from emberd.estimate import MemoryQuestion
from emberd.protocol import WorkerOptions
from emberd.reference.bidirectional import CpuBidirectional
from emberd.runtime.bidirectional import GpuBidirectional, load_encoder
from emberd.runtime.device import Device
from emberd.runtime.encoder import GpuEncoder
from emberd.runtime.estimate import estimate
from oracle import expected_vectors
from tiny_bidirectional import CONTEXT, bidirectional_model
from tiny_encoder import encoder_model
from tolerance import relative_error

pytestmark = pytest.mark.device

ERROR = {"F32": 2e-3, "F16": 2e-3, "Q8_0": 0.06}  # keys and values are f16; int8 activations


@pytest.mark.parametrize("quant", ERROR)
def test_states_are_the_cpus(
    device: Device, tmp_path: Path, rng: np.random.Generator, quant: str
) -> None:
    path = bidirectional_model(
        tmp_path / "m.gguf", quant=quant, seed=int(rng.integers(1 << 30))
    ).path
    options = WorkerOptions(str(path), device="gpu", max_batch_tokens=160)
    cpu, gpu = CpuBidirectional.load(options), GpuBidirectional.load(options)
    assert (gpu.context_length, gpu.max_batch_tokens) == (CONTEXT, 160)
    assert gpu.info().num_blocks == 0 and gpu.info().kv_bytes == 0
    # A smaller call after a larger one, as many texts as tokens, a text of the whole context.
    for lengths in ([1], [CONTEXT, 32], [5, 2, 9], [1] * 40, [17, 33, 64, 1]):
        ids = rng.integers(0, 500, sum(lengths)).astype(np.int32)
        starts = np.cumsum([0, *lengths]).astype(np.int32)
        found, expected = gpu.hidden_states(ids, starts), cpu.hidden_states(ids, starts)
        assert found.shape == expected.shape
        for start, end in pairwise(starts):
            assert relative_error(found[start:end], expected[start:end]) < ERROR[quant]
    gpu.close()


@pytest.mark.parametrize(("dense", "window"), [(True, 9), (False, 8)])
def test_vectors_equal_llama_cpp_s(
    device: Device, tmp_path: Path, rng: np.random.Generator, dense: bool, window: int
) -> None:
    path = bidirectional_model(tmp_path / "m.gguf", dense=dense, window=window).path
    texts = [rng.integers(0, 500, length).tolist() for length in (1, 5, 17, 90)]
    gpu = GpuBidirectional.load(WorkerOptions(str(path), device="gpu"))
    for ids, expected in zip(texts, expected_vectors(path, texts), strict=True):
        states = gpu.hidden_states(np.array(ids, np.int32), np.array([0, len(ids)], np.int32))
        vector = states.mean(0) if gpu.dense is None else gpu.dense @ states.mean(0)
        assert relative_error(vector, expected) < 4e-3
    gpu.close()


def test_sizes_that_are_a_multiple_of_nothing(
    device: Device, tmp_path: Path, rng: np.random.Generator
) -> None:
    tiny = bidirectional_model(tmp_path / "m.gguf", width=44, ffn=37)
    gpu = GpuBidirectional.load(WorkerOptions(str(tiny.path), device="gpu"))
    ids = rng.integers(0, 500, 50).tolist()
    found = gpu.hidden_states(np.array(ids, np.int32), np.array([0, 20, 50], np.int32))
    assert found.shape == (50, 44)
    assert relative_error(found[:20], tiny.states(ids[:20])) < ERROR["F32"]
    assert relative_error(found[20:], tiny.states(ids[20:])) < ERROR["F32"]
    gpu.close()


def test_it_takes_what_was_told(tmp_path: Path, device: Device) -> None:
    path = bidirectional_model(tmp_path / "m.gguf", quant="Q8_0").path
    options = WorkerOptions(str(path), "gpu", context_length=100)
    told = estimate(device.info, MemoryQuestion(options))
    gpu = GpuBidirectional.load(options)
    info = gpu.info()
    gpu.close()
    assert (told.weight_bytes, told.context_length) == (info.weight_bytes, info.context_length)
    assert told.scratch(told.context_length) == info.scratch_bytes
    assert told.kv_token_bytes == {} and told.kv_bytes == 0 and not told.refusal


def test_the_file_says_which_runner_it_takes(tmp_path: Path, device: Device) -> None:
    files = [
        bidirectional_model(tmp_path / "a.gguf").path,
        encoder_model(tmp_path / "b.gguf").path,
    ]
    for path, kind in zip(files, (GpuBidirectional, GpuEncoder), strict=True):
        runner = load_encoder(WorkerOptions(str(path), "gpu"))
        assert type(runner) is kind
        runner.close()
