"""K29 of bug_kinds.md: small binding limits and many rows give the numbers they give without, on the adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batches import GREEDY, Row, make_batch
from emberd.errors import DeviceError
from emberd.protocol import Runner, WorkerOptions
from emberd.reference.runner import CpuRunner
from emberd.runtime.runner import GpuRunner
from tiny_gguf import byte_vocab, random_model

pytestmark = [pytest.mark.device, pytest.mark.slow]

MIB = 1 << 20
TOLERANCE_INT8 = 3e-2
"""‖out − ref‖ / ‖ref‖ of the logits of a layer with int8 activations against float32."""
MANY_ROWS = 70_000
"""More than the 65535 workgroups that a side of a dispatch may have."""


def options_for(path: Path) -> WorkerOptions:
    return WorkerOptions(str(path), "gpu", 256, 4 * MIB, max_sequences=2, max_batch_tokens=32)


def logits(runner: Runner, prompt: list[int]) -> NDArray[np.float32]:
    """Of each token of a prefilled prompt and of one decode step."""
    row = Row(0, prompt[:-1], 0, [2, 0, 1], admit=GREEDY)
    found = []
    for step in (row, Row(0, prompt[-1:], len(prompt) - 1, [2, 0, 1])):
        runner.submit(make_batch([step], runner.block_size, range(len(step.token_ids))))
        output = runner.collect()
        assert output.logits is not None
        assert output.token_ids[0] == output.logits[-1].argmax()
        found.append(output.logits)
    return np.concatenate(found)


def run(runner: Runner, prompt: list[int]) -> NDArray[np.float32]:
    try:
        return logits(runner, prompt)
    finally:
        runner.close()


def distance(out: NDArray[np.float32], ref: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(out - ref) / np.linalg.norm(ref))


@pytest.mark.parametrize(
    "shape",
    [
        {"quant": "F32", "width": 1024, "embedding_quant": "F32"},  # an embedding of 2 MiB
        {"quant": "Q8_0", "width": 64, "vocab": byte_vocab(size=MANY_ROWS)},
        {"quant": "Q4_K", "embedding_quant": "F16", "tied": True, "vocab": byte_vocab(size=4096)},
    ],
    ids=["2 MiB embedding", "70000 rows", "tied F16"],
)
def test_k29_a_small_binding_limit_changes_no_number(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, shape: dict[str, Any]
) -> None:
    """K29: with the limit at 1 MiB as without it, and both as NumPy computes."""
    path = random_model(tmp_path / "model.gguf", layers=1, ffn=256, **shape)
    options = options_for(path)
    prompt = rng.integers(0, 256, 20).tolist()
    free = run(GpuRunner.load(options), prompt)
    monkeypatch.setenv("EMBERD_MAX_BINDING_BYTES", str(MIB))
    limited = run(GpuRunner.load(options), prompt)
    reference = run(CpuRunner.load(options), prompt)
    assert np.array_equal(limited, free)
    assert distance(free, reference) < TOLERANCE_INT8


def test_k29_a_vocabulary_of_262144_rows_over_the_limit(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K29: an embedding of 160 MiB, by the device's own limit (128 MiB on software) and by 1 MiB, which the logits
    of one sequence fill: that many run at a time."""
    embedding = rng.standard_normal((262_144, 160), np.float32)
    path = random_model(
        tmp_path / "model.gguf",
        layers=1,
        width=160,
        ffn=256,
        tied=True,
        tensors={"token_embd.weight": embedding},
    )
    options = options_for(path)
    prompt = rng.integers(0, 262_144, 6).tolist()
    free = run(GpuRunner.load(options), prompt)
    monkeypatch.setenv("EMBERD_MAX_BINDING_BYTES", str(MIB))
    limited = GpuRunner.load(options)
    assert limited.max_sequences == 1
    assert np.array_equal(run(limited, prompt), free)
    assert distance(free, run(CpuRunner.load(options), prompt)) < TOLERANCE_INT8


def test_k29_a_step_shrinks_to_what_a_binding_holds(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K29: with the settings' own sizes, of which 512 rows of 2 x 8192 activations would need 32 MiB."""
    path = random_model(tmp_path / "model.gguf", layers=1, ffn=8192)
    options = WorkerOptions(str(path), "gpu", 256, 4 * MIB)
    prompt = rng.integers(0, 256, 14).tolist()
    free = run(GpuRunner.load(options), prompt)
    monkeypatch.setenv("EMBERD_MAX_BINDING_BYTES", str(MIB))
    limited = GpuRunner.load(options)
    assert (limited.max_batch_tokens, limited.max_sequences) == (16, 16)
    assert (limited.info().max_batch_tokens, limited.info().max_sequences) == (16, 16)
    assert distance(run(limited, prompt), free) < TOLERANCE_INT8


def test_k29_what_cannot_be_split_is_a_load_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K29: one row of 2 x 8192 activations needs 64 KiB in one binding; the message has need and limit."""
    path = random_model(tmp_path / "model.gguf", layers=1, ffn=8192)
    monkeypatch.setenv("EMBERD_MAX_BINDING_BYTES", str(48 << 10))
    with pytest.raises(DeviceError, match=rf" {64 << 10} bytes.* {48 << 10}"):
        GpuRunner.load(options_for(path)).close()
