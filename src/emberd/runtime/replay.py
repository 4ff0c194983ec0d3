"""Replaying recorded dispatches on the GPU, a few steps in flight, without making Python objects.

The only file that calls wgpu's private `lib`: the same calls through the wrapper cost three times
as much CPU (docs/performance.md). `EMBERD_REPLAY=wrapper` takes the wrapper instead, for checking.

A step's CPU cost is half Python calls that record and half one library call that finishes the
commands. The second half runs on a thread of its own, beside the recording of the next step.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import wgpu
from numpy.typing import NDArray
from wgpu.backends.wgpu_native import ffi, lib

from ..errors import DeviceError
from .device import UNIFORM, Device, Tensor
from .kernel import Dispatch, compile_together

logger = logging.getLogger(__name__)

_STAGING = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
Bytes = NDArray[np.uint8]
Words = NDArray[np.int32]


HEAD = 16
"""Dispatches that a GPU with nothing to do gets ahead of the rest, and runs while that is recorded."""

Call = tuple[Any, Any, int, int, int]  # pipeline, bind group, grid: raw pointers


@dataclass(slots=True)
class Recording:
    """Dispatches with their bind groups made: (pipeline, bind group, grid) in order.

    `calls` is the same for `lib`: raw pointers, kept alive by `steps`.
    """

    steps: list[tuple[Any, Any, tuple[int, int, int]]]
    calls: list[Call]
    params: Any  # the uniform buffer that the bind groups point into
    output: Tensor  # copied back after the last dispatch
    dispatches: tuple[Dispatch, ...]  # what `steps` are made of; benchmarks/breakdown.py names them
    read_back: bool  # False: nothing is copied, nor to be collected


def record(
    device: Device, dispatches: Sequence[Dispatch], output: Tensor, read_back: bool = True
) -> Recording:
    """Make the bind groups of a plan. All parameters go into one uniform buffer."""
    compile_together(dispatch.kernel for dispatch in dispatches)
    align = max(16, device.limits["min-uniform-buffer-offset-alignment"])
    offsets, data = [], bytearray()
    for dispatch in dispatches:
        offsets.append(len(data))
        data += dispatch.params.ljust(-(-len(dispatch.params) // align) * align, b"\0")
    params = device.wgpu.create_buffer_with_data(data=bytes(data) or bytes(16), usage=UNIFORM)
    steps = []
    for dispatch, offset in zip(dispatches, offsets, strict=True):
        uniform = (params, offset, len(dispatch.params)) if dispatch.params else None
        group = dispatch.kernel.bind(device, dispatch.tensors, uniform)
        steps.append((dispatch.kernel.pipeline, group, dispatch.grid))
    calls = [(pipeline._internal, group._internal, *grid) for pipeline, group, grid in steps]
    return Recording(steps, calls, params, output, tuple(dispatches), read_back)


class Replayer(Protocol):
    """Submits recordings and gives their outputs back in order."""

    def submit(self, recording: Recording, inputs: Tensor, values: Words) -> None:
        """Write `values` to `inputs`, then run the recording. `values` may be reused on return."""

    def flush(self) -> None:
        """Return when all that was submitted has reached the queue: writes from here come after it."""

    def collect(self) -> Bytes:
        """Wait for the oldest recording's output."""

    def close(self) -> None: ...


def make_replayer(device: Device, output_bytes: int, depth: int) -> Replayer:
    """The direct replayer, or the wrapper's where that is asked for or the library is another."""
    if os.environ.get("EMBERD_REPLAY") == "wrapper":
        return WrapperReplayer(device)
    missing = [name for name in _NEEDED if not hasattr(lib, name)]
    if missing:
        logger.warning("replaying through the wgpu wrapper: the library lacks %s", missing)
        return WrapperReplayer(device)
    return DirectReplayer(device, output_bytes, depth)


class WrapperReplayer:
    """Plain wgpu calls; reading back waits for everything submitted."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._outputs: deque[Any] = deque()

    def submit(self, recording: Recording, inputs: Tensor, values: Words) -> None:
        self._device.write(inputs, values)
        encoder = self._device.wgpu.create_command_encoder()
        compute = encoder.begin_compute_pass()
        for pipeline, group, grid in recording.steps:
            compute.set_pipeline(pipeline)
            compute.set_bind_group(0, group)
            compute.dispatch_workgroups(*grid)
        compute.end()
        if recording.read_back:
            output = recording.output
            staging = self._device.wgpu.create_buffer(size=output.nbytes, usage=_STAGING)
            encoder.copy_buffer_to_buffer(output.buffer, output.offset, staging, 0, output.nbytes)
            self._outputs.append(staging)
        self._device.wgpu.queue.submit([encoder.finish()])

    def collect(self) -> Bytes:
        staging = self._outputs.popleft()
        staging.map_sync("READ")
        data = np.frombuffer(staging.read_mapped(), np.uint8).copy()
        staging.unmap()
        staging.destroy()
        return data

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None: ...


_NEEDED = (
    "wgpuDeviceCreateCommandEncoder",
    "wgpuCommandEncoderBeginComputePass",
    "wgpuComputePassEncoderSetPipeline",
    "wgpuComputePassEncoderSetBindGroup",
    "wgpuComputePassEncoderDispatchWorkgroups",
    "wgpuCommandEncoderCopyBufferToBuffer",
    "wgpuQueueSubmitForIndex",
    "wgpuBufferMapAsync",
    "wgpuDevicePoll",
)


@dataclass(slots=True)
class _Staging:
    """Where one step's output is copied to and mapped."""

    buffer: Any
    internal: Any
    callback: Any  # kept alive while mapped
    callback_info: Any
    status: list[int]  # [0] until the map callback has run
    nbytes: int = 0
    index: Any = None  # submission index, for waiting on this step alone


