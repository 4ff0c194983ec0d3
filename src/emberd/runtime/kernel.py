"""Kernel: a WGSL file compiled with its constants, and Dispatch: one run of it on given tensors.

Layouts and parameter packing are read from the WGSL declarations, so the text is the only source of both.
Bindings are group 0: tensors in the op's argument order, then the `Params` uniform last, if there is one.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import wgpu

from ..errors import DeviceError
from .compose import Constant, compose
from .device import UNIFORM, Device, Tensor
from .pair_text import paired_text

_BINDING = re.compile(r"@group\(0\) @binding\((\d+)\)\s+var<([\w, ]+)>\s+(\w+)\s*:")
_PARAMS = re.compile(r"struct Params\s*\{(.*?)\}", re.DOTALL)
_UNIFORM = re.compile(r"@group\(0\) @binding\(\d+\) var<uniform> params: Params;")
_FIELD = re.compile(r"(\w+)\s*:\s*(u32|i32|f32)")


COMPILE_THREADS = min(8, os.cpu_count() or 1)
"""Kernels compiled at a time: the driver takes a core for each."""

_CODES = {"u32": "I", "i32": "i", "f32": "f"}


@dataclass(frozen=True, slots=True)
class KernelKey:
    """What makes a kernel: cache key, label and profile name in one."""

    name: str
    constants: tuple[tuple[str, Constant], ...] = ()
    includes: tuple[tuple[str, str], ...] = ()
    params: tuple[int | float, ...] = ()  # in the text, instead of a uniform
    second: KernelKey | None = None  # what the workgroups behind `first_groups` run
    shared: tuple[str, ...] = ()  # bindings that the second takes from the first

    def __str__(self) -> str:
        parts = [self.name, *(value for _, value in self.includes)]
        parts += (f"{k.lower()}{v}" for k, v in self.constants)
        if self.second is not None:
            others = set(self.second.includes) - set(self.includes)
            parts += ["beside", *sorted(value for _, value in others)]
        return "_".join([*parts, *(f"p{value:g}" for value in self.params)])


class Kernel:
    """A compute pipeline with its explicit layout, compiled when first used; a device compiles each text once."""

    def __init__(self, device: Device, key: KernelKey) -> None:
        self._device, self.key = device, key
        self.label = str(key)
        source, self._overrides = compose(key.name, dict(key.constants), dict(key.includes))
        if key.second is not None:
            other = key.second
            text, _ = compose(other.name, dict(other.constants), dict(other.includes))
            source = paired_text(source, text, key.name, key.shared)
        if key.params:
            source = _UNIFORM.sub(
                f"const params = Params({_literals(source, key.params)});", source
            )
        self.source_digest = hashlib.sha256(source.encode()).hexdigest()
        found = sorted((int(n), access, name) for n, access, name in _BINDING.findall(source))
        self.bindings = tuple(name for _, access, name in found if access.strip() != "uniform")
        self._numbers = [n for n, _, _ in found]
        body = _PARAMS.search(source)
        self.fields = tuple(_FIELD.findall(body.group(1))) if body and not key.params else ()
        self.source, self._found = source, found
        self._layout: Any = None
        self._pipeline: Any = None

    @property
    def is_compiled(self) -> bool:
        return self._pipeline is not None

    @property
    def pipeline(self) -> Any:
        """Raises DeviceError where the device refuses the text."""
        self.compile()
        return self._pipeline

    def compile(self) -> None:
        """Make the pipeline, if it is not there yet. Raises DeviceError where the device refuses the text."""
        if self.is_compiled:
            return
        device = self._device
        compiled = f"{self.source_digest} {sorted(self._overrides.items())}"
        if compiled not in device.pipelines:
            try:
                device.pipelines[compiled] = self._compile()
            except Exception as error:
                raise DeviceError(
                    f"kernel {self.label} was refused by {device.name}: {error}"
                ) from error
        self._layout, self._pipeline = device.pipelines[compiled]

    def _compile(self) -> tuple[Any, Any]:
        """The bind group layout and the pipeline."""
        device = self._device
        _dump(self.label, self.source)
        module = device.wgpu.create_shader_module(label=self.label, code=self.source)
        entries = [
            {
                "binding": n,
                "visibility": wgpu.ShaderStage.COMPUTE,
                "buffer": {"type": _buffer_type(access)},
            }
            for n, access, _ in self._found
        ]
        layout = device.wgpu.create_bind_group_layout(entries=entries)
        pipeline = device.wgpu.create_compute_pipeline(
            label=self.label,
            layout=device.wgpu.create_pipeline_layout(bind_group_layouts=[layout]),
            compute={"module": module, "entry_point": self.key.name, "constants": self._overrides},
        )
        return layout, pipeline

    def pack(self, params: Mapping[str, int | float]) -> bytes:
        """`Params` as the uniform's bytes; every field must be given and no other."""
        assert set(params) == {name for name, _ in self.fields}, (self.label, params, self.fields)
        values = [params[name] for name, _ in self.fields]
        data = struct.pack("<" + "".join(_CODES[kind] for _, kind in self.fields), *values)
        return data.ljust((len(data) + 15) & ~15, b"\0")

    def unpack(self, data: bytes) -> tuple[int | float, ...]:
        """The params that `pack` made these bytes of."""
        return struct.unpack_from("<" + "".join(_CODES[kind] for _, kind in self.fields), data)

    def bind(
        self, device: Device, tensors: Sequence[Tensor], params: tuple[Any, int, int] | None
    ) -> Any:
        """A bind group over the tensors and, if the kernel has one, the params (buffer, offset, size)."""
        assert len(tensors) == len(self.bindings), (self.label, self.bindings, len(tensors))
        resources = [
            {"buffer": t.buffer, "offset": t.offset, "size": (t.nbytes + 15) & ~15} for t in tensors
        ]
        if params is not None:
            resources.append({"buffer": params[0], "offset": params[1], "size": params[2]})
        entries = [
            {"binding": n, "resource": r} for n, r in zip(self._numbers, resources, strict=True)
        ]
        self.compile()
        return device.wgpu.create_bind_group(layout=self._layout, entries=entries)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One run of a kernel: what a plan is made of."""

    kernel: Kernel
    tensors: tuple[Tensor, ...]
    params: bytes  # b"" when the kernel has no Params
    grid: tuple[int, int, int]


class Kernels:
    """The device's compiled kernels, each made once."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._made: dict[KernelKey, Kernel] = {}

    def get(
        self, name: str, includes: Mapping[str, str] | None = None, **constants: Constant
    ) -> Kernel:
        """The kernel `shaders/NAME.wgsl` with `${...}` includes and constants filled in."""
        includes = includes or {}
        return self.of(
            KernelKey(name, tuple(sorted(constants.items())), tuple(sorted(includes.items())))
        )

    def of(self, key: KernelKey) -> Kernel:
        """The kernel of this key."""
        if key not in self._made:
            self._made[key] = Kernel(self.device, key)
        return self._made[key]

    def baked(self, dispatch: Dispatch) -> Dispatch:
        """The same dispatch by a kernel that has its params in its text: no lane waits for them to be read."""
        kernel = dispatch.kernel
        if not dispatch.params:
            return dispatch
        key = replace(kernel.key, params=kernel.unpack(dispatch.params))
        return Dispatch(self.of(key), dispatch.tensors, b"", dispatch.grid)

    def compile(self, keys: Iterable[KernelKey]) -> None:
        """Compile these ahead of their use."""
        compile_together(map(self.of, keys))

    @property
    def reduce(self) -> str:
        """Which reduction include fits the device: `reduce_subgroup` or `reduce`."""
        return "reduce_subgroup" if self.device.subgroup_size else "reduce"

    def all(self) -> list[Kernel]:
        return list(self._made.values())

    def dispatch(
        self,
        kernel: Kernel,
        tensors: Sequence[Tensor],
        grid: tuple[int, int, int],
        **params: int | float,
    ) -> Dispatch:
        """A checked Dispatch: tensor count, parameter names and the grid against the device's limit."""
        assert len(tensors) == len(kernel.bindings), (kernel.label, kernel.bindings)
        if max(grid) > self.device.max_grid:
            raise DeviceError(
                f"kernel {kernel.label} needs a grid of {grid}, and {self.device.name} allows "
                f"{self.device.max_grid} workgroups a side"
            )
        return Dispatch(kernel, tuple(tensors), kernel.pack(params) if kernel.fields else b"", grid)


