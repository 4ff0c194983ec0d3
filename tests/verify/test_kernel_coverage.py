"""The check at load runs every kernel that serves, on any kind of device: told by what plans and cases dispatch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GGMLType

from arch_models import Sizes, architecture_model
from emberd.gguf.spec import open_model
from emberd.runtime import activations
from emberd.runtime.kv_size import kv_types
from emberd.runtime.linear import LinearTable, default_table
from emberd.verify.load_bench import FEATURES, WatchedKernels
from emberd.verify.loading import check_at_load
from emberd.verify.tiles import check_tiles
from pair_plans import mixed_model
from pretended import (
    PretendedDevice,
    make_calls,
    make_plans,
    make_whole_text_calls,
    nothing_compiled,
    random_tiles,
)
from tiny_bidirectional import bidirectional_model
from tiny_encoder import encoder_model
from tiny_gguf import odd_feed_forward, random_model, random_rows

KINDS = {
    "software": ("CPU", None),
    "subgroups": ("DiscreteGPU", 32),
    "plain": ("DiscreteGPU", None),
}
KV_TYPES: Any = ("f16", "q8_0")
MODELS = (
    "llama",
    "mixed",
    "gpt-oss",
    "olmo2",
    "gemma2",
    "qwen2moe",
    "gpt2",
    "large heads",
    "arcee",
    "cohere2",
    "gptneox",
)
ODD_MODELS = (
    "odd llama",
    "odd gpt2",
    "odd qwen2moe",
    "odd gemma2",
    "odd feed-forward",
    "odd state",
)
"""Of widths that fill no unit of a kernel; the last two are quantized where they can be."""
MOST = {"max_tokens": 512, "max_rows": 32}


def model_of(path: Path, name: str) -> Path:
    if name == "mixed":
        return mixed_model(path, np.random.default_rng())
    if name == "odd feed-forward":
        return odd_feed_forward(path, np.random.default_rng())
    if name == "odd state":  # whole tiles of 16 rows, but no whole runs of 32
        q8 = GGMLType.Q8_0
        rows = (q8, random_rows(np.random.default_rng(), 112, 256, q8))
        outputs = {f"blk.{layer}.attn_output.weight": rows for layer in range(2)}
        return random_model(path, quant="F16", width=112, tensors=outputs)
    if name == "large heads":
        sizes = Sizes(heads=3, kv_heads=1, head_dim=320)
        return architecture_model(path, "gemma3", quant="Q8_0", sizes=sizes)
    if name in ODD_MODELS:
        sizes = Sizes(width=1004, ffn=556, heads=5, kv_heads=5, head_dim=20, shared_ffn=530)
        return architecture_model(path, name.removeprefix("odd "), quant="F16", sizes=sizes)
    if name != "llama":
        return architecture_model(path, name, quant="Q8_0")
    return random_model(path, quant="Q4_K", width=512, ffn=1024, heads=8, kv_heads=2)


def missing(
    monkeypatch: pytest.MonkeyPatch, device: PretendedDevice, path: Path, table: LinearTable
) -> set[str]:
    """Kernels that serve and are not checked, neither at load nor with the measured tiles of `table`."""
    model = open_model(path)
    with nothing_compiled(monkeypatch) as (served, checked):
        for kv_type in kv_types(model.spec):
            make_plans(device, path, table, kv_type=kv_type, **MOST)
        kernels = WatchedKernels(device)
        found = check_at_load(kernels, path, cache_dir=None, kv_types=KV_TYPES, **MOST)
        check_tiles(kernels, model, table, cache_dir=None, **MOST)
    model.close()
    assert len(served) > 25 and {check.note for check in found.unchecked} == {"RanError: "}
    return {str(key) for key in served - checked}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(pytest.param(n, "subgroups", marks=pytest.mark.slow) for n in (*MODELS, *ODD_MODELS)),
        pytest.param("llama", "plain", marks=pytest.mark.slow),
        ("gpt-oss", "software"),
        pytest.param("odd llama", "software", marks=pytest.mark.slow),
    ],
)
def test_every_kernel_that_serves_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    path, device = model_of(tmp_path / "m.gguf", name), PretendedDevice(*KINDS[kind])
    assert missing(monkeypatch, device, path, default_table(device)) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama", "subgroups"),
        ("mixed", "plain"),
        ("qwen2moe", "subgroups"),
        ("gemma2", "subgroups"),
        ("gpt2", "software"),
    ],
)
def test_every_kernel_of_a_narrow_model_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, narrow: None, name: str, kind: str
) -> None:
    path, device = model_of(tmp_path / "m.gguf", name), PretendedDevice(*KINDS[kind])
    assert missing(monkeypatch, device, path, default_table(device)) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama", "subgroups"),
        ("mixed", "subgroups"),
        ("qwen2moe", "plain"),
        ("odd llama", "subgroups"),
        ("odd state", "subgroups"),
    ],
)
def test_measured_tiles_are_checked_in_all_their_kernels(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rng: np.random.Generator,
    name: str,
    kind: str,
) -> None:
    monkeypatch.setattr(activations, "NARROW", int(rng.choice([0, 1 << 30])))
    path, device = model_of(tmp_path / "m.gguf", name), PretendedDevice(*KINDS[kind])
    table = random_tiles(device, path, rng, **MOST)
    assert table.num_tuned > 10
    assert missing(monkeypatch, device, path, table) == set()


@pytest.mark.slow
def test_what_stands_in_for_kernels_that_are_left_out_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    path, device = model_of(tmp_path / "m.gguf", "llama"), PretendedDevice(*KINDS["subgroups"])
    device.leave_out([str(rng.choice([*FEATURES, "Q4_K"]))])
    assert missing(monkeypatch, device, path, default_table(device)) == set(), device.left_out


@pytest.mark.parametrize(
    ("quant", "kind"), [("Q8_0", "subgroups"), ("F16", "plain"), ("F32", "plain")]
)
def test_every_kernel_of_an_encoder_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quant: str, kind: str
) -> None:
    """Of matrices so large that the tiles of few workgroups would not do."""
    device, path = PretendedDevice(*KINDS[kind]), tmp_path / "m.gguf"
    sizes = {"width": 500, "ffn": 2044} if quant == "F32" else {"width": 512, "ffn": 2048}
    encoder_model(path, quant=quant, layers=1, **sizes)
    with nothing_compiled(monkeypatch) as (served, checked):
        make_calls(device, path, 512)
        check_at_load(WatchedKernels(device), path, cache_dir=None, **MOST)
    assert len(served) > 10 and {str(key) for key in served - checked} == set()


@pytest.mark.parametrize(
    ("quant", "kind"),
    [
        pytest.param("Q8_0", "subgroups", marks=pytest.mark.slow),
        pytest.param("F16", "plain", marks=pytest.mark.slow),
        ("Q8_0", "software"),
        pytest.param("Q4_0", "plain", marks=pytest.mark.slow),
    ],
)
def test_every_kernel_of_a_decoder_that_looks_both_ways_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quant: str, kind: str
) -> None:
    device, path = PretendedDevice(*KINDS[kind]), tmp_path / "m.gguf"
    bidirectional_model(path, quant=quant)
    with nothing_compiled(monkeypatch) as (served, checked):
        make_whole_text_calls(device, path, 512)
        check_at_load(WatchedKernels(device), path, cache_dir=None, kv_types=KV_TYPES, **MOST)
    assert len(served) >= 10 and {str(key) for key in served - checked} == set()
    assert not any(key.name.startswith(("sample", "attention_decode")) for key in checked)


@pytest.mark.slow
def test_a_kernel_that_is_left_out_of_the_check_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emberd.verify.loading.check_sampler", lambda *_: ())
    path, device = model_of(tmp_path / "m.gguf", "olmo2"), PretendedDevice(*KINDS["subgroups"])
    assert any(
        "sample_merge" in name for name in missing(monkeypatch, device, path, default_table(device))
    )
