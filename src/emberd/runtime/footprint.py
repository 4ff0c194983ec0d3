"""Footprint: the bytes that a model will take on a device, counted by the code that loads it.

Works from the file's header and the adapter's description; nothing is allocated and no device opened.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from ..errors import DeviceError
from ..estimate import LargestMatrix
from ..gguf.encoder import EncoderFile
from ..gguf.model import ModelFile, ModelSpec
from ..protocol import WorkerOptions
from .bidirectional import allocate_bidirectional
from .buffers import allocate
from .counting import CountingDevice
from .device import AdapterInfo, Device
from .encoder import allocate_encoder
from .kernel import Kernels
from .kv_cache import KVCache
from .linear import default_table
from .model import load_weights
from .scratch import partial_elements, widest_row
from .text_runner import encoder_sizes

_NO_CACHE = KVCache((), (), 0)
_CONTEXTS = (32, 64)  # whole blocks: what grows with the context grows by as much each


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes beside the KV cache. What holds a place for each token of the context grows with it."""

    largest: LargestMatrix
    weights: int
    base: int
    per_token: float
    optional_base: int
    optional_per_token: float

    def scratch(self, context_length: int) -> int:
        """Everything beside weights and KV cache, from the load on."""
        return self.base + round(self.per_token * context_length)

    def optional(self, context_length: int) -> int:
        """What the first requests with penalties, biases, masks and log-probabilities add."""
        return self.optional_base + round(self.optional_per_token * context_length)

    def fixed(self, context_length: int) -> int:
        """All that can be taken beside the KV cache."""
        return self.weights + self.scratch(context_length) + self.optional(context_length)


def fitted(device: Device, spec: ModelSpec, options: WorkerOptions) -> WorkerOptions:
    """With as many sequences at a time and tokens a step as bindings of the device hold the logits and the activations
    of: those that were asked for, or fewer, and at least one."""
    limit = device.max_binding_bytes // 4
    tokens = max(1, limit // widest_row(spec))
    rows = min(options.max_sequences, tokens, max(1, limit // spec.vocab_size))
    while rows > 1 and partial_elements(device, spec, rows) > limit:
        rows //= 2
    return replace(
        options, max_sequences=rows, max_batch_tokens=min(options.max_batch_tokens, tokens)
    )


def lowered(asked: WorkerOptions, fitting: WorkerOptions, max_binding_bytes: int) -> str:
    """What is told of the difference; empty: there is none."""
    told = [
        f"{name} {before} -> {after}"
        for name, before, after in (
            ("sequences at a time", asked.max_sequences, fitting.max_sequences),
            ("tokens a step", asked.max_batch_tokens, fitting.max_batch_tokens),
        )
        if after < before
    ]
    return f"{', '.join(told)}: one binding holds {max_binding_bytes} bytes" if told else ""


def decoder_footprint(adapter: AdapterInfo, model: ModelFile, options: WorkerOptions) -> Footprint:
    """`options` as `fitted` gives them. Raises DeviceError where it cannot hold a part."""
    (largest, weights, *first), (_, _, *second) = (
        _decoder_bytes(adapter, model, options, context) for context in _CONTEXTS
    )
    step = _CONTEXTS[1] - _CONTEXTS[0]
    slopes = [(b - a) / step for a, b in zip(first, second, strict=True)]
    bases = [round(a - slope * _CONTEXTS[0]) for a, slope in zip(first, slopes, strict=True)]
    return Footprint(largest, weights, bases[0], slopes[0], bases[1], slopes[1])


def _decoder_bytes(
    adapter: AdapterInfo, model: ModelFile, options: WorkerOptions, context: int
) -> tuple[LargestMatrix, int, int, int]:
    """(largest matrix, weights, scratch, optional) where a sequence may hold `context` tokens."""
    device = CountingDevice(adapter)
    weights = load_weights(device, model, context)
    largest = device.largest()
    buffers = allocate(
        Kernels(device),
        weights,
        _NO_CACHE,
        default_table(device),
        max_tokens=max(options.max_batch_tokens, options.max_sequences),
        max_rows=options.max_sequences,
        context_length=context,
    )
    scratch = device.allocated_bytes - weights.nbytes
    with suppress(DeviceError):  # raised when a request asks for it
        buffers.allocate_optional()
    return largest, weights.nbytes, scratch, device.allocated_bytes - weights.nbytes - scratch


def encoder_footprint(
    adapter: AdapterInfo, model: EncoderFile | ModelFile, options: WorkerOptions
) -> Footprint:
    """Of an encoder of either kind. Raises DeviceError where the device cannot hold a part."""
    device = CountingDevice(adapter)
    context, tokens = encoder_sizes(device, model, options)
    if isinstance(model, EncoderFile):
        weights = allocate_encoder(device, model, tokens).weights.nbytes
    else:
        parts = allocate_bidirectional(device, model, context, tokens)
        weights = parts.transformer.weights.nbytes
    return Footprint(device.largest(), weights, device.allocated_bytes - weights, 0, 0, 0)
