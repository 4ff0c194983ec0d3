"""K27 of bug_kinds.md: q, k and v in one tensor, and gate and up, give what they give apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from batches import GREEDY, Row, make_batch
from emberd.gguf.dequant import QUANT_TYPES
from emberd.protocol import Runner, WorkerOptions
from emberd.reference.runner import CpuRunner
from emberd.runtime.runner import GpuRunner
from tiny_gguf import Tensor, random_model, random_rows

WIDTH, HEAD_DIM, FFN, LAYERS = 256, 64, 256, 1
PARTS = {"attn_q": 4 * HEAD_DIM, "attn_k": 2 * HEAD_DIM, "attn_v": 2 * HEAD_DIM}
PARTS |= {"ffn_gate": FFN, "ffn_up": FFN}
AT_ONCE = "Q4_K"  # the type of the quick group


def apart_and_joined(folder: Path, kind: str, rng: np.random.Generator) -> tuple[Path, Path]:
    """Two models of the same weights."""
    apart: dict[str, Tensor | None] = {}
    joined: dict[str, Tensor | None] = {}
    type = GGMLQuantizationType[kind]
    for layer in range(LAYERS):
        raw = {
            name: random_rows(rng, rows, WIDTH, type, std=1 / 16) for name, rows in PARTS.items()
        }
        apart |= {f"blk.{layer}.{name}.weight": (type, rows) for name, rows in raw.items()}
        joined |= {f"blk.{layer}.{name}.weight": None for name in PARTS}
        for name, whole in (("attn_qkv", list(PARTS)[:3]), ("ffn_up", list(PARTS)[3:])):
            rows = np.concatenate([raw[part] for part in whole])
            joined[f"blk.{layer}.{name}.weight"] = (type, rows)
    architecture: Any = "phi3"
    sizes = {"layers": LAYERS, "ffn": FFN}
    return (
        random_model(folder / "apart.gguf", architecture, tensors=apart, **sizes),
        random_model(folder / "joined.gguf", architecture, tensors=joined, **sizes),
    )


def logits(runner: Runner, prompt: list[int]) -> np.ndarray:
    """Of a prompt and of one decode step."""
    row = Row(0, prompt[:-1], 0, [0, 1], admit=GREEDY)
    found = []
    for step in (row, Row(0, prompt[-1:], len(prompt) - 1, [0, 1])):
        runner.submit(make_batch([step], runner.block_size, range(len(step.token_ids))))
        out = runner.collect().logits
        assert out is not None
        found.append(out)
    runner.close()
    return np.concatenate(found)


def options(path: Path) -> WorkerOptions:
    return WorkerOptions(str(path), "gpu", 256, 4 << 20, max_sequences=2, max_batch_tokens=32)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(type.name, marks=[] if type.name == AT_ONCE else pytest.mark.slow)
        for type in QUANT_TYPES
    ],
)
def test_k27_joined_tensors_of_every_type(
    tmp_path: Path, rng: np.random.Generator, kind: str, one_blas_thread: None
) -> None:
    apart, joined = apart_and_joined(tmp_path, kind, rng)
    prompt = rng.integers(0, 256, 9).tolist()
    expected = logits(CpuRunner.load(options(apart)), prompt)
    np.testing.assert_array_equal(logits(CpuRunner.load(options(joined)), prompt), expected)


@pytest.mark.device
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_K"])
def test_k27_joined_tensors_on_the_device(
    tmp_path: Path, rng: np.random.Generator, kind: str
) -> None:
    apart, joined = apart_and_joined(tmp_path, kind, rng)
    prompt = rng.integers(0, 256, 20).tolist()
    expected = logits(GpuRunner.load(options(apart)), prompt)
    np.testing.assert_array_equal(logits(GpuRunner.load(options(joined)), prompt), expected)
