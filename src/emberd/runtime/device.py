"""Finding a WebGPU adapter, opening it, and moving bytes to and from it.

The one place that creates wgpu devices and buffers. It knows nothing of models or kernels.
"""

from __future__ import annotations

import logging
import math
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import wgpu
from numpy.typing import NDArray
from wgpu.backends.wgpu_native import lib
from wgpu.backends.wgpu_native.extras import set_instance_extras

from ..errors import DeviceError

logger = logging.getLogger(__name__)

_USAGE = wgpu.BufferUsage
STORAGE = _USAGE.STORAGE | _USAGE.COPY_DST | _USAGE.COPY_SRC
UNIFORM = _USAGE.UNIFORM | _USAGE.COPY_DST

_WANTED_FEATURES = ("subgroup", "timestamp-query", "timestamp-query-inside-passes")
_WANTED_LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-storage-buffers-per-shader-stage",
    "min-storage-buffer-offset-alignment",
    "min-uniform-buffer-offset-alignment",
)

_ONE_SIZE_VENDORS = {0x10DE, 0x106B}
"""NVIDIA and Apple: their subgroups have one size, whatever range the driver reports."""

_SUBGROUP_PROBE = """
@group(0) @binding(0) var<storage, read_write> seen: array<vec2<u32>>;
@compute @workgroup_size(128)
fn probe(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(local_invocation_index) lane: u32,
  @builtin(subgroup_size) size: u32,
  @builtin(subgroup_invocation_id) subgroup_lane: u32,
) {
  seen[group.x * 128u + lane] = vec2<u32>(size, subgroup_lane);
}
"""

_TIMESTAMP_PERIOD = "wgpuQueueGetTimestampPeriod"  # which only the native library has

