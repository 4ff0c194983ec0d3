"""Whole models in types of each sort on the GPU against NumPy, among them one that is loaded as Q8_0."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from batches import GREEDY, Row, make_batch
from emberd.errors import DeviceError
from emberd.protocol import Runner, WorkerOptions
from emberd.reference.runner import CpuRunner
from emberd.runtime.runner import GpuRunner
from tiny_gguf import random_model

pytestmark = pytest.mark.device

INT8 = 3e-2
"""As in test_gpu_runner.py."""


def logits(runner: Runner, prompt: list[int]) -> np.ndarray:
    """Of a prompt by tiles and of one decode step by matvec."""
    row = Row(0, prompt[:-1], 0, [0, 1, 2], admit=GREEDY)
    found = []
    for step in (row, Row(0, prompt[-1:], len(prompt) - 1, [0, 1, 2])):
        runner.submit(make_batch([step], runner.block_size, range(len(step.token_ids))))
        out = runner.collect().logits
        assert out is not None
        found.append(out)
    runner.close()
    return np.concatenate(found)


@pytest.mark.parametrize(
    ("shape", "what"),
    [({"width": 80}, "hidden state of 80"), ({"ffn": 72}, "feed-forward state of 72")],
)
def test_widths_that_kernels_do_not_take_are_refused_and_the_cpu_takes_them(
    tmp_path: Path, shape: dict[str, int], what: str
) -> None:
    """Only floats can have such rows: quant blocks hold 32 weights or 256."""
    path = random_model(tmp_path / "m.gguf", quant="F16", layers=1, **shape)  # type: ignore[arg-type]
    options = WorkerOptions(str(path), "gpu", 256, 4 << 20, max_sequences=2, max_batch_tokens=64)
    with pytest.raises(DeviceError, match=rf"{what} values .* multiple of 32 .* cpu device"):
        GpuRunner.load(options)
    assert np.isfinite(logits(CpuRunner.load(options), list(range(20)))).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "IQ4_XS", "MXFP4", "IQ2_S"])
def test_a_model_of_one_type(
    tmp_path: Path,
    rng: np.random.Generator,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    path = random_model(tmp_path / "m.gguf", quant=kind, layers=1, ffn=256)
    options = WorkerOptions(str(path), "gpu", 256, 4 << 20, max_sequences=2, max_batch_tokens=64)
    prompt = rng.integers(0, 256, 40).tolist()
    with caplog.at_level(logging.INFO):
        ours = logits(GpuRunner.load(options), prompt)
    reference = logits(CpuRunner.load(options), prompt)
    assert np.linalg.norm(ours - reference) / np.linalg.norm(reference) < INT8
    said = f"m.gguf: tensors of type {kind} become Q8_0" in caplog.text
    assert said == (kind == "IQ2_S")