def compile_together(kernels: Iterable[Kernel]) -> None:
    """Compile these side by side; their use will tell what the device refuses."""

    def compile_one(kernel: Kernel) -> None:
        with suppress(DeviceError):
            kernel.compile()

    missing = {kernel for kernel in kernels if not kernel.is_compiled}
    if missing:
        with ThreadPoolExecutor(COMPILE_THREADS, "emberd-compile") as pool:
            list(pool.map(compile_one, missing))


def run_once(device: Device, dispatches: Sequence[Dispatch]) -> None:
    """Record and submit dispatches through the wgpu wrapper: for tests, loading and verification."""
    encoder = device.wgpu.create_command_encoder()
    compute = encoder.begin_compute_pass()
    for dispatch in dispatches:
        params = None
        if dispatch.params:
            buffer = device.wgpu.create_buffer_with_data(data=dispatch.params, usage=UNIFORM)
            params = (buffer, 0, len(dispatch.params))
        compute.set_pipeline(dispatch.kernel.pipeline)
        compute.set_bind_group(0, dispatch.kernel.bind(device, dispatch.tensors, params))
        compute.dispatch_workgroups(*dispatch.grid)
    compute.end()
    device.wgpu.queue.submit([encoder.finish()])


def _buffer_type(access: str) -> str:
    kinds = {
        "storage,read": "read-only-storage",
        "storage,read_write": "storage",
        "uniform": "uniform",
    }
    return kinds[access.replace(" ", "")]


def _literals(source: str, values: Sequence[int | float]) -> str:
    """Values of `Params` as WGSL writes them, in its fields' order."""
    suffix = {"u32": "u", "i32": "i", "f32": "f"}
    fields = _FIELD.findall(_PARAMS.search(source).group(1))  # type: ignore[union-attr]
    return ", ".join(
        f"{value!r}{suffix[kind]}" for (_, kind), value in zip(fields, values, strict=True)
    )


def _dump(label: str, source: str) -> None:
    if folder := os.environ.get("EMBERD_DUMP_SHADERS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / f"{label}.wgsl").write_text(source, encoding="utf-8")