DType = Literal["f32", "u32", "i32"]
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A range of a GPU buffer, read as `shape` elements of `dtype` (each four bytes wide)."""

    buffer: Any
    shape: tuple[int, ...]
    dtype: DType = "f32"
    offset: int = 0  # bytes

    @property
    def nbytes(self) -> int:
        return 4 * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """What `emberd devices` shows of an adapter."""

    index: int
    name: str
    kind: str  # DiscreteGPU, IntegratedGPU, CPU (software), ...
    backend: str  # Vulkan, Metal, D3D12, OpenGL
    driver: str
    features: tuple[str, ...]
    limits: dict[str, int]

    @property
    def is_software(self) -> bool:
        return self.kind == "CPU"


class _LossHandler(logging.Handler):
    """Hears of lost devices from wgpu's log, which is where its callback tells of them."""

    def __init__(self, told: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._told = told

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("The WGPU device was lost") and not Device.closed_on_purpose:
            self._told(_in_a_line(text).removeprefix("The WGPU device was lost "))


def on_device_loss(told: Callable[[str], None]) -> None:
    """Call `told` with the reason when a device of this process is lost, on any thread and before the library ends the
    process, as it does when a lost device is used. Of a process with one device at a time."""
    logging.getLogger("wgpu").addHandler(_LossHandler(told))


class AllocationError(DeviceError):
    """The device has no room for a buffer."""


class Device:
    """An open wgpu device with the limits and features that kernels ask about.

    `subgroup_size` is the number of lanes when the device has one fixed size, else None: kernels then
    reduce through workgroup memory. `EMBERD_DISABLE_SUBGROUPS=1` forces that path.

    `left_out` names what kernels do without here, as it gave wrong numbers: see `leave_out`.
    """

    closed_on_purpose = False  # one of this process's devices; what is heard of it then is no loss
    holds_data = True  # False: only sizes count, so that no tensor needs to be read

    def __init__(self, adapter: Any) -> None:
        self.info = _describe(0, adapter)
        wanted = [name for name in _WANTED_FEATURES if name in adapter.features]
        limits = {name: adapter.limits[name] for name in _WANTED_LIMITS if name in adapter.limits}
        try:
            self.wgpu = adapter.request_device_sync(
                required_features=wanted, required_limits=limits
            )
        except Exception as error:
            raise DeviceError(
                f"the adapter {self.info.name!r} refused a device: {error}"
            ) from error
        self.features = frozenset(wanted)
        self._set_limits(dict(self.wgpu.limits))
        self.subgroup_size = self._fixed_subgroup_size(adapter)

    def _set_limits(self, limits: dict[str, int]) -> None:
        self.limits = limits
        override = os.environ.get("EMBERD_MAX_BINDING_BYTES")
        self.max_binding_bytes = min(
            int(override) if override else 1 << 62,
            limits["max-storage-buffer-binding-size"],
            limits["max-buffer-size"],
        )
        self.max_workgroup_size = limits["max-compute-invocations-per-workgroup"]
        self.max_workgroup_bytes = limits["max-compute-workgroup-storage-size"]
        self.max_grid = limits["max-compute-workgroups-per-dimension"]
        self.allocated_bytes = 0  # of buffers that live
        self.left_out: frozenset[str] = frozenset()
        self._pulse: Tensor | None = None
        self.pipelines: dict[
            str, tuple[Any, Any]
        ] = {}  # compiled texts: bind group layout, pipeline

    def _fixed_subgroup_size(self, adapter: Any) -> int | None:
        """The one size that every kernel gets, or None where a driver may choose another."""
        if "subgroup" not in self.features or os.environ.get("EMBERD_DISABLE_SUBGROUPS") == "1":
            return None
        info = dict(adapter.info)
        # wgpu-py spells these two oddly; the right spelling is tried in case it comes back.
        low = info.get("subgroup_min_size", info.get("stackgroup_min_size"))
        high = info.get("subgroup_max_size", info.get("stackgroup_max_size"))
        if low and low == high:
            return int(low)
        return self._probed_subgroup_size() if info.get("vendor_id") in _ONE_SIZE_VENDORS else None

    def _probed_subgroup_size(self) -> int | None:
        """The size that a kernel sees, where lanes lie in subgroups in their order."""
        module = self.wgpu.create_shader_module(code=_SUBGROUP_PROBE)
        pipeline = self.wgpu.create_compute_pipeline(layout="auto", compute={"module": module})
        out = self.upload(np.zeros((256, 2), np.uint32))
        entry = {"binding": 0, "resource": {"buffer": out.buffer, "offset": 0, "size": out.nbytes}}
        group = self.wgpu.create_bind_group(
            layout=pipeline.get_bind_group_layout(0), entries=[entry]
        )
        encoder = self.wgpu.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(2)
        compute.end()
        self.wgpu.queue.submit([encoder.finish()])
        sizes, lanes = self.read(out).T
        size = int(sizes[0])
        in_order = size > 0 and np.array_equal(lanes, np.arange(256) % 128 % size)
        return size if in_order and (sizes == size).all() else None

    @property
    def name(self) -> str:
        return self.info.name

    def leave_out(self, features: Iterable[str]) -> None:
        """From now on kernels are made without these: `paired`, `baked`, `fused`, `subgroups`, `matvec`, `matmul`
        (each of which has a plainer variant), or the name of a quant type (whose weights then become Q8_0)."""
        self.left_out |= frozenset(features)
        if "subgroups" in self.left_out:
            self.subgroup_size = None

    @property
    def tick_seconds(self) -> float | None:
        """Seconds of a tick of timestamp queries, None where there are none."""
        if "timestamp-query" not in self.features or not hasattr(lib, _TIMESTAMP_PERIOD):
            return None
        period = float(getattr(lib, _TIMESTAMP_PERIOD)(self.wgpu.queue._internal))
        return 1e-9 * period if period > 0 else None

    def empty(self, shape: tuple[int, ...], dtype: DType = "f32", label: str = "") -> Tensor:
        """A tensor of zeros in a buffer of its own."""
        nbytes = max(4, 4 * int(np.prod(shape, dtype=np.int64)))
        return Tensor(self.buffer(nbytes, label), shape, dtype)

    def buffer(self, nbytes: int, label: str = "", usage: int = STORAGE) -> Any:
        """A buffer of at least `nbytes`, zeroed. Raises DeviceError naming need and limit."""
        self._check_binding(nbytes, label)
        try:
            made = self.wgpu.create_buffer(size=(nbytes + 15) & ~15, usage=usage, label=label)
        except Exception as error:
            if "is lost" in str(error):
                raise DeviceError(f"the device {self.name} was lost") from error
            raise AllocationError(
                f"{self.name} has no room for {label or 'a buffer'} of {nbytes} bytes beside the "
                f"{self.allocated_bytes} that were taken: {_in_a_line(error)}"
            ) from error
        self.allocated_bytes += nbytes
        weakref.finalize(made, self._forget, nbytes).atexit = False
        return made

    def _forget(self, nbytes: int) -> None:
        self.allocated_bytes -= nbytes

    def _check_binding(self, nbytes: int, label: str) -> None:
        if nbytes > self.max_binding_bytes:
            raise DeviceError(
                f"{label or 'a buffer'} needs {nbytes} bytes in one binding, and {self.name} allows "
                f"{self.max_binding_bytes}"
            )

    def upload(self, array: Array, dtype: DType | None = None, label: str = "") -> Tensor:
        """A tensor holding `array` (four-byte elements, or bytes whose count is a multiple of four)."""
        data = np.ascontiguousarray(array)
        kinds: dict[str, DType] = {"f": "f32", "i": "i32", "u": "u32"}
        dtype = dtype or kinds[data.dtype.kind]
        shape = data.shape if data.dtype.itemsize == 4 else (data.nbytes // 4,)
        tensor = self.empty(shape, dtype, label)
        self.write(tensor, data)
        return tensor

    def write(self, tensor: Tensor, array: Array, offset: int = 0) -> None:
        """Copy `array` into the tensor, `offset` bytes from its start."""
        data = np.ascontiguousarray(array)
        assert offset + data.nbytes <= tensor.nbytes and data.nbytes % 4 == 0
        if data.nbytes:
            self.wgpu.queue.write_buffer(tensor.buffer, tensor.offset + offset, data.data.cast("B"))

    def read(self, tensor: Tensor) -> Array:
        """The tensor's values; waits for all submitted work."""
        raw = self.wgpu.queue.read_buffer(tensor.buffer, tensor.offset, tensor.nbytes)
        kind = {"f32": np.float32, "u32": np.uint32, "i32": np.int32}[tensor.dtype]
        return np.frombuffer(raw, kind).reshape(tensor.shape).copy()

    def touch(self) -> None:
        """Use the device a little, so that its loss shows: raises DeviceError, or `on_device_loss` is told."""
        if self._pulse is None:
            self._pulse = self.upload(np.zeros(4, np.uint32), label="pulse")
        try:
            self.write(self._pulse, np.zeros(4, np.uint32))
        except Exception as error:
            raise DeviceError(f"the device {self.name} was lost: {_in_a_line(error)}") from error
        self.wgpu.queue.submit([])

    def close(self) -> None:
        Device.closed_on_purpose = True
        self.wgpu.destroy()


def adapters() -> list[AdapterInfo]:
    """Every adapter that WebGPU reaches on this machine, in wgpu's order."""
    return [_describe(index, adapter) for index, adapter in enumerate(_enumerate())]


def choose_adapter(wanted: str = "auto") -> tuple[AdapterInfo | None, str]:
    """The adapter that a device setting selects, and the reason in words.

    `auto`: the first real GPU, else None (the CPU device serves). `gpu`: a real GPU, else a software
    adapter. `cpu`: None. Anything else: the first adapter whose name contains it; DeviceError if none does.
    """
    if wanted == "cpu":
        return None, "the cpu device was asked for"
    found = adapters()
    real = [info for info in found if not info.is_software]
    real.sort(key=lambda info: info.kind != "DiscreteGPU")
    if wanted == "auto":
        if real:
            return real[0], f"first real GPU ({real[0].kind})"
        return None, "no real GPU was found, so the NumPy runner on the CPU serves"
    if wanted == "gpu":
        if real:
            return real[0], f"first real GPU ({real[0].kind})"
        if found:
            return found[
                0
            ], "no real GPU was found; a software adapter was taken since a gpu was asked for"
        raise DeviceError(
            "no WebGPU adapter was found; use --device cpu, or install a Vulkan driver"
        )
    for info in found:
        if wanted.lower() in info.name.lower():
            return info, f"its name contains {wanted!r}"
    names = ", ".join(info.name for info in found) or "none"
    raise DeviceError(f"no adapter's name contains {wanted!r}; adapters found: {names}")


def open_device(wanted: str = "gpu") -> Device:
    """Open the adapter that `wanted` selects. DeviceError when there is none."""
    info, reason = choose_adapter(wanted)
    if info is None:
        raise DeviceError(f"no GPU to open: {reason}")
    logger.info("device %s: %s", info.name, reason)
    return Device(_enumerate()[info.index])


@cache
def _set_backends() -> None:
    """Leave OpenGL out: it lacks what the kernels need.

    Mesa's window code, which nobody uses here, complains on stderr where XDG_RUNTIME_DIR is unset.
    """
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    set_instance_extras(backends=["Vulkan", "Metal", "DX12"])


def _enumerate() -> list[Any]:
    _set_backends()
    try:
        return list(wgpu.gpu.enumerate_adapters_sync())
    except Exception as error:  # no Vulkan loader, a broken driver
        logger.warning("WebGPU adapters could not be listed: %s", error)
        return []


def _in_a_line(text: object) -> str:
    return " ".join(str(text).split())


def _describe(index: int, adapter: Any) -> AdapterInfo:
    info = dict(adapter.info)
    return AdapterInfo(
        index=index,
        name=str(info.get("device") or adapter.summary),
        kind=str(info.get("adapter_type", "")),
        backend=str(info.get("backend_type", "")),
        driver=str(info.get("description", "")),
        features=tuple(sorted(adapter.features)),
        limits=dict(adapter.limits),
    )
