"""TextRunner: what encoders of both kinds have in common on the CPU device. Knows token ids, no text."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import psutil

from emberd.errors import ModelLoadError
from emberd.hardware import num_cores
from emberd.protocol import WorkerInfo, WorkerOptions

from .ops import F32, I32

R = TypeVar("R", bound="TextRunner")


def call_sizes(spec_context: int, options: WorkerOptions) -> tuple[int, int]:
    """(tokens that a text may hold, tokens of the largest call: a text is never cut)."""
    context = min(options.context_length or spec_context, spec_context)
    return context, max(options.max_batch_tokens, context)


class TextRunner(ABC):
    """Implements `protocol.EncoderRunner`; a subclass says how its files are opened and read, and what is computed."""

    dense: F32 | None = None

    def __init__(
        self,
        model: Any,  # of `open`
        options: WorkerOptions,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        start = time.perf_counter()
        self.context_length, self.max_batch_tokens = call_sizes(model.spec.context_length, options)
        self._verification = options.verification
        self.weights: Any = None
        self.read(model, progress)
        self._load_seconds = time.perf_counter() - start

    @staticmethod
    @abstractmethod
    def open(path: str) -> Any:
        """The file. Raises `ModelFileError`."""

    @abstractmethod
    def read(self, model: Any, progress: Callable[[float], None] | None) -> None:
        """Read all of the open file, to `weights`. Raises `ModelLoadError` where memory does not suffice."""

    @classmethod
    def load(
        cls: type[R], options: WorkerOptions, progress: Callable[[float], None] | None = None
    ) -> R:
        """Read, check and decode the model file; `progress` gets the share done, 0 to 1.

        Raises `ModelFileError` for a bad file, `ModelLoadError` where memory does not suffice.
        """
        model = cls.open(options.model_path)
        try:
            return cls(model, options, progress)
        except MemoryError as error:
            raise ModelLoadError(f"{model.file.name}: out of memory while loading") from error
        finally:
            model.close()

    def info(self) -> WorkerInfo:
        return WorkerInfo(
            device=f"CPU (NumPy, {num_cores()} cores)",
            device_kind="cpu",
            context_length=self.context_length,
            num_blocks=0,
            block_size=0,
            max_sequences=self.max_batch_tokens,
            weight_bytes=self.weights.nbytes,
            kv_bytes=0,
            load_seconds=self._load_seconds,
            verification=self._verification,
            device_memory=psutil.virtual_memory().total,
            tier="cpu",
            kv_type="",
            max_batch_tokens=self.max_batch_tokens,
        )

    @abstractmethod
    def hidden_states(self, token_ids: I32, query_start: I32) -> F32:
        """See `protocol.EncoderRunner`."""

    def close(self) -> None:
        """Let the weights go; the runner is not used after."""
        del self.weights


def positions_of(query_start: I32) -> I32:
    """The position (T,) of each token in its own text."""
    return np.concatenate([np.arange(n, dtype=np.int32) for n in np.diff(query_start)])
