"""Destination: where a matrix product goes, for whichever kernel makes it."""

from __future__ import annotations

from dataclasses import dataclass

from .device import Tensor


@dataclass(frozen=True, slots=True)
class Destination:
    """`y[:, column : column + weight.rows]` of a y (rows, any width), of which the first count[0] rows are written.

    `bias` (weight.rows,) is added, and with `accumulate` what stood there.
    """

    y: Tensor
    count: Tensor
    bias: Tensor | None = None
    accumulate: bool = False
    column: int = 0

    @property
    def bias_include(self) -> str:
        return "no_bias" if self.bias is None else "bias"

    @property
    def tensors(self) -> list[Tensor]:
        """In the order of the kernels' bindings."""
        return [*([] if self.bias is None else [self.bias]), self.count, self.y]
