"""Classes of hardware, and what is served by default on each. Every default is a setting's, and shown by `emberd fit`.

Knows no device; who opens one says of what kind it is and how much memory it has.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

Tier = Literal["cpu", "software", "integrated", "small", "mid", "large", "unknown"]
"""`cpu`: the NumPy runner; `software`: a GPU played by the CPU; `unknown`: a GPU that does not tell its memory."""

MAIN_MEMORY: frozenset[Tier] = frozenset({"cpu", "software", "integrated"})
"""Classes whose memory is the machine's own, which KV blocks that left the pool take too."""

DEVICE_SHARE = 0.85
"""Of the device's memory, what loaded models may take where the settings say nothing: other programs use some."""

CPU_STEP_TOKENS = 128
"""What the CPU device takes in a step at most. A step of 512 tokens takes seconds, for which running replies wait;
prefill is about a tenth faster with it."""

CPU_SCORES = 1 << 18
"""Scores of attention that the CPU device makes at a time, about: 1 MiB, which stays in a core's cache."""

_BLAS_BYTES = 4 << 20

_SMALL, _MID = 8 << 30, 24 << 30  # bytes of the device up to which it is of that class


@dataclass(frozen=True, slots=True)
class Defaults:
    """What is served where the settings do not say."""

    context: int  # most tokens of a sequence (--ctx)
    kv_memory: int  # most bytes of a model's KV cache (--kv-memory)


DEFAULTS: dict[Tier, Defaults] = {
    "cpu": Defaults(8192, 4 << 30),
    "software": Defaults(32768, 512 << 20),
    "integrated": Defaults(8192, 1 << 30),
    "small": Defaults(16384, 2 << 30),
    "mid": Defaults(32768, 4 << 30),
    "large": Defaults(131072, 8 << 30),
    "unknown": Defaults(32768, 4 << 30),
}


def gpu_tier(kind: str, memory: int | None) -> Tier:
    """Of an adapter of WebGPU's `kind` (DiscreteGPU, IntegratedGPU, CPU, ...) with that many bytes."""
    if kind == "CPU":
        return "software"
    if kind == "IntegratedGPU":
        return "integrated"
    if memory is None:
        return "unknown"
    # A card sold with 8 or 24 GB tells a little less or more.
    return "small" if memory <= 1.1 * _SMALL else "mid" if memory <= 1.1 * _MID else "large"


def num_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def blas_bytes() -> int:
    """What NumPy's BLAS keeps for its further threads once they have run: OpenBLAS, measured with two cores."""
    return _BLAS_BYTES if num_cores() > 1 else 0
