"""Trial: one product of a loaded model, run by any tile on random activations.

Knows how a product's form is called; it times nothing and chooses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..gguf.model import Activation
from . import linear
from .activations import QUANT_RUN, QuantizedActivations, activations, steps_of
from .device import Tensor
from .kernel import Dispatch, Kernels, run_once
from .linear import LinearTable, Tile
from .matvec import output_quantize
from .pair import Member, WeightPair, matmul_pair
from .products import Product
from .weights import WeightMatrix

TOLERANCE = {"float": 1e-4, "int8": 1e-2}
"""‖out − other‖ / ‖other‖ of two tiles: float sums in another order, and what these round to in int8."""

_COMPARED_TOKENS = 16
_DISTINCT_TOKENS = 16
_EPS = 1e-5
_GROUP = 16  # values that share a scale where matvec reads them


@dataclass(frozen=True, slots=True)
class Job:
    """A product with all matrices of the model that it stands for."""

    product: Product
    matrices: tuple[WeightMatrix | WeightPair, ...]
    accumulate: bool = False

    @property
    def nbytes(self) -> int:
        return sum(matrix.nbytes for matrix in self.matrices)


class Trial:
    """`fine`: with two int8 an activation. Raises DeviceError where the device has no room for the activations."""

    def __init__(
        self,
        kernels: Kernels,
        job: Job,
        rules: LinearTable,
        activation: Activation,
        fine: bool = False,
    ) -> None:
        self._kernels, self._job, self._rules = kernels, job, rules
        self._activation, self._fine = activation, fine
        device, product = kernels.device, job.product
        tokens, rows = product.tokens, product.rows
        self._x = self._random_input()
        self._count = device.upload(np.array([tokens], np.uint32))
        self._ones = device.upload(np.ones(rows, np.float32))
        self._y = self._q8 = None
        if product.form == "gate_up":
            group = _GROUP if tokens <= rules.matvec.tokens else QUANT_RUN
            self._q8 = activations(device, tokens, rows // 2, group=group, fine=fine)
        else:
            self._y = device.empty((tokens, rows), label="trial")
        if product.form == "output":
            self._q8 = activations(device, tokens, rows, _EPS, _GROUP, fine)

    def _random_input(self) -> Tensor | QuantizedActivations:
        device, product = self._kernels.device, self._job.product
        tokens, cols = product.tokens, product.cols
        few = np.random.default_rng().standard_normal(
            (min(tokens, _DISTINCT_TOKENS), cols), np.float32
        )
        x = device.upload(np.resize(few, (tokens, cols)))
        if not self._job.matrices[0].is_quantized:
            return x
        out = activations(device, tokens, cols, fine=self._fine)
        step = linear.quantize_q8(self._kernels, x, out, rows=tokens, width=cols)
        run_once(device, [step])
        return out

    @property
    def output(self) -> Tensor:
        """What every tile's dispatches write."""
        if self._y is not None:
            return self._y
        assert self._q8 is not None
        return self._q8.q

    @property
    def tolerance(self) -> float:
        return TOLERANCE["int8" if self._y is None else "float"]

    def dispatches(self, tile: Tile) -> list[list[Dispatch]]:
        """Of each matrix. Raises DeviceError where the device refuses the kernel."""
        table = self._rules.with_tiles({self._job.product: tile})
        found = [self._dispatches(matrix, table) for matrix in self._job.matrices]
        for step in found[0]:
            step.kernel.compile()  # here, since callers have threads for it
        return found

    def _dispatches(self, matrix: WeightMatrix | WeightPair, table: LinearTable) -> list[Dispatch]:
        product, kernels, x = self._job.product, self._kernels, self._x
        if isinstance(matrix, WeightPair):
            assert self._y is not None
            return matmul_pair(
                kernels,
                Member(matrix.first, None, self._y, 0),
                Member(matrix.second, None, self._y, matrix.first.rows),
                x,
                rows=product.tokens,
                count=self._count,
                accumulate=self._job.accumulate,
                table=table,
            )
        if self._q8 is None:
            assert self._y is not None
            return linear.matmul(
                kernels,
                matrix,
                x,
                self._y,
                rows=product.tokens,
                count=self._count,
                accumulate=self._job.accumulate,
                table=table,
            )
        assert isinstance(x, QuantizedActivations)
        if self._y is None:
            step = linear.gate_up_quantize(
                kernels,
                matrix,
                x,
                self._q8,
                rows=product.tokens,
                count=self._count,
                activation=self._activation,
                table=table,
            )
        else:
            step = output_quantize(
                kernels,
                matrix,
                x,
                self._y,
                self._ones,
                self._q8,
                rows=product.tokens,
                count=self._count,
                table=table.matvec,
            )
        return [step]

    def result(self, dispatches: list[Dispatch]) -> NDArray[np.float32]:
        """What they make of the last tokens, from zeros."""
        device = self._kernels.device
        written = [self._y] if self._y is not None else []
        if self._q8 is not None:
            written += [self._q8.q, self._q8.scales]
        compared = [_last_rows(tensor, _COMPARED_TOKENS) for tensor in written]
        for tensor in compared:
            device.write(tensor, np.zeros(tensor.shape, np.float32))
        run_once(device, dispatches)
        if self._y is not None:
            return device.read(compared[0]).astype(np.float32)
        q, scales = (device.read(tensor) for tensor in compared)
        floats: NDArray[np.float32] = steps_of(q, self._fine) * np.repeat(
            scales[:, :, 0], _GROUP, 1
        )
        return floats


def difference(out: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """‖out − other‖ / ‖other‖."""
    return float(np.linalg.norm(out - other) / max(float(np.linalg.norm(other)), 1e-30))


def _last_rows(tensor: Tensor, rows: int) -> Tensor:
    """The last `rows` rows, or all where there are fewer; to read and write, not to bind."""
    first = max(0, tensor.shape[0] - rows)
    shape = (tensor.shape[0] - first, *tensor.shape[1:])
    row_bytes = tensor.nbytes // tensor.shape[0]
    return Tensor(tensor.buffer, shape, tensor.dtype, tensor.offset + first * row_bytes)
