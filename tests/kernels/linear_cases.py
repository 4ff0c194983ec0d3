"""What the tests of the linear kernels share: random weights, int8 activations, one product checked."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GGMLType
from numpy.typing import NDArray

from emberd.gguf import dequant as gguf_types
from emberd.gguf.dequant import dequantize
from emberd.reference import ops as reference
from emberd.runtime import linear
from emberd.runtime.activations import steps_of, words_of
from emberd.runtime.device import Device, Tensor
from emberd.runtime.kernel import Kernels, run_once
from emberd.runtime.matmul import MatmulTable, MatmulTile
from emberd.runtime.matvec import MatvecTable, MatvecTile
from emberd.runtime.weights import FLOAT_TYPES, WeightMatrix
from tiny_gguf import random_rows
from tolerance import TOLERANCE, check

Array = NDArray[Any]

QUANT_TYPES = [
    kind for kind in gguf_types.QUANT_TYPES if kind not in FLOAT_TYPES | {*gguf_types.DECODED_TYPES}
]
ALL_TYPES = [GGMLType.F32, GGMLType.F16, GGMLType.BF16, *QUANT_TYPES]

NARROW = linear.LinearTable(
    matvec=MatvecTable(
        tokens=8,
        group=8,
        rows=((1, 1, MatvecTile(1, 1, 8)),),
        output=((1, 1, MatvecTile(1, 4, 8)),),
        gate_up=((1, MatvecTile(1, 4, 16)),),
    ),
    matmul=MatmulTable(((1, MatmulTile(16, 16, 4)),)),
)
"""The least of every tile: quick to compile on a software device."""


def with_rows_tile(tile: MatvecTile, tokens: int = 8) -> linear.LinearTable:
    """NARROW with this tile for plain products of up to `tokens` tokens."""
    return replace(NARROW, matvec=replace(NARROW.matvec, tokens=tokens, rows=((1, 1, tile),)))


TELLING = 64
"""Values from which on int8 activations are within their tolerance of float ones: of 16 random products, 1 in 80 are
not, by chance alone (none of 6000 times 76)."""


def columns(kind: GGMLType) -> int:
    """A width that is whole quant blocks, an odd number of units where the type allows it."""
    return 512 if gguf_types.quant_type(kind).weights == 256 else 160


def limited(device: Device, **limits: int) -> Device:
    """The same device with lower limits."""
    other = copy.copy(device)
    for name, value in limits.items():
        assert hasattr(other, name)
        setattr(other, name, value)
    return other


_SUBGROUP_SIZE = """
@group(0) @binding(0) var<storage, read_write> size: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(subgroup_size) lanes: u32, @builtin(local_invocation_index) lane: u32) {
  if (lane == 0u) { size[0] = lanes; }
}
"""


def with_subgroups(device: Device) -> Device:
    """The same device, told the subgroup size that it really uses: also where it admits to no fixed one."""
    if "subgroup" not in device.features:
        pytest.skip(f"{device.name} has no subgroups")
    size = device.empty((1,), "u32")
    module = device.wgpu.create_shader_module(code=_SUBGROUP_SIZE)
    pipeline = device.wgpu.create_compute_pipeline(
        layout="auto", compute={"module": module, "entry_point": "main"}
    )
    group = device.wgpu.create_bind_group(
        layout=pipeline.get_bind_group_layout(0),
        entries=[{"binding": 0, "resource": {"buffer": size.buffer, "offset": 0, "size": 4}}],
    )
    encoder = device.wgpu.create_command_encoder()
    compute = encoder.begin_compute_pass()
    compute.set_pipeline(pipeline)
    compute.set_bind_group(0, group)
    compute.dispatch_workgroups(1)
    compute.end()
    device.wgpu.queue.submit([encoder.finish()])
    return limited(device, subgroup_size=int(device.read(size)[0]))


def random_weights(
    rng: np.random.Generator, rows: int, kind: GGMLType
) -> tuple[NDArray[np.uint8], Array]:
    """Raw rows of a type and the floats they stand for."""
    raw = random_rows(rng, rows, columns(kind), kind)
    return raw, dequantize(raw, kind)


def quantized(
    device: Device, x: Array, group: int = 32, fine: bool = False
) -> tuple[linear.QuantizedActivations, Array]:
    """int8 activations made by the reference, and the floats that they stand for."""
    steps, scale = reference.round_steps(x, group, fine)
    scales = np.repeat(scale, group // 16, axis=1)
    sums = steps.reshape(len(x), -1, 16).sum(axis=2)
    made = linear.activations(device, *x.shape, group=group, fine=fine)
    device.write(made.q, words_of(steps, fine))
    device.write(made.scales, np.stack([scales, scales * sums], axis=-1).astype(np.float32))
    return made, steps * np.repeat(scale, group, axis=1)


def poisoned(
    device: Device,
    rows: int,
    width: int,
    eps: float | None = None,
    group: int = 16,
    fine: bool = False,
) -> linear.QuantizedActivations:
    """Room for int8 activations in which what is not written shows."""
    out = linear.activations(device, rows, width, eps, group, fine)
    device.write(out.q, np.full(out.q.shape, 0x55555555, np.uint32))
    device.write(out.scales, np.full(out.scales.shape, np.nan, np.float32))
    if out.norm is not None:
        device.write(out.norm.squares, np.full(out.norm.squares.shape, np.nan, np.float32))
    return out


def check_quantized(device: Device, out: linear.QuantizedActivations, expected: Array) -> None:
    """The first rows are `expected` rounded as the reference does; the others are as `poisoned` left them."""
    live, words, scales = len(expected), device.read(out.q), device.read(out.scales)
    assert (words[live:] == 0x55555555).all() and np.isnan(scales[live:]).all()
    if live == 0:
        return
    steps, scales = steps_of(words[:live], out.fine), scales[:live]
    _, scale = reference.quantize_q8(expected.astype(np.float32), out.group)
    check(scales[:, :, 0], np.repeat(scale, out.group // 16, axis=1), "float")
    sums = steps.reshape(live, -1, 16).sum(axis=2)
    check(scales[:, :, 1], sums * scales[:, :, 0], "float")
    divisor = np.where(scale == 0, 1, scale)  # a group of zeros: all its weights may be
    exact = expected / np.repeat(divisor.astype(np.float64), out.group, axis=1)
    # A value at a tie may be rounded either way by a last bit of difference.
    half = 0.5 / 128 if out.fine else 0.5
    assert np.abs(steps - exact).max() <= half + 127 * TOLERANCE["float"]


def check_product(
    kernels: Kernels,
    rng: np.random.Generator,
    weight: WeightMatrix,
    floats: Array,
    *,
    tokens: int,
    live: int | None = None,
    bias: bool = False,
    accumulate: bool = False,
    table: linear.LinearTable | None = None,
    fine: bool = False,
) -> list[str]:
    """Run matmul on fresh activations and check it twice; returns the kernels' names. `fine`: two int8 each.

    Rows that are not live and columns beside the matrix must stay as they were.
    """
    device = kernels.device
    live = tokens if live is None else live
    x = rng.standard_normal((tokens, weight.cols), np.float32)
    operand: linear.QuantizedActivations | Tensor = device.upload(x)
    rounded = x
    if weight.type not in FLOAT_TYPES:
        operand, rounded = quantized(device, x, fine=fine)
    added = rng.standard_normal(weight.rows, np.float32) if bias else None
    left, right = 3, 2
    before = np.full((tokens, left + weight.rows + right), np.nan, np.float32)
    if accumulate:
        before[:] = rng.standard_normal(before.shape, np.float32)
    y = device.upload(before)
    steps = linear.matmul(
        kernels,
        weight,
        operand,
        y,
        rows=tokens,
        count=device.upload(np.array([live], np.uint32)),
        bias=None if added is None else device.upload(added),
        accumulate=accumulate,
        column=left,
        table=table,
    )
    run_once(device, steps)
    out = device.read(y)
    inside = out[:live, left : left + weight.rows].copy()
    out[:live, left : left + weight.rows] = before[:live, left : left + weight.rows]
    np.testing.assert_array_equal(out, before)

    extra = 0.0 if added is None else added.astype(np.float64)
    if accumulate:
        extra = extra + before[:live, left : left + weight.rows].astype(np.float64)
    exact = x[:live].astype(np.float64) @ floats.T.astype(np.float64) + extra
    twin = rounded[:live].astype(np.float64) @ floats.T.astype(np.float64) + extra
    check(inside, twin, "float" if weight.type in FLOAT_TYPES else "int8_twin")
    if inside.size >= TELLING:
        check(inside, exact, "int8_float")
    return [step.kernel.key.name for step in steps]
