"""KV caches in q8_0: rounding as the gguf package's, runners beside f16, when `auto` takes it, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from batches import Row, make_batch
from emberd.errors import ModelLoadError
from emberd.estimate import MemoryEstimate, MemoryQuestion
from emberd.protocol import Runner, WorkerOptions
from emberd.reference.estimate import estimate as estimate_cpu
from emberd.reference.kv_cache import BLOCK_SIZE, KVCache
from emberd.reference.kv_q8 import Q8Array
from emberd.reference.runner import CpuRunner
from emberd.runtime.estimate import estimate
from emberd.runtime.runner import GpuRunner
from made_up_gpu import made_up_gpu
from shape_files import LLAMA_1B, shape_file
from tiny_gguf import random_model
from tolerance import relative_error

NUM_TOKENS = 60

LOGITS = 3e-2
"""‖out − ref‖ / ‖ref‖ of logits with such a cache against float32: random layers and the last norm magnify 1e-2."""


def options(path: Path, **changes: Any) -> WorkerOptions:
    sizes = {"context_length": 256, "kv_memory": 8 << 20, "max_sequences": 4}
    return WorkerOptions(str(path), "gpu", max_batch_tokens=64, **(sizes | changes))


def logits_of(runner: Runner, token_ids: Sequence[int], blocks: list[int]) -> np.ndarray:
    """Of every position, computed in two chunks."""
    found = []
    for part in (slice(0, 40), slice(40, NUM_TOKENS)):
        row = Row(0, list(token_ids[part]), part.start, blocks, sample=False)
        count = len(token_ids[part])
        runner.submit(make_batch([row], runner.block_size, list(range(count))))
        out = runner.collect().logits
        assert out is not None
        found.append(out)
    return np.concatenate(found)


def test_rounding_is_that_of_the_gguf_package(rng: np.random.Generator) -> None:
    x = rng.standard_normal((5, 3, 96), np.float32)
    x[1, 0, :32] = 0
    made = Q8Array.of(x)
    theirs = gguf.quants.quantize(x.reshape(15, 96), gguf.GGMLQuantizationType.Q8_0)
    blocks = theirs.reshape(5, 3, 3, 34)
    np.testing.assert_array_equal(made.scales, blocks[..., :2].copy().view(np.float16)[..., 0])
    difference = made.q.reshape(5, 3, 3, 32) - blocks[..., 2:].view(np.int8).astype(int)
    assert np.abs(difference).max() <= 1 and np.count_nonzero(difference) <= 2  # ties alone
    assert np.abs(made[:] - x).max() <= np.abs(x).max() / 127


@pytest.mark.slow
def test_blocks_in_q8_0_come_back_as_they_were(tmp_path: Path, rng: np.random.Generator) -> None:
    runner = CpuRunner.load(options(random_model(tmp_path / "m.gguf"), kv_type="q8_0"))
    spec = runner.weights.spec
    runner.close()
    cache = KVCache.allocate(spec, 4 * BLOCK_SIZE, "q8_0")
    for array in cache.k + cache.v:
        array[np.arange(4 * BLOCK_SIZE)] = rng.standard_normal(array[:].shape, np.float32)
    data = cache.read([2, 0])
    assert data.shape == (2, cache.nbytes // 4)
    before = cache.k[1][2 * BLOCK_SIZE : 3 * BLOCK_SIZE]
    cache.write([1, 3], data)
    np.testing.assert_array_equal(cache.k[1][BLOCK_SIZE : 2 * BLOCK_SIZE], before)


@pytest.mark.slow
def test_logits_hardly_change_on_the_cpu(tmp_path: Path, rng: np.random.Generator) -> None:
    path = random_model(tmp_path / "m.gguf", head_dim=96, heads=2, kv_heads=1)
    token_ids = rng.integers(0, 500, NUM_TOKENS).tolist()
    found = {}
    for kv_type in ("f16", "q8_0"):
        runner = CpuRunner.load(options(path, kv_type=kv_type))
        found[runner.info().kv_type] = logits_of(runner, token_ids, [3, 0, 2, 1])
        layout, nbytes = runner.kv_layout, runner.info().kv_bytes
        runner.close()
        assert runner.kv_type in layout and nbytes > 0
    assert 0 < relative_error(found["q8_0"], found["f32"]) < LOGITS


@pytest.mark.device
@pytest.mark.slow
def test_logits_of_a_gpu_agree_with_the_reference(tmp_path: Path, rng: np.random.Generator) -> None:
    path = random_model(tmp_path / "m.gguf", quant="F16", layers=2)
    token_ids = rng.integers(0, 500, NUM_TOKENS).tolist()
    found, sizes = [], []
    for make in (GpuRunner, CpuRunner):
        runner = make.load(options(path, kv_type="q8_0"))
        found.append(logits_of(runner, token_ids, [1, 0, 3, 2]))
        sizes.append(runner.info().kv_type)
        runner.close()
    assert sizes == ["q8_0", "q8_0"]
    assert relative_error(*found) < 3e-3  # f16 weights are exact; a tie may round another way


def test_other_heads_are_refused_by_name(tmp_path: Path) -> None:
    path = random_model(tmp_path / "m.gguf", head_dim=80, heads=2, kv_heads=1)
    with pytest.raises(ModelLoadError, match="multiple of 32 dims, and this model's have 80"):
        CpuRunner.load(options(path, kv_type="q8_0"))
    question = MemoryQuestion(options(path, kv_type="q8_0"))
    with pytest.raises(ModelLoadError, match="multiple of 32 dims, and this model's have 80"):
        estimate(made_up_gpu(), question)
    served = estimate(made_up_gpu(), MemoryQuestion(options(path, kv_type="auto")))
    assert served.kv_type == "f16" and set(served.kv_token_bytes) == {"f16"}


def test_auto_takes_q8_0_where_the_context_fits_in_that_only(tmp_path: Path) -> None:
    path, context = shape_file(tmp_path / "m.gguf", LLAMA_1B), 8192

    def told(kv_memory: int, kv_type: str, on_cpu: bool) -> MemoryEstimate:
        changes = {"context_length": context, "kv_memory": kv_memory, "kv_type": kv_type}
        question = MemoryQuestion(options(path, **changes))
        return estimate_cpu(question) if on_cpu else estimate(made_up_gpu(), question)

    for on_cpu, plain in ((False, "f16"), (True, "f32")):
        sizes = told(1 << 40, "auto", on_cpu).kv_token_bytes
        assert told(context * sizes[plain], "auto", on_cpu).kv_type == plain
        tight = told(context * sizes[plain] - 1, "auto", on_cpu)
        assert (tight.kv_type, tight.context_length, tight.refusal) == ("q8_0", context, "")
        assert context * sizes["q8_0"] <= tight.kv_bytes < context * sizes[plain]
        short = told(context * sizes[plain] - 1, "f16", on_cpu)
        assert short.context_length < context
    # 64 dims: 64 bytes and two scales against 128 bytes.
    assert estimate(made_up_gpu(), MemoryQuestion(options(path))).kv_token_bytes == {
        "f16": 2 * 16 * 8 * 128,
        "q8_0": 2 * 16 * 8 * 68,
    }
