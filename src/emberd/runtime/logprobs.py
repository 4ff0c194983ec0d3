"""Log-probabilities on the GPU: what raw logits say of one token a row, and of the likeliest ones.

Gives what `logprobs` of reference/sampling.py gives. It knows no model, no sequences and no sampling.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..protocol import MAX_LOGPROBS, Logprobs
from .compose import Constant
from .device import Device, Tensor
from .kernel import Dispatch, Kernel, Kernels

_SLICE = 4096  # of logprobs_split.wgsl
_LANES = 128
COLUMNS = 2 * MAX_LOGPROBS + 1
"""Of a row of output: the token's log-probability, those of the likeliest ones, their ids."""


class LogprobKernels:
    """The dispatches, and what they leave for one another. Allocates when first used."""

    def __init__(self, device: Device, kernels: Kernels, max_rows: int, vocab_size: int) -> None:
        self._device, self._kernels = device, kernels
        self._max_rows, self._vocab_size = max_rows, vocab_size
        self._num_slices = -(-vocab_size // _SLICE)
        self._found: Tensor | None = None

    def allocate(self) -> Tensor:
        """What one kernel leaves for the other, made when first needed."""
        if self._found is None:
            shape = (self._max_rows, self._num_slices, MAX_LOGPROBS + 1, 2)
            self._found = self._device.empty(shape, label="logprob slices")
        return self._found

    def dispatches(
        self,
        logits: Tensor,
        index: Tensor,
        count: Tensor,
        tokens: Tensor,
        out: Tensor,
        *,
        rows: int,
    ) -> list[Dispatch]:
        """Logits (rows, V) to out (rows, COLUMNS). The row's token is tokens[index[row]]; rows with a negative
        index, and those from count on, are left out."""
        assert logits.shape == (rows, self._vocab_size) and rows <= self._max_rows, logits
        assert index.shape == (rows,) and out.shape == (rows, COLUMNS), (index, out)
        found = self.allocate()
        sizes = {"vocab_size": self._vocab_size, "num_slices": self._num_slices}
        return [
            self._kernels.dispatch(
                self._kernel("logprobs_split"),
                (logits, index, count, found),
                (self._num_slices, rows, 1),
                **sizes,
            ),
            self._kernels.dispatch(
                self._kernel("logprobs_merge"),
                (logits, index, count, tokens, found, out),
                (rows, 1, 1),
                **sizes,
            ),
        ]

    def _kernel(self, name: str) -> Kernel:
        constants: dict[str, Constant] = {"WG": _LANES}
        if self._device.subgroup_size:
            constants["SUBGROUP"] = self._device.subgroup_size
        return self._kernels.get(name, {"reduce": self._kernels.reduce}, **constants)

    def read(self, out: NDArray[np.float32]) -> Logprobs:
        """Rows of output as they are read back."""
        num_top = min(MAX_LOGPROBS, self._vocab_size)
        ids = out[:, 1 + MAX_LOGPROBS :][:, :num_top]
        return Logprobs(out[:, 0], ids.astype(np.int32), out[:, 1 : 1 + num_top])
