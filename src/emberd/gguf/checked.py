"""Checked reads of a file's metadata keys and tensors; every fault names the file and the key or tensor.

Knows types, ranges and shapes, not what a key or a tensor means.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

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

    def raw(self, key: str) -> Any:
        """The value as it was read, None where the key is missing."""
        return self._file.metadata.get(self._name(key))

    def count(self, key: str, *, most: int, default: int | None = None) -> int:
        """A whole number from 1 to `most`. One value a layer is taken when all are equal."""
        value = self._single(key)
        if value is None:
            if default is None:
                raise self.refuse(key, "is missing")
            return default
        if type(value) is not int or not 1 <= value <= most:
            raise self.refuse(key, f"is {value!r:.80}; it must be a whole number from 1 to {most}")
        return value

    def number(self, key: str, *, most: float, default: float | None = None) -> float:
        """A number above 0, up to `most`."""
        value = self.raw(key)
        if value is None:
            if default is None:
                raise self.refuse(key, "is missing")
            return default
        if type(value) not in (int, float) or not math.isfinite(value) or not 0 < value <= most:
            raise self.refuse(key, f"is {value!r:.80}; it must be a number above 0, up to {most:g}")
        return float(value)

    def off(self, key: str, neutral: float, feature: str) -> None:
        """Refuse the file when `key` asks for a feature that is not supported."""
        value = self.raw(key)
        if value is not None and value != neutral:
            raise self.refuse(key, f"is {value!r:.80}; {feature} not supported")

    def _name(self, key: str) -> str:
        return f"{self._architecture}.{key}"

    def _single(self, key: str) -> Any:
        value = self.raw(key)
        if not isinstance(value, np.ndarray):
            return value
        distinct = np.unique(value)
        if len(distinct) != 1:
            raise self.refuse(key, "differs from layer to layer, which is not supported")
        return distinct[0].item()


class Tensors:
    """Hands out tensors by name after checking shape and type, and remembers which were asked for."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._taken: set[str] = set()

    def optional(self, name: str, *shape: int) -> TensorInfo | None:
        info = self._file.tensors.get(name)
        if info is None:
            return None
        if info.shape != shape:
            raise self._refuse(
                f"tensor '{name}' has shape {list(info.shape)}; the metadata asks for {list(shape)}"
            )
        try:
            quant_type(info.type)
        except ModelFileError as error:
            raise self._refuse(f"tensor '{name}': {error}") from None
        self._taken.add(name)
        return info

    def required(self, name: str, *shape: int) -> TensorInfo:
        info = self.optional(name, *shape)
        if info is None:
            raise self._refuse(f"tensor '{name}' is missing")
        return info

    def check_all_taken(self, architecture: str) -> None:
        # Rotation tables of old converters follow from the metadata.
        unused = [
            name
            for name in self._file.tensors
            if name not in self._taken and not re.search(r"rot_embd|inv_freq", name)
        ]
        if unused:
            raise self._refuse(
                f"tensor {unused[0]!r} and {len(unused) - 1} others have no place in architecture "
                f"'{architecture}' as it is supported; results would be wrong without them"
            )

    def _refuse(self, fault: str) -> ModelFileError:
        return ModelFileError(f"{self._file.name}: {fault}")
