"""How long recorded dispatches take on the device: by timestamp queries, else by waiting for them.

Knows recordings; not what they compute, and judges nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import wgpu

from .device import Device, Tensor
from .replay import Recording


class Clock(Protocol):
    """Times recordings."""

    least_seconds: float
    """A measurement should last this long to mean something."""

    def __call__(self, recordings: Sequence[Recording], times: int) -> list[float]:
        """Seconds that one run of each takes, each run `times` times, one recording behind the other."""


def make_clock(device: Device) -> Clock:
    """The best clock that the device has."""
    tick = device.tick_seconds
    return WallClock(device) if tick is None else TimestampClock(device, tick)


class TimestampClock:
    """GPU time, from the start of a recording's first dispatch to the end of its last one."""

    least_seconds = 0.0005

    def __init__(self, device: Device, tick_seconds: float) -> None:
        self._device, self._tick = device, tick_seconds

    def __call__(self, recordings: Sequence[Recording], times: int) -> list[float]:
        device, count = self._device.wgpu, 2 * len(recordings)
        queries = device.create_query_set(type="timestamp", count=count)
        usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        ticks = device.create_buffer(size=8 * count, usage=usage)
        encoder = device.create_command_encoder()
        for index, recording in enumerate(recordings):
            writes = {
                "query_set": queries,
                "beginning_of_pass_write_index": 2 * index,
                "end_of_pass_write_index": 2 * index + 1,
            }
            _run(encoder, recording, times, timestamp_writes=writes)
        encoder.resolve_query_set(queries, 0, count, ticks, 0)
        device.queue.submit([encoder.finish()])
        found = np.frombuffer(device.queue.read_buffer(ticks, 0, 8 * count), np.int64)
        taken = found.reshape(-1, 2)
        return [float(n) * self._tick / times for n in taken[:, 1] - taken[:, 0]]


class WallClock:
    """Time until the device is done, the way there and back included."""

    least_seconds = 0.005

    def __init__(self, device: Device) -> None:
        self._device = device

    def __call__(self, recordings: Sequence[Recording], times: int) -> list[float]:
        found = []
        for recording in recordings:
            encoder = self._device.wgpu.create_command_encoder()
            _run(encoder, recording, times)
            commands = encoder.finish()
            start = time.perf_counter()
            self._device.wgpu.queue.submit([commands])
            self._device.read(Tensor(recording.output.buffer, (1,)))
            found.append((time.perf_counter() - start) / times)
        return found


def _run(encoder: Any, recording: Recording, times: int, **options: Any) -> None:
    compute = encoder.begin_compute_pass(**options)
    for pipeline, group, grid in recording.steps * times:
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(*grid)
    compute.end()
