"""verify on encoders: passes where device and reference agree, covers every kernel, and catches a wrong one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_harness import Emberd

from emberd.runtime.compose import shader_dir
from emberd.runtime.device import Device
from emberd.runtime.encoder import GpuEncoder
from emberd.verify import encoder as verify_encoder
from emberd.verify.bench import Workbench
from emberd.verify.kernels import check_kernels
from tiny_bidirectional import KV_HEADS, bidirectional_model
from tiny_encoder import encoder_model

pytestmark = pytest.mark.device

SHADERS = Path(__file__).parent.parent.parent / "shaders"
FAULTS = {
    "layer_norm_add.wgsl": ("+ params.eps", "+ 0.1"),
    "gelu.wgsl": ("0.70710678", "0.7"),
    "attention_encoder.wgsl": ("u32(bounds[token].y)", "count[0]"),
}


@pytest.mark.parametrize("quant", ["F32", "Q8_0"])
def test_verify_passes_and_covers_every_kernel_of_the_encoder(
    tmp_path: Path, quant: str, monkeypatch: pytest.MonkeyPatch, device: Device
) -> None:
    path = encoder_model(tmp_path / "tiny.gguf", quant=quant).path
    made: list[Workbench] = []

    class Kept(Workbench):
        def __init__(self, device: Device) -> None:
            super().__init__(device)
            made.append(self)

    used: set[str] = set()
    close = GpuEncoder.close

    def closing(encoder: GpuEncoder) -> None:
        used.update(kernel.key.name for kernel in encoder.kernels.all())
        close(encoder)

    monkeypatch.setattr(verify_encoder, "Workbench", Kept)
    monkeypatch.setattr(GpuEncoder, "close", closing)
    checks = [
        *verify_encoder.check_encoder_kernels(device, path),
        *verify_encoder.check_encoder(path, "gpu"),
    ]
    assert not [check for check in checks if not check.passed]
    checked = {kernel.key.name for bench in made for kernel in bench.kernels.all()}
    assert used and used <= checked


@pytest.mark.parametrize("file", FAULTS)
def test_a_broken_shader_is_caught(
    emberd_cli: Emberd, tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = encoder_model(tmp_path / "tiny.gguf").path
    folder = tmp_path / "shaders"
    shutil.copytree(SHADERS, folder)
    text, (old, new) = (folder / file).read_text(), FAULTS[file]
    assert old in text, f"{file} has changed: choose another fault"
    (folder / file).write_text(text.replace(old, new))
    monkeypatch.setenv("EMBERD_SHADERS", str(folder))
    shader_dir.cache_clear()
    try:
        result = emberd_cli("verify", str(path), "--json")
    finally:
        shader_dir.cache_clear()
    assert result.code == 1
    failed = {check["kernel"] for check in result.json["checks"] if not check["passed"]}
    assert {file.removesuffix(".wgsl"), "model states"} <= failed


@pytest.mark.parametrize("quant", ["F32", "Q8_0"])
def test_verify_passes_on_a_decoder_that_looks_both_ways(
    tmp_path: Path, quant: str, device: Device
) -> None:
    path = bidirectional_model(tmp_path / "tiny.gguf", quant=quant).path
    checks = [*check_kernels(device, path), *verify_encoder.check_encoder(path, "gpu")]
    assert not [check for check in checks if not check.passed]
    checked = {check.kernel for check in checks}
    assert {"attention_prefill", "rms_norm_add", "model states", "model vectors"} <= checked
    assert not any(name.startswith(("sample", "attention_decode")) for name in checked)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("min(position + params.ahead, end - 1u)", "min(position, end - 1u)"),
        ("min(position + params.ahead, end - 1u)", "end - 1u"),
        ("num_queries + params.ahead, u32", "num_queries, u32"),
    ],
)
def test_attention_that_looks_the_wrong_way_is_caught(
    emberd_cli: Emberd, tmp_path: Path, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bidirectional_model(tmp_path / "tiny.gguf").path
    folder = tmp_path / "shaders"
    shutil.copytree(SHADERS, folder)
    file = folder / "attention_prefill.wgsl"
    text = file.read_text()
    assert old in text, "attention_prefill has changed: choose another fault"
    file.write_text(text.replace(old, new))
    monkeypatch.setenv("EMBERD_SHADERS", str(folder))
    shader_dir.cache_clear()
    try:
        result = emberd_cli("verify", str(path), "--json")
    finally:
        shader_dir.cache_clear()
    assert result.code == 1
    failed = {check["kernel"] for check in result.json["checks"] if not check["passed"]}
    assert {"attention_prefill", "model states"} <= failed


@pytest.mark.model
@pytest.mark.slow
def test_verify_passes_on_minilm(emberd_cli: Emberd, minilm_path: Path) -> None:
    result = emberd_cli("verify", str(minilm_path), "--device", "gpu")
    assert result.code == 0, result.out


@pytest.mark.parametrize("make", [encoder_model, bidirectional_model])
def test_bench_says_that_an_encoder_does_not_generate(
    emberd_cli: Emberd, tmp_path: Path, make: Callable[..., Any]
) -> None:
    path = make(tmp_path / "tiny.gguf").path
    result = emberd_cli("bench", str(path), "--device", "cpu")
    assert result.code == 1 and "cannot generate text" in result.out + result.err


@pytest.mark.parametrize(
    ("make", "kv_heads"), [(encoder_model, 2), (bidirectional_model, KV_HEADS)]
)
def test_encoders_are_shown(
    emberd_cli: Emberd, tmp_path: Path, make: Callable[..., Any], kv_heads: int
) -> None:
    path = make(tmp_path / "tiny.gguf").path
    shown = emberd_cli("show", str(path), "--json").json
    assert shown["architecture"] in ("bert", "gemma-embedding")
    assert (shown["hidden_size"], shown["kv_heads"]) == (64, kv_heads)
