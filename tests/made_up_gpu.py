"""The description of a GPU that no machine has, for what needs an adapter's limits only."""

from __future__ import annotations

from emberd.runtime.device import AdapterInfo


def made_up_gpu(binding: int = (2 << 30) - 4, kind: str = "DiscreteGPU") -> AdapterInfo:
    limits = {
        "max-storage-buffer-binding-size": binding,
        "max-buffer-size": 4 << 30,
        "max-compute-invocations-per-workgroup": 1024,
        "max-compute-workgroup-storage-size": 48 << 10,
        "max-compute-workgroups-per-dimension": 65535,
        "min-storage-buffer-offset-alignment": 16,
        "min-uniform-buffer-offset-alignment": 64,
    }
    return AdapterInfo(0, "Made-up GPU", kind, "Vulkan", "", (), limits)
