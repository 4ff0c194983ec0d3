"""Checked reads of a file's metadata keys and tensors; every fault names the file and the key or tensor.

Knows types, ranges and shapes, not what a key or a tensor means.
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFileError
from .dequant import quant_type
from .reader import GGUFFile, TensorInfo


class Keys:
    """Metadata of `file` below a prefix: `Keys(file, "llama").count("block_count", most=512)`."""

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self._file = file
        self._architecture = architecture

    def refuse(self, key: str, fault: str) -> ModelFileError:
        return ModelFileError(f"{self._file.name}: metadata key '{self._name(key)}' {fault}")

    def __contains__(self, key: str) -> bool:
        return self._name(key) in self._file.metadata

    def scalar(self, key: str) -> Any:
        """The value as it was read, None where the key is missing. One value a layer counts as one
        value when all are equal.
        """
        value = self._file.metadata.get(self._name(key))
        if not isinstance(value, np.ndarray):
            return value
        distinct = np.unique(value)
        if len(distinct) != 1:
            raise self.refuse(key, "holds different values, which is not supported")
        return distinct[0].item()

    def array(self, key: str) -> NDArray[Any] | None:
        """The array of numbers, None where the key is missing or holds something else."""
        value = self._file.metadata.get(self._name(key))
        return value if isinstance(value, np.ndarray) else None

    def count(self, key: str, *, most: int, default: int | None = None) -> int:
        """A whole number from 1 to `most`."""
        value = self.scalar(key)
        if value is None:
            if default is None:
                raise self.refuse(key, "is missing")
            return default
        if type(value) is not int or not 1 <= value <= most:
            raise self.refuse(
                key, f"is {reprlib.repr(value)}; it must be a whole number from 1 to {most}"
            )
        return value

    def number(self, key: str, *, most: float, default: float | None = None) -> float:
        """A number above 0, up to `most`."""
        value = self.scalar(key)
        if value is None:
            if default is None:
                raise self.refuse(key, "is missing")
            return default
        if type(value) not in (int, float) or not 0 < value <= most:
            raise self.refuse(
                key, f"is {reprlib.repr(value)}; it must be a number above 0, up to {most:g}"
            )
        return float(value)

    def off(self, key: str, neutral: float, feature: str) -> None:
        """Refuse the file when `key` asks for a feature that is not supported."""
        value = self.scalar(key)
        if value is not None and value != neutral:
            raise self.refuse(key, f"is {reprlib.repr(value)}; {feature} not supported")

    def _name(self, key: str) -> str:
        return f"{self._architecture}.{key}"


class Tensors:
    """Hands out tensors by name after checking shape and type, and remembers which were asked for."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._taken: set[str] = set()

    def present(self, name: str) -> bool:
        return name in self._file.tensors

    def optional(self, name: str, *shape: int) -> TensorInfo | None:
        info = self._file.tensors.get(name)
        if info is None:
            return None
        if _without_ones(info.shape) != _without_ones(shape):
            raise self.refuse(
                f"tensor '{name}' has shape {list(info.shape)}; the metadata asks for {list(shape)}"
            )
        try:
            quant_type(info.type)
        except ModelFileError as error:
            raise self.refuse(f"tensor '{name}': {error}") from None
        self._taken.add(name)
        return info if info.shape == shape else replace(info, shape=shape)

    def required(self, name: str, *shape: int) -> TensorInfo:
        info = self.optional(name, *shape)
        if info is None:
            raise self.refuse(f"tensor '{name}' is missing")
        return info

    def check_all_taken(self, architecture: str) -> None:
        # Rotation tables of old converters follow from the metadata.
        unused = [
            name
            for name in self._file.tensors
            if name not in self._taken and not re.search(r"rot_embd|inv_freq", name)
        ]
        if unused:
            raise self.refuse(
                f"{len(unused)} tensors have no place in architecture '{architecture}' as it is "
                f"supported, and results would be wrong without them; the first is {unused[0]!r}"
            )

    def refuse(self, fault: str) -> ModelFileError:
        return ModelFileError(f"{self._file.name}: {fault}")


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without dimensions of 1 in front, which files may have or leave out."""
    first = next((place for place, size in enumerate(shape) if size != 1), len(shape) - 1)
    return shape[first:]
