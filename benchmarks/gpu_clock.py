"""GPU time by timestamp queries, and the limits that results are held against.

Times passes of dispatches on an open device. It knows no model and judges nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import wgpu
from wgpu.backends.wgpu_native import lib

from common import Spread
from emberd.errors import DeviceError
from emberd.runtime.device import Device
from emberd.runtime.kernel import Dispatch
from emberd.runtime.replay import record

Step = tuple[Any, Any, tuple[int, int, int]]
"""Pipeline, bind group, grid."""

_MAX_QUERIES = 4096

_READ = """
@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@compute @workgroup_size(256)
fn main(
  @builtin(global_invocation_id) thread: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
) {
  let stride = groups.x * 256u;
  let n = arrayLength(&x);
  var sum = vec4<u32>();
  for (var i = thread.x; i < n; i += stride) { sum += x[i]; }
  if (dot(sum, vec4<u32>(1u)) == 12345u) { y[0] = 1u; }
}
"""

# Eight chains a lane, each step taking the last one's result, so that nothing can be hoisted.
_DOT4 = """
const ROUNDS = 512u;
@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
fn turn(sums: vec4<i32>, q: u32) -> vec4<i32> {
  let words = bitcast<vec4<u32>>(sums);
  return sums + vec4<i32>(
    dot4I8Packed(words.x, q), dot4I8Packed(words.y, q),
    dot4I8Packed(words.z, q), dot4I8Packed(words.w, q));
}
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) thread: vec3<u32>) {
  let q = x[thread.x % arrayLength(&x)];
  var a = bitcast<vec4<i32>>(q);
  var b = a + vec4<i32>(i32(thread.x));
  for (var i = 0u; i < ROUNDS; i++) {
    a = turn(a, q.x);
    b = turn(b, q.y);
  }
  if (dot(a, b) == 12345) { y[0] = 1u; }
}
"""
_DOT4_OPS_A_LANE = 512 * 8 * 8


class GpuClock:
    """Times passes. Raises DeviceError on a device without timestamp queries."""

    def __init__(self, device: Device) -> None:
        if "timestamp-query" not in device.features:
            raise DeviceError(f"{device.name} has no timestamp queries, which this benchmark needs")
        self._device = device
        self._queries = device.wgpu.create_query_set(type="timestamp", count=_MAX_QUERIES)
        usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        self._ticks = device.wgpu.create_buffer(size=8 * _MAX_QUERIES, usage=usage)
        self._second = 1e-9 * float(lib.wgpuQueueGetTimestampPeriod(device.wgpu.queue._internal))

    def prepare(self, dispatches: Sequence[Dispatch]) -> list[Step]:
        """Bind groups for dispatches, as a plan has them."""
        return record(self._device, dispatches, dispatches[-1].tensors[-1]).steps

    def passes(self, passes: Sequence[Sequence[Step]]) -> list[float]:
        """Seconds of GPU time of each pass, from its first dispatch's start to its last one's end."""
        found: list[float] = []
        for first in range(0, len(passes), _MAX_QUERIES // 2):
            found += self._some_passes(passes[first : first + _MAX_QUERIES // 2])
        return found

    def _some_passes(self, passes: Sequence[Sequence[Step]]) -> list[float]:
        wgpu_device, queries = self._device.wgpu, 2 * len(passes)
        encoder = wgpu_device.create_command_encoder()
        for index, steps in enumerate(passes):
            compute = encoder.begin_compute_pass(
                timestamp_writes={
                    "query_set": self._queries,
                    "beginning_of_pass_write_index": 2 * index,
                    "end_of_pass_write_index": 2 * index + 1,
                }
            )
            for pipeline, group, grid in steps:
                compute.set_pipeline(pipeline)
                compute.set_bind_group(0, group)
                compute.dispatch_workgroups(*grid)
            compute.end()
        encoder.resolve_query_set(self._queries, 0, queries, self._ticks, 0)
        wgpu_device.queue.submit([encoder.finish()])
        raw = wgpu_device.queue.read_buffer(self._ticks, 0, 8 * queries)
        ticks = np.frombuffer(raw, np.int64).reshape(-1, 2)
        return [float(taken) * self._second for taken in ticks[:, 1] - ticks[:, 0]]


def repeated(clock: GpuClock, steps: Sequence[Step], least: float, repeats: int) -> Spread:
    """Seconds of one run of `steps`, run often enough that a pass lasts `least` seconds."""
    (once,) = clock.passes([steps])
    (once,) = clock.passes([steps])  # the first also compiles, on some devices
    times = max(1, min(round(least / max(once, 1e-7)), 20_000 // len(steps)))
    chain = list(steps) * times
    return Spread.of(clock.passes([chain])[0] / times for _ in range(repeats))


def read_bandwidth(device: Device, clock: GpuClock, repeats: int) -> Spread:
    """Bytes a second of a kernel that only reads, over a buffer far larger than the caches."""
    nbytes = min(device.max_binding_bytes & ~15, (64 << 20) if device.info.is_software else 1 << 30)
    step = _plain(device, _READ, nbytes, 4096)
    times = repeated(clock, [step], 0.01, repeats)
    return Spread(nbytes / times.median, nbytes / times.high, nbytes / times.low, times.n)


def dot4_rate(device: Device, clock: GpuClock, repeats: int) -> Spread:
    """Operations a second of `dot4I8Packed` chains: 8 a call, 4 products and 4 additions."""
    groups = 64 if device.info.is_software else 8192
    step = _plain(device, _DOT4, 1 << 16, groups)
    times = repeated(clock, [step], 0.01, repeats)
    ops = groups * 256 * _DOT4_OPS_A_LANE
    return Spread(ops / times.median, ops / times.high, ops / times.low, times.n)


def _plain(device: Device, code: str, nbytes: int, groups: int) -> Step:
    module = device.wgpu.create_shader_module(code=code)
    pipeline = device.wgpu.create_compute_pipeline(
        layout="auto", compute={"module": module, "entry_point": "main"}
    )
    rng = np.random.default_rng()
    x = device.empty((nbytes // 4,), "u32", "limit input")
    device.write(x, rng.integers(0, 1 << 32, min(nbytes // 4, 1 << 14), dtype=np.uint32))
    y = device.empty((4,), "u32")
    entries = [
        {"binding": i, "resource": {"buffer": t.buffer, "offset": 0, "size": t.nbytes}}
        for i, t in enumerate((x, y))
    ]
    group = device.wgpu.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
    return pipeline, group, (groups, 1, 1)
