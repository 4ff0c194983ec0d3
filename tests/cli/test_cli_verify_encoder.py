"""verify on encoders: passes where device and reference agree, covers every kernel, and catches a wrong one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cli_harness import Emberd

from emberd.runtime.compose import shader_dir
from emberd.runtime.device import Device
from emberd.runtime.encoder import GpuEncoder
from emberd.verify import encoder as verify_encoder
from emberd.verify.bench import Workbench
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


@pytest.mark.model
@pytest.mark.slow
def test_verify_passes_on_minilm(emberd_cli: Emberd, minilm_path: Path) -> None:
    result = emberd_cli("verify", str(minilm_path), "--device", "gpu")
    assert result.code == 0, result.out


def test_bench_says_that_an_encoder_does_not_generate(emberd_cli: Emberd, tmp_path: Path) -> None:
    path = encoder_model(tmp_path / "tiny.gguf").path
    result = emberd_cli("bench", str(path), "--device", "cpu")
    assert result.code == 1 and "cannot generate text" in result.out + result.err
