"""Kernels of a check's cases are compiled side by side before these run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from emberd.errors import DeviceError
from emberd.gguf.spec import open_model
from emberd.runtime.kernel import Kernel, KernelKey, Kernels
from emberd.verify.ahead import compile_ahead
from emberd.verify.check import Check
from emberd.verify.kernels import check_norms
from emberd.verify.load_bench import Kept, LoadBench, WatchedKernels
from pretended import PretendedDevice
from tiny_gguf import random_model


@pytest.fixture
def device() -> PretendedDevice:
    return PretendedDevice("DiscreteGPU", None)


def test_cases_find_their_kernels_compiled(
    device: PretendedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those with sizes in the text, and none of cases that are kept."""
    model = open_model(random_model(tmp_path / "m.gguf", quant="Q4_0", layers=1))
    kernels, kept = WatchedKernels(device), Kept(None, {}, {})

    def cases(bench: LoadBench) -> Iterator[Check]:
        yield from check_norms(bench, model)
        with bench.sizes_in_text():
            yield from check_norms(bench, model)

    compile_ahead(kernels, kept, cases)
    made = {kernel.key for kernel in kernels.all()}
    assert {key.name for key in made} == {"rms_norm", "rms_norm_quantize"}
    assert {bool(key.params) for key in made} == {True, False}
    monkeypatch.setattr(Kernel, "__init__", lambda *_: pytest.fail("a kernel is not there"))
    bench = LoadBench(kernels, kept)
    assert len(list(cases(bench))) == bench.num_run > 3
    monkeypatch.setattr(LoadBench, "is_kept", lambda *_: True)
    compile_ahead(WatchedKernels(device), kept, cases)
    model.close()


def test_a_fault_of_making_cases_is_left_to_the_cases(
    device: PretendedDevice, tmp_path: Path
) -> None:
    """What was dispatched until then is compiled, and nothing that was asked for alone."""
    model = open_model(random_model(tmp_path / "m.gguf", quant="Q4_0", layers=1))

    def cases(bench: LoadBench) -> Iterator[Check]:
        yield from check_norms(bench, model)
        bench.kernels.get("silu_mul", {"activation": "activation_silu"}, WG=64)
        raise MemoryError

    kernels = WatchedKernels(device)
    compile_ahead(kernels, Kept(None, {}, {}), cases)
    assert {kernel.key.name for kernel in kernels.all()} == {"rms_norm", "rms_norm_quantize"}
    model.close()


def test_a_kernel_that_is_refused_is_told_by_who_asks_for_it(
    device: PretendedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("no such built-in")

    monkeypatch.setattr(Kernel, "_compile", refused)
    kernels = Kernels(device)
    kernels.compile([KernelKey("finish_logits", (("WG", 64),))])
    with pytest.raises(DeviceError, match="was refused by pretended DiscreteGPU"):
        kernels.get("finish_logits", WG=64).compile()
