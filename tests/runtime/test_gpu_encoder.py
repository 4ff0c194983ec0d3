"""Encoders on the device against NumPy, and states of generative models read back from a step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from batches import GREEDY, Row, make_batch
from emberd.errors import DeviceError
from emberd.protocol import WorkerOptions
from emberd.reference.encoder import CpuEncoder
from emberd.reference.runner import CpuRunner
from emberd.runtime.device import Device
from emberd.runtime.encoder import GpuEncoder
from emberd.runtime.runner import GpuRunner
from tiny_encoder import encoder_model
from tiny_gguf import random_model
from tolerance import check, relative_error

pytestmark = pytest.mark.device


@pytest.mark.parametrize("quant", ["F32", "F16", "Q8_0", "Q4_0"])
def test_states_are_the_cpus(
    device: Device, tmp_path: Path, rng: np.random.Generator, quant: str
) -> None:
    tiny = encoder_model(tmp_path / "tiny.gguf", quant=quant, seed=int(rng.integers(1 << 30)))
    options = WorkerOptions(str(tiny.path), device="gpu", max_batch_tokens=96)
    cpu, gpu = CpuEncoder.load(options), GpuEncoder.load(options)
    assert (gpu.context_length, gpu.max_batch_tokens) == (64, 96)
    assert gpu.info().device_kind == "gpu" and gpu.info().num_blocks == 0
    for lengths in ([1], [64, 32], [5, 2, 9], [17]):  # a smaller call after a larger one
        ids = rng.integers(0, 40, sum(lengths)).astype(np.int32)
        starts = np.cumsum([0, *lengths]).astype(np.int32)
        found, expected = gpu.hidden_states(ids, starts), cpu.hidden_states(ids, starts)
        if quant in ("F32", "F16"):
            check(found, expected, "float")
        else:  # int8 activations, layer by layer
            assert relative_error(found, expected) < 0.06
    gpu.close()


def test_a_text_does_not_depend_on_its_company(
    device: Device, tmp_path: Path, rng: np.random.Generator
) -> None:
    tiny = encoder_model(tmp_path / "tiny.gguf")
    gpu = GpuEncoder.load(WorkerOptions(str(tiny.path), device="gpu"))
    ids = rng.integers(0, 40, 50).astype(np.int32)
    together = gpu.hidden_states(ids, np.array([0, 20, 50], np.int32))
    alone = gpu.hidden_states(ids[20:], np.array([0, 30], np.int32))
    check(together[20:], alone, "float")
    check(alone, tiny.states(ids[20:].tolist()), "float")
    gpu.close()


@pytest.mark.parametrize(
    ("width", "ffn", "heads"), [(48, 37, 4), (72, 100, 6), (36, 96, 3), (35, 37, 5)]
)
def test_sizes_that_are_no_whole_runs(
    device: Device, tmp_path: Path, rng: np.random.Generator, width: int, ffn: int, heads: int
) -> None:
    path = tmp_path / "tiny.gguf"
    tiny = encoder_model(path, quant="F16", width=width, ffn=ffn, heads=heads)
    ids = rng.integers(0, 40, 17).astype(np.int32)
    gpu = GpuEncoder.load(WorkerOptions(str(path), device="gpu"))
    check(gpu.hidden_states(ids, np.array([0, 17], np.int32)), tiny.states(ids.tolist()), "float")
    gpu.close()


def test_sizes_that_kernels_lack_are_refused(device: Device, tmp_path: Path) -> None:
    path = encoder_model(tmp_path / "tiny.gguf", width=2056, ffn=32, heads=1).path
    with pytest.raises(DeviceError, match=r"heads of 2056 dims"):
        GpuEncoder.load(WorkerOptions(str(path), device="gpu"))


@pytest.mark.parametrize(("architecture", "width"), [("qwen3", 64), ("gemma3", 64), ("qwen3", 52)])
def test_states_of_a_generative_model_are_the_cpus(
    device: Device, tmp_path: Path, rng: np.random.Generator, architecture: str, width: int
) -> None:
    """In one step with a row that samples, whose token is the same as without states."""
    path = random_model(tmp_path / "tiny.gguf", architecture, width=width, ffn=96, head_dim=32)  # type: ignore[arg-type]
    options = WorkerOptions(str(path), device="gpu", context_length=64, max_sequences=3)
    outputs = []
    ids = rng.integers(0, 500, (2, 9)).tolist()
    for runner in (CpuRunner.load(options), GpuRunner.load(options)):
        rows = [
            Row(2, [7], 0, [2], sample=False, admit=GREEDY),  # of one token: run as decode rows are
            Row(0, ids[0], 0, [1], sample=False, admit=GREEDY),
            Row(1, ids[1], 0, [0], admit=GREEDY),
        ]
        batch = make_batch(rows, runner.block_size)
        batch.hidden_at = np.array([0, 1, 5, 9], np.int32)
        runner.submit(batch)
        outputs.append(runner.collect())
        runner.close()
    cpu, gpu = outputs
    assert cpu.hidden is not None and gpu.hidden is not None
    assert gpu.hidden.shape == (4, width)
    check(gpu.hidden, cpu.hidden, "f16")
    assert gpu.token_ids.tolist() == cpu.token_ids.tolist()
