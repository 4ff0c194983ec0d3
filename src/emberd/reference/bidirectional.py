"""A decoder whose attention looks both ways, in NumPy: the cpu device of such encoders, and the truth of GPU runs.

The forward pass is transformer.py's; whole texts are run at once, so that no keys and values are kept between calls.
Knows token ids, no text.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import psutil

from emberd.errors import ModelLoadError
from emberd.gguf.encoder import has_bert_block
from emberd.gguf.model import ModelFile
from emberd.gguf.reader import GGUFFile
from emberd.gguf.spec import open_bidirectional
from emberd.gguf.tensors import dense_matrix
from emberd.hardware import num_cores
from emberd.protocol import EncoderRunner, WorkerInfo, WorkerOptions

from .encoder import CpuEncoder, positions_of
from .ops import F32, I32, paged_attention
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


def call_sizes(spec_context: int, options: WorkerOptions) -> tuple[int, int]:
    """(tokens that a text may hold, tokens of the largest call: a text is never cut)."""
    context = min(options.context_length or spec_context, spec_context)
    return context, max(options.max_batch_tokens, context)


class CpuBidirectional:
    """Implements `protocol.EncoderRunner`."""

    def __init__(
        self,
        model: ModelFile,
        options: WorkerOptions,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        """Reads all of the open file. Raises `ModelLoadError` where memory does not suffice."""
        start = time.perf_counter()
        self.weights = load_weights(model, progress)
        self.dense: F32 | None = dense_matrix(model)
        self.context_length, self.max_batch_tokens = call_sizes(model.spec.context_length, options)
        self._verification = options.verification
        self._tables = layer_rope_tables(self.weights, self.context_length)
        self._threads = BlasThreads(
            [w for layer in self.weights.layers for w in (layer.qkv, layer.o, layer.gate_up)]
        )
        self._load_seconds = time.perf_counter() - start

    @classmethod
    def load(
        cls, options: WorkerOptions, progress: Callable[[float], None] | None = None
    ) -> CpuBidirectional:
        """Read, check and decode the model file; `progress` gets the share done, 0 to 1.

        Raises `ModelFileError` for a bad file, `ModelLoadError` where memory does not suffice.
        """
        model = open_bidirectional(options.model_path)
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

    def hidden_states(self, token_ids: I32, query_start: I32) -> F32:
        """See `protocol.EncoderRunner`."""
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

    def close(self) -> None:
        """Let the weights go; the runner is not used after."""
        del self.weights, self._tables
