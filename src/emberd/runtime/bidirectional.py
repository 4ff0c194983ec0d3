"""GpuBidirectional: an encoder with a decoder's block, whose attention looks both ways, on a WebGPU device.

Whole texts are run at once by the decoder's own forward pass (`transformer.py`), over keys and values of one layer at
a time: nothing is kept between layers, let alone between calls. Knows token ids, no text.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..gguf.encoder import has_bert_block
from ..gguf.model import ModelFile
from ..gguf.reader import GGUFFile
from ..gguf.spec import open_bidirectional
from ..gguf.tensors import dense_matrix
from ..hardware import gpu_tier
from ..protocol import EncoderRunner, FloatArray, IntArray, WorkerInfo, WorkerOptions
from .device import Device, Tensor, open_device
from .device_memory import device_memory
from .encoder import MIN_TOKENS, GpuEncoder, encoder_sizes
from .inputs import InputSizes, StepInputs
from .kernel import Dispatch, Kernels
from .kv_cache import KVCache, head_words
from .linear import default_table
from .model import ModelWeights, load_weights
from .norms import norm_floats
from .replay import Recording, make_replayer, record
from .scratch import Scratch, bucket, first_rows
from .transformer import Shape, Transformer


def load_encoder(
    options: WorkerOptions,
    progress: Callable[[float], None] | None = None,
    kernels: Kernels | None = None,
) -> EncoderRunner:
    """The runner of the encoder's file, of either kind. Raises as their `load`."""
    with GGUFFile(options.model_path) as file:
        bert = has_bert_block(file)
    return (GpuEncoder if bert else GpuBidirectional).load(options, progress, kernels)


@dataclass(frozen=True, slots=True)
class Parts:
    """All that is kept on the device."""

    transformer: Transformer
    input_buffer: Tensor
    max_tokens: int

    @property
    def output(self) -> Tensor:
        """(max_tokens, hidden and zeros): states behind the output norm."""
        return self.transformer.scratch.projected  # of no use behind the last layer

    def inputs(self, rows: int) -> StepInputs:
        """Of a call of up to `rows` tokens, each of which may be a text."""
        device = self.transformer.kernels.device
        return StepInputs(device, self.input_buffer.buffer, _input_sizes(rows))

    def steps(self, inputs: StepInputs, rows: int) -> list[Dispatch]:
        """The forward pass of up to `rows` tokens, into `output`."""
        transformer = self.transformer
        weights = transformer.weights
        steps = transformer.body(inputs, Shape(rows, decode_rows=0, tiles=rows))
        hidden, y = (first_rows(x, rows) for x in (transformer.scratch.hidden, self.output))
        norm, eps = weights.output_norm, weights.spec.norm_eps
        return [*steps, norm_floats(transformer.kernels, hidden, norm, y, None, eps=eps)]


def _input_sizes(rows: int) -> InputSizes:
    return InputSizes(tokens=rows, rows=rows, sampled=1, tiles=rows)


def allocate_bidirectional(
    device: Device,
    model: ModelFile,
    context: int,
    max_tokens: int,
    progress: Callable[[float], None] | None = None,
    kernels: Kernels | None = None,
) -> Parts:
    """All buffers, the weights under way. Raises DeviceError where one binding cannot hold a part."""
    weights = load_weights(device, model, context, progress)
    try:
        return _allocate(kernels or Kernels(device), weights, max_tokens)
    except BaseException:
        weights.uploads.drop()
        raise


def _allocate(kernels: Kernels, weights: ModelWeights, max_tokens: int) -> Parts:
    device, spec = kernels.device, weights.spec
    cells = (max_tokens, spec.num_kv_heads, head_words(spec.head_dim, "f16"))
    # Every layer writes over the one before it.
    keys, values = (device.empty(cells, "u32", name) for name in ("keys", "values"))
    layers = spec.num_layers
    cache = KVCache((keys,) * layers, (values,) * layers, max_tokens, block_size=1)
    transformer = Transformer(
        kernels,
        weights,
        cache,
        Scratch(device, weights, max_tokens, max_rows=1),
        device.upload(np.arange(max_tokens, dtype=np.int32)[:, None], label="block tables"),
        device.empty((1,), "u32", "last tokens"),  # of the embedding; no id here stands for one
        default_table(device),
    )
    words = StepInputs.words_needed(device, _input_sizes(max_tokens))
    return Parts(transformer, device.empty((words,), "i32", "step inputs"), max_tokens)


