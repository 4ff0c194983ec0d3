"""TextRunner: whole texts in, their tokens' states out, on a WebGPU device: what encoders of both kinds have in common.

The forward pass is a list of dispatches, recorded once for each bucket of tokens. Knows token ids, no text.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from ..gguf.encoder import EncoderFile, EncoderSpec
from ..gguf.model import ModelFile
from ..hardware import gpu_tier
from ..protocol import FloatArray, IntArray, WorkerInfo, WorkerOptions
from .activations import padded
from .device import Device, Tensor, open_device
from .device_memory import device_memory
from .kernel import Dispatch, Kernels
from .replay import Recording, make_replayer, record
from .scratch import bucket, first_rows, widest_row

MIN_TOKENS = 16

Fill = Callable[[IntArray, IntArray], IntArray]
"""Of token ids (T,) and the texts' bounds in them: the words of a call's inputs."""


class Call(NamedTuple):
    """The forward pass of up to so many tokens."""

    inputs: Tensor
    fill: Fill
    steps: list[Dispatch]


class Parts(Protocol):
    """All of an encoder that is kept on the device."""

    @property
    def kernels(self) -> Kernels: ...

    @property
    def weights(self) -> Any: ...

    @property
    def output(self) -> Tensor:
        """(max_tokens, hidden and zeros): the states."""

    def call(self, rows: int) -> Call: ...


def encoder_sizes(
    device: Device, model: EncoderFile | ModelFile, options: WorkerOptions
) -> tuple[int, int]:
    """(tokens that a text may hold, tokens of the largest call: a text is never cut). Where one binding holds the
    activations of fewer, or a grid is of fewer, so many, unless a context was asked for by name."""
    spec = model.spec
    if isinstance(spec, EncoderSpec):
        widest = max(3 * spec.hidden_size, padded(spec.hidden_size), padded(spec.ffn_size))
    else:
        widest = widest_row(spec)
    most = min(device.max_grid, max(1, device.max_binding_bytes // (4 * widest)))
    context = min(options.context_length or min(spec.context_length, most), spec.context_length)
    return context, max(context, min(options.max_batch_tokens, most))


R = TypeVar("R", bound="TextRunner")


class TextRunner(ABC):
    """One encoder on one device. Implements `protocol.EncoderRunner`; a subclass says how its files are opened and what
    is allocated."""

    def __init__(
        self,
        device: Device,
        model: Any,  # of `open`
        options: WorkerOptions,
        progress: Callable[[float], None] | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        started, before = time.monotonic(), device.allocated_bytes
        self.context_length, self.max_batch_tokens = encoder_sizes(device, model, options)
        self.dense: FloatArray | None = self.dense_of(model)
        self._device, self._model = device, model
        self._parts = parts = self.allocate(model, options, progress, kernels or Kernels(device))
        self._made: dict[int, tuple[Call, Recording]] = {}
        try:
            self._call_of(self.max_batch_tokens)
        except BaseException:
            parts.weights.uploads.drop()
            raise
        parts.weights.uploads.wait()
        memory = device_memory(device.info)
        self._replayer = make_replayer(device, parts.output.nbytes, depth=1)
        self._info = WorkerInfo(
            device=device.name,
            device_kind="gpu",
            context_length=self.context_length,
            num_blocks=0,
            block_size=0,
            max_sequences=self.max_batch_tokens,
            weight_bytes=parts.weights.nbytes,
            kv_bytes=0,
            load_seconds=time.monotonic() - started,
            verification=options.verification,
            scratch_bytes=device.allocated_bytes - before - parts.weights.nbytes,
            device_memory=memory,
            tier=gpu_tier(device.info.kind, memory),
            kv_type="",
            max_batch_tokens=self.max_batch_tokens,
        )

    @staticmethod
    @abstractmethod
    def open(path: str) -> Any:
        """The file. Raises ModelFileError."""

    @abstractmethod
    def allocate(
        self,
        model: Any,
        options: WorkerOptions,
        progress: Callable[[float], None] | None,
        kernels: Kernels,
    ) -> Parts:
        """All buffers, the weights under way. Raises DeviceError where one binding cannot hold a part."""

    def dense_of(self, model: Any) -> FloatArray | None:
        """What pooled states are multiplied by."""
        return None

    @classmethod
    def load(
        cls: type[R],
        options: WorkerOptions,
        progress: Callable[[float], None] | None = None,
        kernels: Kernels | None = None,
    ) -> R:
        """Open the file and the device (or take that of `kernels`), upload the weights.

        Raises ModelFileError for the file, DeviceError for the device.
        """
        model = cls.open(options.model_path)
        if kernels is None:
            kernels = Kernels(open_device("gpu" if options.device == "auto" else options.device))
        return cls(kernels.device, model, options, progress, kernels)

    @property
    def kernels(self) -> Kernels:
        return self._parts.kernels

    def heartbeat(self) -> None:
        """Find out while idle whether the device is still there."""
        self._device.touch()

    def info(self) -> WorkerInfo:
        return self._info

    def hidden_states(self, token_ids: IntArray, query_start: IntArray) -> FloatArray:
        """See `protocol.EncoderRunner`."""
        assert 0 < len(token_ids) <= self.max_batch_tokens
        call, recording = self._call_of(len(token_ids))
        self._replayer.submit(recording, call.inputs, call.fill(token_ids, query_start))
        states = self._replayer.collect().view(np.float32).reshape(recording.output.shape)
        return states[: len(token_ids), : self._model.spec.hidden_size]

    def _call_of(self, tokens: int) -> tuple[Call, Recording]:
        """The forward pass of the smallest bucket that holds so many tokens."""
        rows = min(bucket(tokens, MIN_TOKENS), self.max_batch_tokens)
        if rows not in self._made:
            call = self._parts.call(rows)
            recording = record(self._device, call.steps, first_rows(self._parts.output, rows))
            self._made[rows] = call, recording
        return self._made[rows]

    def close(self) -> None:
        self._replayer.close()
        self._device.close()
        self._model.close()
