"""Two dispatches as one, and products of two weight types made that way.

A dispatch that writes waits for the one before, and little work of its own leaves a GPU idle: side by side in one
grid they need neither. Knows kernels, matrices and tiles; no layer, no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from . import linear
from .activations import QuantizedActivations
from .device import Device, Tensor
from .kernel import Dispatch, KernelKey, Kernels
from .linear import LinearTable
from .pair_text import FIRST_GROUPS, SUFFIX
from .products import Form, Product
from .weights import WeightMatrix


@dataclass(frozen=True, slots=True)
class Member:
    """A product: `y[:, column : column + weight.rows]` = x times the rows of `weight` (+ bias)."""

    weight: WeightMatrix
    bias: Tensor | None
    y: Tensor
    column: int


def pairs(device: Device) -> bool:
    """Whether products are paired: not on a software device, which has nothing to wait for and compiles slowly."""
    return not device.info.is_software and "paired" not in device.left_out


def paired(kernels: Kernels, first: Dispatch, second: Dispatch) -> Dispatch | None:
    """One dispatch whose first workgroups are those of `first` and whose others those of `second`.

    None where they cannot be one: kernels that differ in more than their weights' type, whose workgroups are not
    alike then; grids that differ in y or go on in z; more bindings or workgroups a side than the device allows.
    """
    ours, theirs = first.kernel, second.kernel
    (width, *rest), (more, *others) = first.grid, second.grid
    if _but_for_weights(ours.key) != _but_for_weights(theirs.key) or rest != others or rest[1] > 1:
        return None
    known = dict(zip(ours.bindings, first.tensors, strict=True))
    members = dict(zip(theirs.bindings, second.tensors, strict=True))
    shared = tuple(name for name, tensor in members.items() if known.get(name) == tensor)
    tensors = [*first.tensors, *(tensor for name, tensor in members.items() if name not in shared)]
    device = kernels.device
    if len(tensors) > device.limits["max-storage-buffers-per-shader-stage"]:
        return None
    if width + more > device.max_grid:
        return None
    kernel = kernels.of(replace(ours.key, second=theirs.key, shared=shared))
    params = {
        name: value for (name, _), value in zip(ours.fields, ours.unpack(first.params), strict=True)
    }
    for (name, _), value in zip(theirs.fields, theirs.unpack(second.params), strict=True):
        params[name + SUFFIX] = value
    params[FIRST_GROUPS] = width
    return kernels.dispatch(kernel, tensors, (width + more, rest[0], 1), **params)


def _but_for_weights(key: KernelKey) -> KernelKey:
    return replace(key, includes=tuple(pair for pair in key.includes if pair[0] != "weight"))


def matmul_pair(
    kernels: Kernels,
    first: Member,
    second: Member,
    x: QuantizedActivations | Tensor,
    *,
    rows: int,
    count: Tensor,
    accumulate: bool = False,
    table: LinearTable,
) -> Dispatch | None:
    """`linear.matmul` of two matrices with one x (rows, cols) in one dispatch.

    None where they cannot be one.
    """
    members = (first, second)
    if any(len(member.weight.parts) > 1 for member in members):
        return None
    if first.weight.is_quantized != second.weight.is_quantized:
        return None
    alike = _same_tile(table, [member.weight for member in members], rows)
    steps = [
        linear.matmul(
            kernels,
            member.weight,
            x,
            member.y,
            rows=rows,
            count=count,
            bias=member.bias,
            accumulate=accumulate,
            column=member.column,
            table=alike,
        )[0]
        for member in members
    ]
    return paired(kernels, *steps)


def pair_tile(table: LinearTable, weight_rows: int, tokens: int) -> linear.Tile:
    """The tile of a pair with so many weight rows together: the rules' choice for one matrix of all of them.

    No measured one, since that was held against another tile with one of the types only.
    """
    if tokens <= table.matvec.tokens:
        return table.matvec.rows_tile(tokens, weight_rows)
    return table.matmul.tile(tokens, weight_rows)


def _same_tile(table: LinearTable, weights: Sequence[WeightMatrix], rows: int) -> LinearTable:
    """The table, but with the pair's tile for both."""
    tile = pair_tile(table, sum(weight.rows for weight in weights), rows)
    form: Form = "rows" if rows <= table.matvec.tokens else "matmul"
    return table.with_tiles({Product.of(form, weight, rows): tile for weight in weights})
