"""mmap reader of GGUF files with its own bounds checks. (Interface fixed; see the helper brief.)"""

from __future__ import annotations

from dataclasses import dataclass

from gguf import GGMLQuantizationType


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies. `shape` is (rows, cols) for matrices and (n,) for vectors, slowest dimension first."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    nbytes: int
