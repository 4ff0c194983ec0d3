"""Every architecture on the CPU device against llama.cpp, on tiny random models of the same file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from arch_models import CASES, USUAL, Sizes, architecture_model
from batches import Row, make_batch
from emberd.gguf.architectures import ARCHITECTURES
from emberd.protocol import WorkerOptions
from emberd.reference.runner import CpuRunner
from oracle import expected_logprobs
from tiny_gguf import random_model

LENGTHS = (1, 2, 17, 40, 90)
CONTEXT = 256
TOLERANCE = 1e-2
"""llama.cpp's own GELU and exponentials are good to about 2e-3; one switch the other way gives 0.1 and more."""


def test_every_architecture_has_a_case() -> None:
    """But those whose attention looks both ways, which test_bidirectional.py has."""
    generating = {name for name, architecture in ARCHITECTURES.items() if architecture.causal}
    assert {name.split(",")[0] for name in CASES} == generating


ODD = Sizes(width=100, ffn=37, heads=5, kv_heads=5, head_dim=20, shared_ffn=53)
ODD_CASES = (
    "llama",
    "llama, experts (Mixtral)",
    "qwen3",
    "gemma2",
    "gpt2",
    "phi3",
    "qwen2moe",
    "olmo2",
    "smollm3",
    "starcoder2",
    "phi2",
    "falcon, two norms (40B)",
    "gpt-oss",
)
"""With sizes that are a multiple of nothing; tests/runtime/test_gpu_architectures.py has such models on a GPU."""

LARGE_HEADS = {"gemma2": 320, "gemma3": 320, "qwen3": 150}
"""Dims of a head."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        *(pytest.param(name, USUAL, id=name) for name in CASES),
        *(pytest.param(name, ODD, id=f"{name}, odd sizes") for name in ODD_CASES),
        *(
            pytest.param(name, Sizes(heads=3, kv_heads=1, head_dim=dims), id=f"{name}, large heads")
            for name, dims in LARGE_HEADS.items()
        ),
    ],
)
def test_logprobs_equal_llama_cpp_s(
    name: str, sizes: Sizes, tmp_path: Path, rng: np.random.Generator
) -> None:
    check(architecture_model(tmp_path / "m.gguf", name, sizes=sizes), rng)


@pytest.mark.slow
def test_products_side_by_side_may_have_biases_in_part(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    biases = {"blk.0.attn_q": 256, "blk.1.attn_k": 128, "blk.1.attn_v": 128}
    vectors = {f"{name}.bias": rng.normal(0, 1, n).astype(np.float32) for name, n in biases.items()}
    check(random_model(tmp_path / "m.gguf", tensors=vectors), rng)


@pytest.mark.slow
def test_yarn_has_no_second_factor_of_attention(tmp_path: Path, rng: np.random.Generator) -> None:
    """The converter writes the maker's, and llama.cpp takes the one that follows from the scale."""
    metadata = {f"llama.{key}": value for key, value in CASES["llama, YaRN"].items()}
    metadata["llama.rope.scaling.yarn_attn_factor"] = 1.3
    check(random_model(tmp_path / "m.gguf", metadata=metadata), rng)


def check(path: Path, rng: np.random.Generator) -> None:
    ids = rng.integers(0, 256, max(LENGTHS)).tolist()
    expected = expected_logprobs(path, ids, LENGTHS, context=CONTEXT)
    runner = CpuRunner.load(WorkerOptions(str(path), "cpu", context_length=CONTEXT))
    row = Row(0, ids, 0, list(range(CONTEXT // runner.block_size)), sample=False)
    runner.submit(make_batch([row], runner.block_size, [length - 1 for length in LENGTHS]))
    logits = runner.collect().logits
    assert logits is not None
    found = logits.astype(np.float64)
    found -= np.log(np.exp(found).sum(axis=1, keepdims=True))
    runner.close()
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
