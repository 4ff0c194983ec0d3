"""Products of a layer's matrices with what stands ahead of them, in the form that each matrix takes.

Knows matrices and activations; not what they mean in a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import linear
from .activations import QuantizedActivations
from .device import Tensor
from .kernel import Dispatch, Kernels
from .linear import LinearTable
from .model import Projection
from .pair import Member, can_pair, matmul_pair


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
        """Each matrix's product to its tensor, from its column on; two neighbours at once where that can be."""
        parts = zip(projection.matrices, projection.biases, outputs, strict=True)
        members = [Member(matrix, bias, y, column) for matrix, bias, (y, column) in parts]
        steps: list[Dispatch] = []
        sizes: dict[str, Any] = {"rows": rows, "count": count, "accumulate": accumulate}
        while members:
            member, *members = members
            operand = x.q8 if member.weight.is_quantized else x.floats
            if members and can_pair(self.table, member.weight, members[0].weight, rows):
                second, *members = members
                steps += matmul_pair(
                    self.kernels, member, second, operand, table=self.table, **sizes
                )
                continue
            steps += linear.matmul(
                self.kernels,
                member.weight,
                operand,
                member.y,
                bias=member.bias,
                column=member.column,
                table=self.table,
                **sizes,
            )
        return steps
