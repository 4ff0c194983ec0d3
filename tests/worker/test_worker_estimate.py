"""A worker process that is asked what a load would take: it tells, loads nothing, and ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from emberd.errors import DeviceError, ModelFileError, ModelLoadError
from emberd.estimate import MemoryQuestion
from emberd.protocol import WorkerOptions
from emberd.runtime import device as devices
from emberd.worker.client import WorkerClient
from emberd.worker.draft import parted
from emberd.worker.process import estimate_memory, load_runner, load_runners
from made_up_gpu import made_up_gpu
from tiny_encoder import encoder_model
from tiny_gguf import random_model


@pytest.mark.slow
def test_a_process_tells_what_a_load_would_take(tmp_path: Path) -> None:
    path = random_model(tmp_path / "m.gguf", layers=1)

    async def work() -> None:
        options = WorkerOptions(str(path), "cpu", context_length=64)
        told = await WorkerClient.estimate(MemoryQuestion(options))
        assert (told.device_kind, told.context_length) == ("cpu", 64)
        assert told.weight_bytes > 0 and not told.refusal
        with pytest.raises(ModelFileError, match=r"no\.gguf"):
            await WorkerClient.estimate(MemoryQuestion(WorkerOptions(str(tmp_path / "no.gguf"))))

    asyncio.run(work())


def test_weights_that_do_not_fit_are_named_and_not_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, memory = random_model(tmp_path / "m.gguf", layers=1), psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=1000))
    told = estimate_memory(MemoryQuestion(WorkerOptions(str(path), "cpu")))
    assert "of memory as float32 on the CPU" in told.refusal
    assert told.context_length == told.kv_bytes == 0


@pytest.mark.device
@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize(("kind", "head_dim"), [("decoder", 514), ("encoder", 1032)])
def test_heads_that_no_gpu_takes_are_the_cpus_unless_a_gpu_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, head_dim: int, verify: bool
) -> None:
    """Told as what they are, and not as kernels that are wrong; the estimate is of the device that will serve."""
    monkeypatch.setattr(devices, "choose_adapter", lambda _: (made_up_gpu(), "made up"))
    path = tmp_path / "m.gguf"
    if kind == "decoder":
        random_model(path, layers=1, width=64, heads=2, kv_heads=1, head_dim=head_dim)
    else:
        encoder_model(path, layers=1, width=head_dim, heads=1)
    options = WorkerOptions(str(path), "auto", context_length=64, verify=verify)
    runner = load_runner(options, lambda _: None)
    info = runner.info()
    runner.close()
    assert info.device_kind == "cpu" == estimate_memory(MemoryQuestion(options)).device_kind
    told = f"heads of {head_dim} dims are not supported"
    assert told in info.verification
    named = replace(options, device="gpu")
    with pytest.raises(DeviceError, match=told):
        load_runner(named, lambda _: None)
    assert told in estimate_memory(MemoryQuestion(named)).refusal


@pytest.mark.device
def test_a_draft_is_asked_about_on_its_models_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that this device cannot run is refused ahead of the model's load; one that the CPU serves beside its model
    is no GPU's."""
    monkeypatch.setattr(devices, "choose_adapter", lambda _: (made_up_gpu(), "made up"))
    sizes = {"layers": 1, "width": 64, "heads": 2, "kv_heads": 1}
    usual, huge = (
        str(random_model(tmp_path / f"{size}.gguf", **sizes, head_dim=size)) for size in (32, 514)
    )
    options = WorkerOptions(usual, "auto", context_length=64, verify=False, draft_path=huge)
    told = "--draft: attention heads of 514 dims are not supported"
    assert estimate_memory(MemoryQuestion(options)).refusal.startswith(told)
    with pytest.raises(ModelLoadError, match=told):
        load_runners(options, lambda _: None, lambda *_: pytest.fail("the model was loaded"))
    options = replace(options, model_path=huge, draft_path=usual)
    assert parted(options, estimate_memory).made.device_kind == "cpu"
    runner, draft = load_runners(options, lambda _: None)
    assert draft is not None and draft.runner.info().device_kind == "cpu"
    runner.close()
