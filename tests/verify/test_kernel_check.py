"""A model's kernels are checked before it serves: what is wrong is caught, and replaced where that helps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from arch_models import CASES, Sizes, architecture_model
from batches import GREEDY, Row, make_batch
from emberd.errors import DeviceError
from emberd.gguf.spec import open_model
from emberd.protocol import Runner, WorkerOptions
from emberd.reference.runner import CpuRunner
from emberd.runtime import device as devices
from emberd.runtime.device import AllocationError, Device, open_device
from emberd.runtime.kernel import KernelKey, Kernels
from emberd.runtime.kv_cache import KVType
from emberd.runtime.runner import GpuRunner
from emberd.verify import load_bench, loading, uses
from emberd.verify.attention import Pair, check_attention
from emberd.verify.bench import Workbench
from emberd.verify.check import TOLERANCE, Check
from emberd.verify.load_bench import Kept, WatchedKernels, features_of, to_leave_out
from emberd.verify.loading import Finding, check_at_load
from emberd.verify.rope import check_rope
from emberd.worker.process import load_runner
from pretended import text_of
from tiny_gguf import random_model

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("device")]

SWAPPED = (  # the nibbles of Q4_K in the wrong order
    "weights/q4_k.wgsl",
    "Unit(p.v & mask, (p.v >> vec4<u32>(4u)) & mask,",
    "Unit((p.v >> vec4<u32>(4u)) & mask, p.v & mask,",
)
NAN_LANE = (  # one value of a fused product is no number
    "include/finish_residual.wgsl",
    "    let v = quads[i];",
    "    var v = quads[i];\n    if (i == 3u) { v.y = v.y + log(-1.0 - v.y * v.y); }",
)
TURNED = ("include/rotate.wgsl", "select(crossed, -crossed, first)", "crossed")  # no variant helps


def break_it(shaders: Path, fault: tuple[str, str, str]) -> None:
    file, old, new = fault
    text = (shaders / file).read_text()
    assert old in text, f"{file} has changed: choose another fault"
    (shaders / file).write_text(text.replace(old, new))


@pytest.fixture
def opened() -> Iterator[Device]:
    """One of its own, since what is left out stays so."""
    device = open_device("gpu")
    yield device
    device.close()


@pytest.fixture
def only_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes most of the time: where a product is broken, little else is looked at."""
    for name in ("check_attention", "check_decode_attention", "check_sampler"):
        monkeypatch.setattr(loading, name, lambda *_: ())
    monkeypatch.setattr(uses, "numbers_up_to", lambda _: [1])


def check(device: Device, path: Path, cache_dir: Path | None = None) -> Finding:
    kernels = WatchedKernels(device)
    return check_at_load(kernels, path, max_tokens=1, max_rows=1, cache_dir=cache_dir)


def load(path: Path, device: str = "gpu") -> Runner:
    options = WorkerOptions(
        str(path), device, 64, max_sequences=1, max_batch_tokens=16, verify=True
    )
    runner = load_runner(options, lambda _: None)
    assert isinstance(runner, GpuRunner | CpuRunner)
    return runner


def logits_of(runner: Runner) -> np.ndarray:
    for position, token in enumerate((7, 300, 41)):
        row = Row(0, [token], position, [0], True, GREEDY if position == 0 else None)
        runner.submit(make_batch([row], runner.block_size, [0]))
        logits = runner.collect().logits
    assert logits is not None
    return logits


