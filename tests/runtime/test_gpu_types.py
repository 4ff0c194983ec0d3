"""Whole models in types of each sort on the GPU against NumPy, among them one that is loaded as Q8_0."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from batches import GREEDY, Row, make_batch
from emberd.errors import DeviceError
from emberd.estimate import MemoryQuestion
from emberd.protocol import Runner, WorkerOptions
from emberd.reference.runner import CpuRunner
from emberd.runtime.estimate import estimate
from emberd.runtime.runner import GpuRunner
from made_up_gpu import made_up_gpu
from tiny_gguf import byte_vocab, odd_feed_forward, random_model

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


def options(path: Path) -> WorkerOptions:
    return WorkerOptions(str(path), "gpu", 256, 4 << 20, max_sequences=2, max_batch_tokens=64)


def test_heads_that_kernels_do_not_take_are_refused_and_the_cpu_takes_them(tmp_path: Path) -> None:
    """Before anything is uploaded, and by `emberd fit`."""
    sizes, what = {"heads": 2, "kv_heads": 2, "head_dim": 514}, "attention heads of 514 dims"
    path = random_model(tmp_path / "m.gguf", quant="F16", layers=1, width=64, **sizes)  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match=rf"{what} are not supported .* cpu device"):
        GpuRunner.load(options(path))
    assert what in estimate(made_up_gpu(), MemoryQuestion(options(path))).refusal
    assert np.isfinite(logits(CpuRunner.load(options(path)), list(range(20)))).all()


@pytest.mark.parametrize("ffn", [100, 320])
def test_quant_types_around_a_feed_forward_of_floats(
    tmp_path: Path, rng: np.random.Generator, ffn: int
) -> None:
    """Rows of the down projection that are no whole quant blocks are F16, as llama.cpp's tools leave them."""
    path = odd_feed_forward(tmp_path / "m.gguf", rng, ffn)
    prompt = rng.integers(0, 256, 40).tolist()
    ours, reference = (logits(kind.load(options(path)), prompt) for kind in (GpuRunner, CpuRunner))
    assert np.linalg.norm(ours - reference) / np.linalg.norm(reference) < INT8


@pytest.mark.parametrize("quant", ["F16", "Q8_0"])
@pytest.mark.parametrize("tied", [False, True])
def test_vocabularies_of_an_odd_number_of_tokens(
    tmp_path: Path, rng: np.random.Generator, quant: str, tied: bool
) -> None:
    """Logits, and the greedy token of each step: the last token may win."""
    vocab = byte_vocab(size=301)
    path = random_model(tmp_path / "m.gguf", quant=quant, layers=1, tied=tied, vocab=vocab)
    prompt = rng.integers(0, 301, 40).tolist()
    ours, reference = (logits(kind.load(options(path)), prompt) for kind in (GpuRunner, CpuRunner))
    assert ours.shape == (40, 301)
    assert np.linalg.norm(ours - reference) / np.linalg.norm(reference) < INT8
    runner = GpuRunner.load(options(path))
    for place, token in enumerate(prompt[:8]):
        row = Row(0, [token], place, [0], admit=GREEDY if place == 0 else None)
        runner.submit(make_batch([row], runner.block_size, [0]))
        out = runner.collect()
        assert out.logits is not None and out.token_ids.tolist() == [out.logits[0].argmax()]
    runner.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "IQ4_XS", "MXFP4", "IQ2_S"])
def test_a_model_of_one_type(
    tmp_path: Path,
    rng: np.random.Generator,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    path = random_model(tmp_path / "m.gguf", quant=kind, layers=1, ffn=256)
    prompt = rng.integers(0, 256, 40).tolist()
    with caplog.at_level(logging.INFO):
        ours = logits(GpuRunner.load(options(path)), prompt)
    reference = logits(CpuRunner.load(options(path)), prompt)
    assert np.linalg.norm(ours - reference) / np.linalg.norm(reference) < INT8
    said = f"m.gguf: tensors of type {kind} become Q8_0" in caplog.text
    assert said == (kind == "IQ2_S")