class DirectReplayer:
    """The same through `lib`: records here, finishes and submits on a thread, waits for one step.

    Waiting for a step holds a lock inside wgpu that submitting needs. So a step is waited for only
    when another behind it has been submitted, and the GPU does not run dry meanwhile: for the thread
    to gain anything, three steps must be in flight.
    """

    def __init__(self, device: Device, output_bytes: int, depth: int) -> None:
        self._device = device
        self._internal = device.wgpu._internal
        self._queue = device.wgpu.queue._internal
        self._free = [self._make_staging(output_bytes) for _ in range(depth)]
        self._in_flight: deque[_Staging] = deque()
        self._thread = ThreadPoolExecutor(1, "emberd-submit")
        self._submitting: Future[None] | None = None

    def _make_staging(self, nbytes: int) -> _Staging:
        buffer = self._device.wgpu.create_buffer(size=nbytes, usage=_STAGING)
        status = [0]

        @ffi.callback("void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)")  # type: ignore[untyped-decorator]
        def mapped(code: int, _message: Any, _a: Any, _b: Any) -> None:
            status[0] = int(code)

        info = ffi.new("WGPUBufferMapCallbackInfo *")
        info.mode = lib.WGPUCallbackMode_AllowProcessEvents
        info.callback = mapped
        return _Staging(buffer, buffer._internal, mapped, info, status)

    def submit(self, recording: Recording, inputs: Tensor, values: Words) -> None:
        staging = self._free.pop() if recording.read_back else None
        calls, data = recording.calls, values.tobytes()
        if not self._in_flight and self._submitting is None and len(calls) > 2 * HEAD:
            self._write(inputs, data)
            self._send(self._record(calls[:HEAD]))
            calls, data = calls[HEAD:], b""
        encoder = self._record(calls)
        if staging is not None:
            self._record_copy(encoder, recording.output, staging)
        self.flush()
        self._submitting = self._thread.submit(self._finish, encoder, staging, inputs, data)
        if staging is not None:
            self._in_flight.append(staging)

    def flush(self) -> None:
        if self._submitting is not None:
            self._submitting.result()
            self._submitting = None

    def _record(self, calls: Sequence[Call]) -> Any:
        null = ffi.NULL
        encoder = lib.wgpuDeviceCreateCommandEncoder(self._internal, null)
        compute = lib.wgpuCommandEncoderBeginComputePass(encoder, null)
        set_pipeline = lib.wgpuComputePassEncoderSetPipeline
        set_group = lib.wgpuComputePassEncoderSetBindGroup
        run = lib.wgpuComputePassEncoderDispatchWorkgroups
        last = None
        for pipeline, group, x, y, z in calls:
            if pipeline is not last:
                set_pipeline(compute, pipeline)
                last = pipeline
            set_group(compute, 0, group, 0, null)
            run(compute, x, y, z)
        lib.wgpuComputePassEncoderEnd(compute)
        lib.wgpuComputePassEncoderRelease(compute)
        return encoder

    def _record_copy(self, encoder: Any, output: Tensor, staging: _Staging) -> None:
        lib.wgpuCommandEncoderCopyBufferToBuffer(
            encoder, output.buffer._internal, output.offset, staging.internal, 0, output.nbytes
        )
        staging.nbytes = output.nbytes
        staging.status[0] = 0

    def _write(self, inputs: Tensor, data: bytes) -> None:
        lib.wgpuQueueWriteBuffer(
            self._queue, inputs.buffer._internal, inputs.offset, data, len(data)
        )

    def _send(self, encoder: Any) -> Any:
        """Finish and submit; the submission's index."""
        commands = lib.wgpuCommandEncoderFinish(encoder, ffi.NULL)
        index = lib.wgpuQueueSubmitForIndex(
            self._queue, 1, ffi.new("WGPUCommandBuffer[1]", [commands])
        )
        lib.wgpuCommandBufferRelease(commands)
        lib.wgpuCommandEncoderRelease(encoder)
        return index

    def _finish(self, encoder: Any, staging: _Staging | None, inputs: Tensor, data: bytes) -> None:
        if data:
            self._write(inputs, data)
        index = self._send(encoder)
        if staging is None:
            return
        staging.index = index
        lib.wgpuBufferMapAsync(
            staging.internal, lib.WGPUMapMode_Read, 0, staging.nbytes, staging.callback_info[0]
        )

    def collect(self) -> Bytes:
        staging = self._in_flight.popleft()
        if len(self._in_flight) < 2:
            self.flush()
        index = ffi.new("WGPUSubmissionIndex *", staging.index)
        while staging.status[0] == 0:
            lib.wgpuDevicePoll(self._internal, True, index)
        if staging.status[0] != lib.WGPUMapAsyncStatus_Success:
            raise DeviceError(
                f"{self._device.name} was lost: a step's output could not be read back "
                f"(status {staging.status[0]})"
            )
        source = lib.wgpuBufferGetMappedRange(staging.internal, 0, staging.nbytes)
        data = np.frombuffer(ffi.buffer(source, staging.nbytes), np.uint8).copy()
        lib.wgpuBufferUnmap(staging.internal)
        self._free.append(staging)
        return data

    def close(self) -> None:
        self._thread.shutdown()