class GpuBidirectional:
    """Implements `protocol.EncoderRunner`."""

    def __init__(
        self,
        device: Device,
        model: ModelFile,
        options: WorkerOptions,
        progress: Callable[[float], None] | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        started, before = time.monotonic(), device.allocated_bytes
        self.context_length, self.max_batch_tokens = encoder_sizes(device, model, options)
        self.dense: FloatArray | None = dense_matrix(model)
        self._device, self._model = device, model
        self._parts = allocate_bidirectional(
            device, model, self.context_length, self.max_batch_tokens, progress, kernels
        )
        self._made: dict[int, tuple[StepInputs, Recording]] = {}
        weights = self._parts.transformer.weights
        try:
            self._call_of(self.max_batch_tokens)
        except BaseException:
            weights.uploads.drop()
            raise
        weights.uploads.wait()
        memory = device_memory(device.info)
        self._replayer = make_replayer(device, self._parts.output.nbytes, depth=1)
        self._info = WorkerInfo(
            device=device.name,
            device_kind="gpu",
            context_length=self.context_length,
            num_blocks=0,
            block_size=0,
            max_sequences=self.max_batch_tokens,
            weight_bytes=weights.nbytes,
            kv_bytes=0,
            load_seconds=time.monotonic() - started,
            verification=options.verification,
            scratch_bytes=device.allocated_bytes - before - weights.nbytes,
            device_memory=memory,
            tier=gpu_tier(device.info.kind, memory),
            kv_type="",
            max_batch_tokens=self.max_batch_tokens,
        )

    @classmethod
    def load(
        cls,
        options: WorkerOptions,
        progress: Callable[[float], None] | None = None,
        kernels: Kernels | None = None,
    ) -> GpuBidirectional:
        """Open the file and the device (or take that of `kernels`), upload the weights.

        Raises ModelFileError for the file, DeviceError for the device.
        """
        model = open_bidirectional(options.model_path)
        if kernels is None:
            kernels = Kernels(open_device("gpu" if options.device == "auto" else options.device))
        return cls(kernels.device, model, options, progress, kernels)

    @property
    def kernels(self) -> Kernels:
        return self._parts.transformer.kernels

    def heartbeat(self) -> None:
        """Find out while idle whether the device is still there."""
        self._device.touch()

    def info(self) -> WorkerInfo:
        return self._info

    def hidden_states(self, token_ids: IntArray, query_start: IntArray) -> FloatArray:
        """See `protocol.EncoderRunner`."""
        assert 0 < len(token_ids) <= self.max_batch_tokens
        inputs, recording = self._call_of(len(token_ids))
        words = inputs.fill_texts(token_ids, query_start, self._parts.transformer.tile_size)
        self._replayer.submit(recording, inputs.tensor, words)
        states = self._replayer.collect().view(np.float32).reshape(recording.output.shape)
        return states[: len(token_ids), : self._model.spec.hidden_size]

    def _call_of(self, tokens: int) -> tuple[StepInputs, Recording]:
        """The forward pass of the smallest bucket that holds so many tokens."""
        rows = min(bucket(tokens, MIN_TOKENS), self.max_batch_tokens)
        if rows not in self._made:
            inputs = self._parts.inputs(rows)
            output = first_rows(self._parts.output, rows)
            recording = record(self._device, self._parts.steps(inputs, rows), output)
            self._made[rows] = inputs, recording
        return self._made[rows]

    def close(self) -> None:
        self._replayer.close()
        self._device.close()
        self._model.close()