@pytest.mark.slow
def test_right_kernels_are_checked_once(
    opened: Device, tmp_path: Path, broken_shaders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And again where the shaders are others."""
    monkeypatch.setattr(uses, "numbers_up_to", lambda _: [1])
    path = random_model(tmp_path / "m.gguf", quant="Q8_0", layers=1)
    first = check(opened, path, tmp_path)
    assert not first.wrong and not first.replaced and first.num_run > 20
    assert str(first).startswith(f"all {first.num_checks} checks of kernels on {opened.name}")
    again = check(opened, path, tmp_path)
    assert (again.num_run, again.num_checks) == (0, first.num_checks)
    break_it(broken_shaders, TURNED)
    for name in ("check_attention", "check_sampler", "check_uses"):
        monkeypatch.setattr(loading, name, lambda *_: ())
    found = check(opened, path, tmp_path)
    assert {c.kernel for c in found.wrong} >= {"rope_kv_write q", "rope_kv_write k"}
    assert "rope_kv_write q (F32)" in str(found) and "are wrong" in str(found)
    assert check(opened, path, tmp_path).wrong  # what is wrong is not kept


@pytest.mark.slow
def test_gate_and_up_in_tiles_stand_alone_where_they_are_wrong_together(
    opened: Device,
    tmp_path: Path,
    broken_shaders: Path,
    only_products: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a device that takes tiles for many tokens."""
    monkeypatch.setattr(uses, "numbers_up_to", lambda _: [20])
    monkeypatch.setattr(
        loading,
        "model_uses",
        lambda *given: [use for use in uses.model_uses(*given) if use.fusing == "gate_up"],
    )
    opened.info, opened.subgroup_size = replace(opened.info, kind="DiscreteGPU"), None
    path = random_model(tmp_path / "m.gguf", quant="Q8_0", layers=1)
    break_it(broken_shaders, ("include/tile_gate_up.wgsl", "gated(sums.y, sums.w)", "sums.y"))
    found = check(opened, path)
    assert not found.wrong and found.left_out == ("fused",), found
    assert {check.kernel for check in found.replaced} == {"matmul gate up"}


@pytest.mark.slow
def test_every_kernel_of_the_runner_was_checked(opened: Device, tmp_path: Path) -> None:
    """With their constants, of all plans that it makes; test_kernel_coverage.py has other models and devices."""
    path = architecture_model(tmp_path / "m.gguf", "gpt-oss", quant="Q8_0")
    kernels = WatchedKernels(opened)
    found = check_at_load(kernels, path, max_tokens=4, max_rows=2, cache_dir=None)
    checked = {text_of(kernel.key) for kernel in kernels.all()}
    kernels = WatchedKernels(opened)
    options = WorkerOptions(str(path), "gpu", 64, max_sequences=2, max_batch_tokens=4)
    runner = GpuRunner.load(options, None, kernels)
    while runner._plans.prepare_next():
        pass
    assert not found.wrong and {text_of(kernel.key) for kernel in kernels.all()} <= checked
    runner.close()


def test_biases_of_more_rows_than_are_compared(
    opened: Device, tmp_path: Path, only_products: None
) -> None:
    path = random_model(
        tmp_path / "m.gguf", "qwen2", quant="Q8_0", layers=1, width=320, heads=5, kv_heads=5
    )
    found = check(opened, path)
    assert not found.wrong and not found.replaced, found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "qwen2moe", "gemma2"])
