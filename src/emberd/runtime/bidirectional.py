"""GpuBidirectional: an encoder with a decoder's block, whose attention looks both ways, on a WebGPU device.

Whole texts are run at once by the decoder's own forward pass (`transformer.py`), over keys and values of one layer at
a time: nothing is kept between layers, let alone between calls. Knows token ids, no text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..gguf.encoder import has_bert_block
from ..gguf.model import ModelFile
from ..gguf.reader import GGUFFile
from ..gguf.spec import open_bidirectional
from ..gguf.tensors import dense_matrix
from ..protocol import EncoderRunner, FloatArray, WorkerOptions
from .device import Device, Tensor
from .encoder import GpuEncoder
from .inputs import InputSizes, StepInputs
from .kernel import Dispatch, Kernels
from .kv_cache import KVCache, head_words
from .linear import default_table
from .model import ModelWeights, load_weights
from .norms import norm_floats
from .scratch import Scratch, first_rows
from .text_runner import Call, TextRunner
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
    def kernels(self) -> Kernels:
        return self.transformer.kernels

    @property
    def weights(self) -> ModelWeights:
        return self.transformer.weights

    @property
    def output(self) -> Tensor:
        """(max_tokens, hidden and zeros): states behind the output norm."""
        return self.transformer.scratch.projected  # of no use behind the last layer

    def call(self, rows: int) -> Call:
        """The forward pass of up to `rows` tokens, each of which may be a text, into `output`."""
        inputs = StepInputs(self.kernels.device, self.input_buffer.buffer, _input_sizes(rows))
        fill = partial(inputs.fill_texts, tile_tokens=self.transformer.tile_size)
        return Call(inputs.tensor, fill, self._steps(inputs, rows))

    def _steps(self, inputs: StepInputs, rows: int) -> list[Dispatch]:
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


class GpuBidirectional(TextRunner):
    """An encoder with a decoder's block on a device."""

    open = staticmethod(open_bidirectional)

    def allocate(
        self,
        model: ModelFile,
        options: WorkerOptions,
        progress: Callable[[float], None] | None,
        kernels: Kernels,
    ) -> Parts:
        return allocate_bidirectional(
            kernels.device, model, self.context_length, self.max_batch_tokens, progress, kernels
        )

    def dense_of(self, model: ModelFile) -> FloatArray | None:
        return dense_matrix(model)
