"""A device that has no room for a model."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from emberd.errors import ModelLoadError
from emberd.protocol import WorkerOptions
from emberd.runtime.device import Device
from emberd.runtime.runner import GpuRunner
from tiny_gguf import random_model

pytestmark = pytest.mark.device


def test_a_device_without_room_says_what_was_needed(
    tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = random_model(tmp_path / "tiny.gguf", quant="Q8_0", layers=1)
    create = device.wgpu.create_buffer

    def limited(**given: Any) -> Any:
        if given["size"] > 1 << 19:
            raise RuntimeError("Not enough memory left")
        return create(**given)

    monkeypatch.setattr(device.wgpu, "create_buffer", limited)
    options = WorkerOptions(str(path), "gpu", 4096, max_sequences=1, max_batch_tokens=16)
    with pytest.raises(ModelLoadError) as raised:
        GpuRunner.load(options)
    gc.collect()  # threads of the load that was given up
    text = str(raised.value)
    assert "tiny.gguf needs" in text and "a KV cache of 4096 tokens" in text
    assert f"{device.name} has no room for" in text and "Not enough memory left" in text
