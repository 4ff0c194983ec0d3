"""Every architecture on the GPU against NumPy, which is held to llama.cpp in tests/reference/test_architectures.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from arch_models import CASES, architecture_model
from batches import GREEDY, Row, make_batch
from emberd.protocol import Runner, WorkerOptions
from emberd.reference.runner import CpuRunner
from emberd.runtime.runner import GpuRunner

pytestmark = [pytest.mark.device, pytest.mark.slow]

FLOAT = 3e-3
"""‖out − ref‖ / ‖ref‖ of logits with float weights; the KV cache of the GPU is f16."""
INT8 = 4e-2
"""With int8 activations into every product."""

PREFILL, DECODE = 45, 4
CONTEXT = 256


def options(path: Path) -> WorkerOptions:
    return WorkerOptions(
        str(path),
        "gpu",
        context_length=CONTEXT,
        kv_memory=16 << 20,
        max_sequences=4,
        max_batch_tokens=32,
    )


def logits_of(runner: Runner, ids: list[int]) -> np.ndarray:
    """Prefill in two chunks, then one token a step; logits of every position."""
    blocks = list(range(CONTEXT // runner.block_size))
    starts = [0, 31, *range(PREFILL, PREFILL + DECODE)]
    found = []
    for start, end in zip(starts, [*starts[1:], PREFILL + DECODE], strict=True):
        row = Row(0, ids[start:end], start, blocks, False, GREEDY if start == 0 else None)
        runner.submit(make_batch([row], runner.block_size, list(range(end - start))))
        out = runner.collect().logits
        assert out is not None
        found.append(out)
    return np.concatenate(found)


@pytest.mark.parametrize("quant", ["F32", "Q8_0"])
@pytest.mark.parametrize("name", CASES)
def test_logits_agree_with_the_reference(
    name: str, quant: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    path = architecture_model(tmp_path / "m.gguf", name, quant=quant)
    ids = rng.integers(0, 256, PREFILL + DECODE).tolist()
    gpu, cpu = GpuRunner.load(options(path)), CpuRunner.load(options(path))
    out, ref = logits_of(gpu, ids), logits_of(cpu, ids)
    for runner in (gpu, cpu):
        runner.close()
    error = np.linalg.norm(out - ref, axis=1) / np.linalg.norm(ref, axis=1)
    assert np.median(error) < (FLOAT if quant == "F32" else INT8), error
    # int8 may choose another expert where two are nearly as likely: few tokens, and not all of them.
    assert np.mean(error > 10 * (FLOAT if quant == "F32" else INT8)) < 0.1, error
