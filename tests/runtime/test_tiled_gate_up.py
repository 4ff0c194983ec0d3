"""A model whose prompts go through tiles, gate and up in one dispatch with the activation, against NumPy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from batches import GREEDY, Row, make_batch
from emberd.protocol import Runner, WorkerOptions
from emberd.reference.runner import CpuRunner
from emberd.runtime import activations, tune
from emberd.runtime.device import Device, open_device
from emberd.runtime.kernel import Kernels
from emberd.runtime.linear import LinearTable, default_table
from emberd.runtime.matmul import MatmulTable, MatmulTile
from emberd.runtime.runner import GpuRunner
from tiny_gguf import random_model

pytestmark = pytest.mark.device

INT8 = 3e-2
"""As in test_gpu_runner.py."""


def last_logits(runner: Runner, prompt: list[int]) -> np.ndarray:
    blocks = list(range(-(-len(prompt) // runner.block_size)))
    runner.submit(make_batch([Row(0, prompt, 0, blocks, admit=GREEDY)], runner.block_size, [0]))
    out = runner.collect().logits
    assert out is not None
    runner.close()
    return out


FINE = 5e-4


@pytest.mark.slow
@pytest.mark.parametrize("fine", [False, True])
def test_prompts_through_tiles(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, fine: bool
) -> None:
    """Of a usual model, and of a narrow one."""
    monkeypatch.setattr(activations, "NARROW", 1 << 30 if fine else 0)
    path = random_model(tmp_path / "m.gguf", quant="Q8_0", layers=1)
    tile = ((1, MatmulTile(16, 64, 4)),)

    def rules(device: Device) -> LinearTable:
        usual = default_table(device)
        return LinearTable(replace(usual.matvec, tokens=4), MatmulTable(tile, tile))

    monkeypatch.setattr(tune, "default_table", rules)
    monkeypatch.setenv("EMBERD_TUNE", "0")
    options = WorkerOptions(str(path), "gpu", 64, 4 << 20, max_sequences=1, max_batch_tokens=32)
    prompt = rng.integers(0, 200, 21).tolist()
    kernels = Kernels(open_device("gpu"))
    found = last_logits(GpuRunner.load(options, None, kernels), prompt)
    labels = [kernel.label for kernel in kernels.all()]
    tiled = [label for label in labels if "tile_gate_up" in label]
    assert tiled and all(f"fine{fine}" in label for label in tiled)
    assert not any(label.startswith("silu_mul") for label in labels)
    expected = last_logits(CpuRunner.load(replace(options, device="cpu")), prompt)
    assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < (FINE if fine else INT8)
