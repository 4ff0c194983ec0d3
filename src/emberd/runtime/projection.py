"""Products of a layer's matrices with what stands ahead of them, in the form that each matrix takes.

Knows matrices and activations; not what they mean in a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import linear
from .activations import QuantizedActivations
from .device import Tensor
from .kernel import Dispatch, Kernels
from .linear import LinearTable
from .model import Projection


@dataclass(frozen=True, slots=True)
class Input:
    """What a projection reads, in the forms that its matrices take."""

    floats: Tensor
    q8: QuantizedActivations


@dataclass(frozen=True, slots=True)
class Projector:
    kernels: Kernels
    table: LinearTable

    def int8(self, made: QuantizedActivations, rows: int) -> QuantizedActivations:
        """The first rows, with scales of as many values as the product that reads them takes."""
        return made.first_rows(rows, self.table.quant_run(rows))

    def project(
        self,
        projection: Projection,
        x: Input,
        outputs: Sequence[tuple[Tensor, int]],
        count: Tensor,
        rows: int,
        accumulate: bool = False,
    ) -> list[Dispatch]:
        """Each matrix's product to its tensor, from its column on."""
        steps: list[Dispatch] = []
        members = zip(projection.matrices, projection.biases, outputs, strict=True)
        for matrix, bias, (y, column) in members:
            steps += linear.matmul(
                self.kernels,
                matrix,
                x.q8 if matrix.is_quantized else x.floats,
                y,
                rows=rows,
                count=count,
                bias=bias,
                accumulate=accumulate,
                column=column,
                table=self.table,
            )
        return steps
