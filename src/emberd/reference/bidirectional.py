"""A decoder whose attention looks both ways, in NumPy: the cpu device of such encoders, and the truth of GPU runs.

The forward pass is transformer.py's; whole texts are run at once, so that no keys and values are kept between calls.
Knows token ids, no text.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from emberd.gguf.encoder import has_bert_block
from emberd.gguf.model import ModelFile
from emberd.gguf.reader import GGUFFile
from emberd.gguf.spec import open_bidirectional
from emberd.gguf.tensors import dense_matrix
from emberd.protocol import EncoderRunner, WorkerOptions

from .encoder import CpuEncoder
from .ops import F32, I32, paged_attention
from .text_runner import TextRunner, positions_of
from .threads import BlasThreads
from .transformer import hidden_states, layer_rope_tables, output_norm
from .weights import load_weights


def load_encoder(
    options: WorkerOptions, progress: Callable[[float], None] | None = None
) -> EncoderRunner:
    """The runner of the encoder's file, of either kind. Raises as their `load`."""
    with GGUFFile(options.model_path) as file:
        bert = has_bert_block(file)
    return (CpuEncoder if bert else CpuBidirectional).load(options, progress)


class CpuBidirectional(TextRunner):
    """An encoder with a decoder's block."""

    open = staticmethod(open_bidirectional)

    def read(self, model: ModelFile, progress: Callable[[float], None] | None) -> None:
        self.weights = load_weights(model, progress)
        self.dense = dense_matrix(model)
        self._tables = layer_rope_tables(self.weights, self.context_length)
        layers = self.weights.layers
        self._threads = BlasThreads(
            [w for layer in layers for w in (layer.qkv, layer.o, layer.gate_up)]
        )

    def hidden_states(self, token_ids: I32, query_start: I32) -> F32:
        spec, positions = self.weights.spec, positions_of(query_start)
        # A text's keys lie one behind the other, in blocks of one place each.
        places = np.zeros((len(query_start) - 1, int(np.diff(query_start).max())), np.int32)
        for row, (start, end) in enumerate(pairwise(query_start.tolist())):
            places[row, : end - start] = np.arange(start, end)

        def attend(index: int, q: F32, k: F32, v: F32) -> F32:
            layer, scale, cap = spec.layers[index], spec.attention_scale, spec.attention_cap
            sinks, starts = self.weights.layers[index].sinks, query_start
            return paged_attention(
                q, k, v, places, starts, positions, 1, layer.window, scale, cap, sinks, layer.ahead
            )

        with self._threads.limit(prefill=True):
            x = hidden_states(self.weights, self._tables, token_ids, positions, attend)
            return output_norm(self.weights, x)
