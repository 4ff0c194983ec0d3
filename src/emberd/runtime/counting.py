"""CountingDevice: a device that allocates nothing and counts what the code that loads a model asks it for.

So an estimate is made by the loader's own code. It needs an adapter's description only, and reads no weights.
"""

from __future__ import annotations

from typing import Any

from ..estimate import LargestMatrix
from .device import STORAGE, AdapterInfo, Array, Device, Tensor


class CountingDevice(Device):
    """Its tensors have no buffers: they may be passed on and viewed, and neither bound nor read."""

    holds_data = False

    def __init__(self, adapter: AdapterInfo) -> None:
        self.info = adapter
        self.features = frozenset(adapter.features)
        self.subgroup_size = None  # it changes kernels, not sizes
        self._set_limits(adapter.limits)
        self._by_label: dict[str, list[int]] = {}

    def buffer(self, nbytes: int, label: str = "", usage: int = STORAGE) -> Any:
        """None. Raises DeviceError as the device would where one binding is too small."""
        self._check_binding(nbytes, label)
        self.allocated_bytes += nbytes
        self._by_label.setdefault(label, []).append(nbytes)
        return None

    def largest(self) -> LargestMatrix:
        """Of what has a tensor's name for a label: the matrix with most bytes in its first plane."""
        matrices = {
            label: sizes for label, sizes in self._by_label.items() if label.endswith(".weight")
        }
        name = max(matrices, key=lambda label: sum(matrices[label]))
        return LargestMatrix(name, sum(matrices[name]), len(matrices[name]))

    def write(self, tensor: Tensor, array: Array, offset: int = 0) -> None:
        """Nothing: there is no memory."""

    def close(self) -> None:
        """Nothing is open."""
