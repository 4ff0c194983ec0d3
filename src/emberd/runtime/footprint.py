"""Footprint: the bytes that a model will take on a device, counted by the code that loads it.

Works from the file's header and the adapter's description; nothing is allocated and no device opened.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass

from ..errors import DeviceError
from ..estimate import LargestMatrix
from ..gguf.encoder import EncoderFile
from ..gguf.model import ModelFile, ModelSpec
from ..protocol import WorkerOptions
from .buffers import allocate
from .counting import CountingDevice
from .device import AdapterInfo, Device
from .encoder import allocate_encoder, encoder_tokens
from .kernel import Kernels
from .kv_cache import KVCache
from .linear import default_table
from .model import load_weights

_NO_CACHE = KVCache((), (), 0)
_CONTEXTS = (32, 64)  # whole blocks: what grows with the context grows by as much each

logger = logging.getLogger(__name__)


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


def max_sequences(device: Device, spec: ModelSpec, options: WorkerOptions) -> int:
    """As many as were asked for, or as one binding holds the logits of."""
    row_bytes = 4 * spec.vocab_size
    most = max(1, device.max_binding_bytes // row_bytes)
    if most < options.max_sequences:
        logger.info(
            "sequences at a time lowered to %d: logits of one take %d bytes, a binding of %s has %d",
            *(most, row_bytes, device.name, device.max_binding_bytes),
        )
    return min(most, options.max_sequences)


def decoder_footprint(adapter: AdapterInfo, model: ModelFile, options: WorkerOptions) -> Footprint:
    """`max_sequences` of the options as the device allows. Raises DeviceError where it cannot hold a part."""
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
    adapter: AdapterInfo, model: EncoderFile, options: WorkerOptions
) -> Footprint:
    """Raises DeviceError where the device cannot hold a part."""
    device = CountingDevice(adapter)
    encoder = allocate_encoder(device, model, encoder_tokens(model, options))
    weights = encoder.weights.nbytes
    return Footprint(device.largest(), weights, device.allocated_bytes - weights, 0, 0, 0)
