"""Product: the name of a matrix product in tables of measured tiles.

Knows what makes two products alike to a kernel; no tiles, no devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Form = Literal["rows", "output", "gate_up", "matmul"]
"""By matvec: plain, with the residual, with the gated activation. By matmul."""

MEASURED_TOKENS = (1, 8, 16, 32, 64, 512)
"""Numbers of tokens that stand for all others."""


class Weights(Protocol):
    """One matrix, or several one below the other, that a product takes at once."""

    @property
    def type_name(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Product:
    """Products of one form with matrices of one type and shape, for about so many tokens."""

    form: Form
    type: str
    rows: int
    cols: int
    tokens: int  # of MEASURED_TOKENS

    @classmethod
    def of(cls, form: Form, weight: Weights, tokens: int) -> Product:
        """The product that stands for this one: the number of tokens nearest by ratio, the smaller of two."""
        nearest = min(MEASURED_TOKENS, key=lambda near: max(near / tokens, tokens / near))
        return cls(form, weight.type_name, weight.rows, weight.cols, nearest)

    def __str__(self) -> str:
        return f"{self.form} {self.type} {self.rows}×{self.cols}, {self.tokens} tokens"