def test_sizes_that_fill_no_unit_of_a_kernel(
    opened: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(loading, "check_sampler", lambda *_: ())
    monkeypatch.setattr(uses, "numbers_up_to", lambda _: [1])
    sizes = Sizes(width=100, ffn=37, heads=5, kv_heads=5, head_dim=20, shared_ffn=53)
    path = architecture_model(tmp_path / "m.gguf", name, quant="F16", sizes=sizes)
    found = check(opened, path)
    assert not found.wrong and not found.replaced and not found.unchecked, found


def test_attention_with_a_soft_cap_has_its_tolerance(opened: Device, tmp_path: Path) -> None:
    model = open_model(architecture_model(tmp_path / "m.gguf", "gemma2"))
    checks = list(check_attention(Workbench(opened), model))
    model.close()
    assert {check.tolerance for check in checks} == {TOLERANCE["capped"]}
    assert all(check.passed for check in checks)


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_attention_of_large_heads(opened: Device, tmp_path: Path, kv_type: KVType) -> None:
    """Of a model whose products are of int8: attention gives floats, which are rounded behind it."""
    sizes = Sizes(heads=3, kv_heads=1, head_dim=320)
    model = open_model(architecture_model(tmp_path / "m.gguf", "gemma3", quant="Q8_0", sizes=sizes))
    bench = Workbench(opened)
    bench.kv_type = kv_type
    checks = [*check_rope(bench, model), *check_attention(bench, model)]
    model.close()
    assert {check.kernel for check in checks} >= {"attention_decode", "attention_prefill"}
    assert [check for check in checks if not check.passed] == []


@pytest.mark.parametrize("name", ["gemma3", "phi3"])
def test_windows_longer_than_what_is_checked(
    opened: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(CASES, name, CASES[name] | {"attention.sliding_window": 1024})
    model = open_model(architecture_model(tmp_path / "m.gguf", name))
    checks = list(check_attention(Workbench(opened), model))
    model.close()
    assert max(layer.window for layer in model.spec.layers) == 1024
    assert [check for check in checks if not check.passed] == []
    assert any("window 500" in check.shape for check in checks)


@pytest.mark.slow
def test_weights_read_wrongly_are_read_as_another_type(
    tmp_path: Path, broken_shaders: Path, only_products: None
) -> None:
    path = random_model(tmp_path / "m.gguf", quant="Q4_K", layers=1)
    break_it(broken_shaders, SWAPPED)
    runner = load(path)
    told, out = runner.info().verification, logits_of(runner)
    runner.close()
    assert "Q4_K weights, read as Q8_0" in told and "embedding (Q4_K)" in told
    cpu = CpuRunner.load(WorkerOptions(str(path), context_length=64))
    ref = logits_of(cpu)
    assert np.linalg.norm(out - ref) <= 4e-2 * np.linalg.norm(ref)


@pytest.mark.slow
def test_a_lane_of_nan_is_caught_and_its_kernel_replaced(
    tmp_path: Path, broken_shaders: Path, only_products: None
) -> None:
    path = random_model(tmp_path / "m.gguf", quant="Q8_0", layers=1)
    break_it(broken_shaders, NAN_LANE)
    runner = load(path)
    told, out = runner.info().verification, logits_of(runner)
    used = {str(kernel.key) for kernel in runner.kernels.all()}  # type: ignore[attr-defined]
    runner.close()
    assert "matvec residual (Q8_0) is wrong" in told and told.endswith(
        "what follows or precedes them"
    )
    assert np.isfinite(out).all()
    assert any("finish_rows" in name for name in used)


def test_a_device_that_is_wrong_does_not_serve(
    tmp_path: Path, broken_shaders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = random_model(tmp_path / "m.gguf", quant="F16", layers=1)
    break_it(broken_shaders, TURNED)
    for name in ("check_attention", "check_sampler", "check_uses"):
        monkeypatch.setattr(loading, name, lambda *_: ())
    with pytest.raises(DeviceError, match=r"m\.gguf is not served: rope_kv_write q .*--device cpu"):
        load(path)
    real = devices.choose_adapter("gpu")
    monkeypatch.setattr(devices, "choose_adapter", lambda wanted="auto": real)
    runner = load(path, "auto")
    assert isinstance(runner, CpuRunner)
    assert runner.info().verification.startswith("served by the CPU: rope_kv_write q")
    runner.close()


def test_a_check_that_fails_keeps_no_model_from_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> Finding:
        raise IndexError("row 600")

    monkeypatch.setattr(loading, "check_at_load", fails)
    runner = load(random_model(tmp_path / "m.gguf", quant="F16", layers=1))
    assert isinstance(runner, GpuRunner)
    assert runner.info().verification == "kernels were not checked: IndexError: row 600"
    assert "the kernel check of m.gguf failed" in caplog.text and "Traceback" in caplog.text
    runner.close()


@pytest.mark.parametrize("fault", [MemoryError("no room"), AllocationError("no room"), KeyError(1)])
def test_a_case_that_fails_says_nothing_about_its_kernel(
    opened: Device,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: Exception,
) -> None:
    monkeypatch.setattr(loading, "_checks", lambda bench, *_: a_right_case_and(bench, fault))
    path = random_model(tmp_path / "m.gguf", quant="F16", layers=1)
    found = check(opened, path, tmp_path)
    why = f"b (F32) could not be checked: {type(fault).__name__}: {fault}"
    right = f"all 1 checks of kernels on {opened.name} are right"
    assert str(found) == f"{right}; {why}" and not found.wrong and not found.replaced
    assert f"b F32 1 is not checked: {type(fault).__name__}" in caplog.text
    assert check(opened, path, tmp_path).num_run == 1  # it is not kept


def test_what_is_right_at_the_second_attempt_is_not_kept(
    opened: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_ones = iter([0, 1, 1])

    def checks(bench: Workbench, *_: object) -> Iterator[Check]:
        yield bench.compare(
            "a", "F32", "1", "exact", lambda: (np.full(1, next(found_ones)), np.ones(1))
        )

    monkeypatch.setattr(loading, "_checks", checks)
    monkeypatch.setattr(loading, "compile_ahead", lambda *_: None)
    path = random_model(tmp_path / "m.gguf", quant="F16", layers=1)
    loads = [check(opened, path, tmp_path) for _ in range(3)]
    assert [found.num_run for found in loads] == [1, 1, 0]
    assert not any(found.wrong or found.replaced for found in loads)


def test_other_code_is_checked_again(
    opened: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept.read(tmp_path, opened)
    kept.add("a", ())
    kept.write()
    assert "a" in Kept.read(tmp_path, opened).cases
    monkeypatch.setattr(load_bench, "_source_digest", lambda: "other")
    assert Kept.read(tmp_path, opened).cases == {}


def test_a_check_that_was_interrupted_goes_on(opened: Device, tmp_path: Path) -> None:
    kept = Kept.read(tmp_path, opened)
    for number in range(2 * load_bench.WRITE_EVERY + 3):
        kept.add(str(number), ())
    assert len(Kept.read(tmp_path, opened).cases) == 2 * load_bench.WRITE_EVERY
    kept.write()
    assert Kept.read(tmp_path, opened).cases == kept.cases


def a_right_case_and(bench: Workbench, fault: Exception) -> Iterator[Check]:
    def fails() -> Pair:
        raise fault

    yield bench.compare("a", "F32", "1", "exact", lambda: (np.ones(1), np.ones(1)))
    yield bench.compare("b", "F32", "1", "exact", fails)


def test_the_runner_does_not_get_the_kernels_that_are_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_checks", lambda *_: ())
    runner = load(random_model(tmp_path / "m.gguf", quant="F16", layers=1))
    assert type(runner.kernels) is Kernels  # type: ignore[attr-defined]
    runner.close()


@pytest.mark.parametrize(
    ("cases", "expected"),
    [
        # whatever reads the type is wrong
        ({"a": (1, {"matvec", "Q4_K"}), "b": (1, {"Q4_K"})}, ["Q4_K", "Q4_K"]),
        # something that reads it is right: what costs least goes first
        ({"a": (1, {"matvec", "fused", "Q4_K"}), "b": (0, {"matvec", "Q4_K"})}, ["fused"]),
        ({"a": (1, {"matvec", "subgroups", "Q4_K"}), "b": (0, {"Q4_K"})}, ["subgroups"]),
        ({"a": (1, {"baked", "matmul", "Q4_K"}), "b": (0, {"Q4_K"})}, ["baked"]),
        ({"a": (1, {"matvec"}), "b": (1, {"matmul"})}, ["matvec", "matmul"]),
        ({"a": (1, set())}, [None]),
    ],
)
def test_what_is_left_out_first(
    cases: dict[str, tuple[float, set[str]]], expected: list[str | None]
) -> None:
    checks = [
        Check(kernel, "Q4_K", "1", error, 1e-5, features=tuple(used))
        for kernel, (error, used) in cases.items()
    ]
    assert [to_leave_out(check, checks, ()) for check in checks if not check.passed] == expected


def test_rows_and_tiles_do_not_both_go() -> None:
    check = Check("matmul", "F16", "1", 1.0, 1e-5, features=("matmul",))
    assert to_leave_out(check, [check], {"matvec"}) is None


def test_features_of_a_kernel() -> None:
    def features(name: str, **includes: str) -> set[str]:
        return features_of(KernelKey(name, (), tuple(includes.items())))

    assert features("matvec", weight="q4_k", finish="finish_rows", norm="norm_done") == {
        "matvec",
        "Q4_K",
    }
    assert features("matvec", weight="q8_0", finish="finish_residual") == {"matvec", "fused"}
    assert features("matmul", weight="f16", finish="tile_rows") == {"matmul"}
    assert features("matmul", weight="q8_0", finish="tile_gate_up") == {"matmul", "fused"}
    assert features("rms_norm", reduce="reduce_subgroup") == {"subgroups"}
    assert features("attention_decode_subgroups") == {"subgroups"}
    assert features_of(KernelKey("rms_norm", params=(1,))) == {"baked"}
