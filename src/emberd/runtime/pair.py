"""Two dispatches as one, and products of two weight types made that way.

A dispatch that writes waits for the one before, and little work of its own leaves a GPU idle: side by side in one
grid they need neither. Knows kernels, matrices and tiles; no layer, no model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from . import linear
from .activations import QuantizedActivations
from .device import Tensor
from .kernel import Dispatch, KernelKey, Kernels
from .linear import LinearTable
from .matmul import operand_of
from .pair_text import FIRST_GROUPS, SUFFIX
from .products import Form, Product
from .weights import WeightMatrix


@dataclass(frozen=True, slots=True)
class WeightPair:
    """Two matrices of one width, one below the other, as one product sees them."""

    first: WeightMatrix
    second: WeightMatrix

    @property
    def type_name(self) -> str:
        return f"{self.first.type_name}+{self.second.type_name}"

    @property
    def rows(self) -> int:
        return self.first.rows + self.second.rows

    @property
    def cols(self) -> int:
        return self.first.cols

    @property
    def is_quantized(self) -> bool:
        return self.first.is_quantized

    @property
    def nbytes(self) -> int:
        return self.first.nbytes + self.second.nbytes


@dataclass(frozen=True, slots=True)
class Member:
    """A product: `y[:, column : column + weight.rows]` = x times the rows of `weight` (+ bias)."""

    weight: WeightMatrix
    bias: Tensor | None
    y: Tensor
    column: int


def can_pair(table: LinearTable, first: WeightMatrix, second: WeightMatrix, tokens: int) -> bool:
    """Whether `matmul_pair` is to make the products of both: by kernels that differ in the weights' type alone."""
    alike = first.is_quantized == second.is_quantized
    if tokens > table.matvec.tokens:
        alike = operand_of(first) == operand_of(second)
    return table.paired and alike and len(first.parts) == len(second.parts) == 1


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
) -> list[Dispatch]:
    """`linear.matmul` of two matrices with one x (rows, cols), where `can_pair` says so.

    One dispatch; two where the device's limits do not allow that.
    """
    assert can_pair(table, first.weight, second.weight, rows), (first.weight, second.weight)
    form: Form = "rows" if rows <= table.matvec.tokens else "matmul"
    tile = table.tile_for(form, WeightPair(first.weight, second.weight), rows)
    weights = (first.weight, second.weight)
    alike = table.with_tiles({Product.of(form, weight, rows): tile for weight in weights})
    steps = []
    for member in (first, second):
        steps += linear.matmul(
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
        )
    pair = paired(kernels, *steps)
    return steps if pair is None else [pair]


def paired(kernels: Kernels, first: Dispatch, second: Dispatch) -> Dispatch | None:
    """One dispatch whose first workgroups are those of `first` and whose others those of `second`.

    None where their kernels differ in more than the weights' type (one has a bias), their grids differ in y or go on
    in z, or the device allows fewer bindings or workgroups a side.
    """
    ours, theirs, device = first.kernel, second.kernel, kernels.device
    if _but_for_weights(ours.key) != _but_for_weights(theirs.key):
        return None
    (width, *rest), (more, *others) = first.grid, second.grid
    known = dict(zip(ours.bindings, first.tensors, strict=True))
    members = dict(zip(theirs.bindings, second.tensors, strict=True))
    shared = tuple(name for name, tensor in members.items() if known.get(name) is tensor)
    tensors = [*first.tensors, *(tensor for name, tensor in members.items() if name not in shared)]
    most = device.limits["max-storage-buffers-per-shader-stage"]
    if len(tensors) > most or width + more > device.max_grid or rest != others or rest[1] > 1:
        return None
    kernel = kernels.of(replace(ours.key, second=theirs.key, shared=shared))
    params: dict[str, int | float] = {FIRST_GROUPS: width}
    for dispatch, suffix in ((first, ""), (second, SUFFIX)):
        values = dispatch.kernel.unpack(dispatch.params)
        for (name, _), value in zip(dispatch.kernel.fields, values, strict=True):
            params[name + suffix] = value
    return kernels.dispatch(kernel, tensors, (width + more, rest[0], 1), **params)


def _but_for_weights(key: KernelKey) -> KernelKey:
    return replace(key, includes=tuple(pair for pair in key.includes if pair[0] != "weight"))
