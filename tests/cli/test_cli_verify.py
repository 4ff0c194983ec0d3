"""verify: passes where device and reference agree, and catches a shader that is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from cli_harness import Emberd

from arch_models import architecture_model
from emberd.reference.transformer import Routing
from emberd.runtime.runner import GpuRunner
from emberd.verify import kernels as verify_kernels
from emberd.verify.bench import Workbench
from emberd.verify.check import Check
from emberd.verify.model import MAX_LOST, check_model
from tiny_gguf import random_model

pytestmark = pytest.mark.device

FAULTS = {
    # file: text, what a slip would make of it, the kernel whose row must fail
    "include/activation_silu.wgsl": ("1.0 + exp(", "2.0 + exp(", "matvec gate up"),
    "include/rotate.wgsl": ("select(crossed, -crossed, first)", "crossed", "rope_kv_write q"),
    "include/norm_ahead.wgsl": ("+ params.eps", "+ 1.0", "matvec norm"),
    "rms_norm_quantize.wgsl": ("fn rms_norm_quantize", "this is not WGSL", "rms_norm_quantize"),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return random_model(tmp_path / "tiny.gguf", quant="Q8_0", layers=1)


@pytest.mark.parametrize(
    ("architecture", "quant"),
    [
        ("llama", "F16"),
        ("qwen2", "Q4_0"),
        ("gemma3", "Q4_K"),
        ("llama", "Q2_K"),
        ("llama", "IQ2_S"),
    ],
)
def test_verify_passes_and_covers_every_kernel_of_the_runner(
    tmp_path: Path, architecture: str, quant: str, monkeypatch: pytest.MonkeyPatch, device: object
) -> None:
    window = 16 if architecture == "gemma3" else None
    path = random_model(
        tmp_path / "tiny.gguf",
        architecture,  # type: ignore[arg-type]
        quant=quant,
        layers=2,
        sliding_window=window,
    )
    made: list[Workbench] = []

    class Kept(Workbench):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            made.append(self)

    used: set[str] = set()
    close = GpuRunner.close

    def closing(runner: GpuRunner) -> None:
        used.update(kernel.key.name for kernel in runner.kernels.all())
        close(runner)

    monkeypatch.setattr(verify_kernels, "Workbench", Kept)
    monkeypatch.setattr(GpuRunner, "close", closing)
    checks = [*verify_kernels.check_kernels(device, path)]  # type: ignore[arg-type]
    checks += check_model(path, "gpu")
    assert not [check for check in checks if not check.passed]
    checked = {kernel.key.name for bench in made for kernel in bench.kernels.all()}
    assert used and used <= checked


def test_the_command_prints_a_table_and_json(emberd_cli: Emberd, model: Path) -> None:
    result = emberd_cli("verify", str(model), "--device", "gpu")
    assert result.code == 0, result.out
    rows = result.out.splitlines()
    assert rows[1].split() == ["KERNEL", "TYPE", "SHAPE", "ERROR", "TOLERANCE", "VERDICT"]
    assert rows[-1].endswith(" passed, 0 failed")
    answer = emberd_cli("verify", str(model), "--kernels", "--json").json
    assert answer["passed"] and {"matvec", "attention_decode"} <= {
        check["kernel"] for check in answer["checks"]
    }
    assert not any(check["kernel"].startswith("model") for check in answer["checks"])


def test_heads_that_no_kernel_takes_are_told_as_such(emberd_cli: Emberd, tmp_path: Path) -> None:
    model = random_model(tmp_path / "m.gguf", layers=1, width=64, heads=2, head_dim=514)
    result = emberd_cli("verify", str(model))
    assert result.code == 1 and "heads of 514 dims are not supported" in result.err
    assert "passed" not in result.out


@pytest.mark.parametrize("file", FAULTS)
def test_a_broken_shader_is_caught(
    emberd_cli: Emberd, model: Path, broken_shaders: Path, file: str
) -> None:
    old, new, kernel = FAULTS[file]
    text = (broken_shaders / file).read_text()
    assert old in text, f"{file} has changed: choose another fault"
    (broken_shaders / file).write_text(text.replace(old, new))
    result = emberd_cli("verify", str(model), "--json")
    assert result.code == 1
    failed = {check["kernel"] for check in result.json["checks"] if not check["passed"]}
    assert kernel in failed
    assert any(name.startswith("model") for name in failed)


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("fixture", ["smollm2_path", "gemma3_path", "qwen_path"])
def test_verify_passes_on_real_models(
    emberd_cli: Emberd, fixture: str, request: pytest.FixtureRequest
) -> None:
    result = emberd_cli("verify", str(request.getfixturevalue(fixture)), "--device", "gpu")
    assert result.code == 0, result.out


@pytest.mark.slow
def test_experts_are_judged_by_the_choices_of_the_device(tmp_path: Path) -> None:
    path = architecture_model(tmp_path / "m.gguf", "qwen3moe", quant="Q8_0")
    checks = {check.kernel: check for check in check_model(path, "gpu")}
    assert all(check.passed for check in checks.values()), checks
    assert "choices parted" in checks["model experts"].shape


def test_a_choice_that_is_no_near_tie_is_told() -> None:
    logits = np.log(np.array([[0.5, 0.499, 0.001], [0.3, 0.1, 0.6]], np.float32))
    near, far = Routing([np.array([[1], [2]], np.int32)]), Routing([np.array([[2], [2]], np.int32)])
    for routing in (near, far):
        assert routing.next(logits, 1) is routing.given[0]
        assert routing.parted == 1
    assert 0 < near.lost[0].max() < MAX_LOST["int8"] < far.lost[0].max()
    assert near.lost[0][1] == 0


def test_another_quantization_is_compared_over_a_text(emberd_cli: Emberd, tmp_path: Path) -> None:
    files = [
        str(random_model(tmp_path / f"{quant}.gguf", quant=quant, layers=1))
        for quant in ("Q4_0", "F32")
    ]
    (tmp_path / "text").write_text("the sea brought a crate of oranges")
    options = ("--against", files[1], "--device", "cpu", "--text", str(tmp_path / "text"))
    found = emberd_cli("verify", files[0], *options, "--json").json
    assert found["num_tokens"] == 33 and found["mean_kl"] > 0 and found["reference"] == "F32.gguf"
    shown = emberd_cli("verify", files[0], *options).out
    told = re.search(r"^perplexity +([0-9.]+),", shown, re.MULTILINE)
    assert told is not None and "likeliest token the same in" in shown
    # How many threads BLAS gets is measured at each load, and with them the order of its sums changes.
    assert float(told[1]) == pytest.approx(found["perplexity"], rel=1e-4)
    for wrong, reason in (
        (("--kl", "--device", "cpu"), "--against"),
        (("--text", str(tmp_path / "text")), "--kl"),
        (("--kl", "--text", str(tmp_path / "none")), "none"),
    ):
        result = emberd_cli("verify", files[0], *wrong)
        assert result.code == 1 and reason in result.err
    assert "same vocabulary" not in shown


def test_nan_never_passes() -> None:
    assert not Check("k", "F32", "1", np.nan, 1.0).passed
