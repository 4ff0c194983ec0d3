"""A KV cache in q8_0: its kernels are checked before a model serves with one, and what is wrong is caught."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from emberd.protocol import WorkerOptions
from emberd.runtime.device import Device, open_device
from emberd.runtime.kernel import KernelKey
from emberd.runtime.runner import GpuRunner
from emberd.verify import loading
from emberd.verify.kv import cached, floats
from emberd.verify.load_bench import WatchedKernels
from emberd.verify.loading import Finding, check_at_load
from pretended import text_of
from tiny_gguf import random_model
from tolerance import check as check_near

SWAPPED = ("include/write_q8.wgsl", "<< 16u; }", "; }")  # two runs' scales in one half


@pytest.fixture
def opened() -> Iterator[Device]:
    device = open_device("gpu")
    yield device
    device.close()


@pytest.fixture
def only_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("embedding", "norms", "layer_norm", "positions", "post_norm", "uses"):
        monkeypatch.setattr(loading, f"check_{name}", lambda *_: ())
    for name in ("activation", "in_place", "experts", "sampler"):
        monkeypatch.setattr(loading, f"check_{name}", lambda *_: ())
    monkeypatch.setattr(loading, "_reads_ahead", lambda *_: False)


def checked(kernels: WatchedKernels, path: Path) -> Finding:
    return check_at_load(
        kernels, path, max_tokens=4, max_rows=2, cache_dir=None, kv_types=("q8_0",)
    )


def of_the_cache(kernels: WatchedKernels) -> set[KernelKey]:
    """Kernels that read or write a cache in q8_0."""
    parts = {"write_q8", "kv_q8", "octet_q8"}
    return {
        text_of(kernel.key)
        for kernel in kernels.all()
        if parts & set(dict(kernel.key.includes).values())
    }


@pytest.mark.device
@pytest.mark.slow
@pytest.mark.usefixtures("device", "only_the_cache")
def test_the_kernels_that_a_cache_in_q8_0_takes_are_checked(opened: Device, tmp_path: Path) -> None:
    path = random_model(tmp_path / "m.gguf", quant="F16", layers=1)
    kernels = WatchedKernels(opened)
    found = checked(kernels, path)
    assert not found.wrong and not found.replaced
    before = of_the_cache(kernels)
    kernels = WatchedKernels(opened)
    options = WorkerOptions(
        str(path), "gpu", 64, max_sequences=2, max_batch_tokens=4, kv_type="q8_0"
    )
    runner = GpuRunner.load(options, None, kernels)
    after = of_the_cache(kernels)
    assert after and after <= before
    runner.close()


@pytest.mark.device
@pytest.mark.slow
@pytest.mark.usefixtures("device", "only_the_cache")
def test_a_scale_in_the_wrong_place_is_caught(
    opened: Device, tmp_path: Path, broken_shaders: Path
) -> None:
    file, old, new = SWAPPED
    text = (broken_shaders / file).read_text()
    assert old in text, f"{file} has changed: choose another fault"
    (broken_shaders / file).write_text(text.replace(old, new))
    path = random_model(tmp_path / "m.gguf", quant="F16", layers=1)
    wrong = checked(WatchedKernels(opened), path).wrong
    assert {(check.kernel, check.type) for check in wrong} == {
        ("rope_kv_write k", "Q8_0"),
        ("rope_kv_write v", "Q8_0"),
    }


@pytest.mark.parametrize("head_dim", [32, 64, 96])
def test_words_are_read_as_they_were_made(rng: np.random.Generator, head_dim: int) -> None:
    x: NDArray[np.float32] = rng.standard_normal((3, 2, head_dim), np.float32)
    for kind in ("f16", "q8_0"):
        kept, words = cached(x, kind)  # type: ignore[arg-type]
        np.testing.assert_array_equal(floats(words, kind, head_dim), kept)  # type: ignore[arg-type]
        check_near(kept, x, "f16" if kind == "f16" else "kv_q8")
