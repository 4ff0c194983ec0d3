"""An encoder in NumPy, float32: weights, the forward pass read line by line, and the runner around them.

The cpu device of encoders, and the truth that GPU runs of them are checked against. Knows token ids, no text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np

from emberd.gguf.encoder import (
    EncoderFile,
    EncoderLayerTensors,
    EncoderSpec,
    LinearTensors,
    NormTensors,
    open_encoder,
)

from .encoder_ops import attention_encoder, gelu, layer_norm_add
from .ops import F32, I32, matmul
from .text_runner import TextRunner, positions_of
from .threads import BlasThreads
from .weights import Decoder, check_memory


@dataclass(frozen=True, slots=True)
class Norm:
    weight: F32  # (hidden,)
    bias: F32


@dataclass(frozen=True, slots=True)
class Linear:
    weight: F32  # (rows, cols)
    bias: F32  # (rows,)

    def __call__(self, x: F32) -> F32:
        return matmul(x, self.weight) + self.bias


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    qkv: Linear
    o: Linear
    attention_norm: Norm
    up: Linear
    down: Linear
    ffn_norm: Norm


@dataclass(frozen=True, slots=True)
class EncoderWeights:
    spec: EncoderSpec
    token_embedding: F32  # (vocab, hidden)
    position_embedding: F32  # (context, hidden), the embedding of token type 0 added
    embedding_norm: Norm
    layers: tuple[EncoderLayer, ...]
    nbytes: int


class CpuEncoder(TextRunner):
    """An encoder with BERT's block."""

    open = staticmethod(open_encoder)

    def read(self, model: EncoderFile, progress: Callable[[float], None] | None) -> None:
        self.weights = load_encoder_weights(model, progress)
        layers = self.weights.layers
        self._threads = BlasThreads(
            [w.weight for layer in layers for w in (layer.qkv, layer.o, layer.up)]
        )

    def hidden_states(self, token_ids: I32, query_start: I32) -> F32:
        with self._threads.limit(prefill=True):
            return encode(self.weights, token_ids, query_start)


def encode(weights: EncoderWeights, token_ids: I32, query_start: I32) -> F32:
    """States (T, hidden) of texts put one after the other (Devlin et al. 2018)."""
    spec = weights.spec
    norm = weights.embedding_norm
    scale = spec.head_dim**-0.5
    x = layer_norm_add(
        weights.token_embedding[token_ids],
        weights.position_embedding[positions_of(query_start)],
        norm.weight,
        norm.bias,
        spec.norm_eps,
    )
    for layer in weights.layers:
        norm = layer.attention_norm
        y = layer.o(attention_encoder(layer.qkv(x), query_start, spec.num_heads, scale))
        x = layer_norm_add(y, x, norm.weight, norm.bias, spec.norm_eps)

        norm = layer.ffn_norm
        y = layer.down(gelu(layer.up(x)))
        x = layer_norm_add(y, x, norm.weight, norm.bias, spec.norm_eps)
    return x


def encoder_weight_bytes(model: EncoderFile) -> int:
    return sum(4 * prod(info.shape) for info in model.file.tensors.values())


def load_encoder_weights(
    model: EncoderFile, progress: Callable[[float], None] | None = None
) -> EncoderWeights:
    """Decode every tensor of `model`. Raises `ModelLoadError` where they do not fit into free memory."""
    tensors = model.tensors
    nbytes = encoder_weight_bytes(model)
    check_memory(model.file.name, nbytes)
    decode = Decoder(model.file, nbytes, progress)

    def norm(info: NormTensors) -> Norm:
        return Norm(decode.vector(info.weight), decode.vector(info.bias))

    def linear(*infos: LinearTensors) -> Linear:
        biases = [decode.vector(info.bias) for info in infos]
        return Linear(decode(*(info.weight for info in infos)), np.concatenate(biases))

    def layer(info: EncoderLayerTensors) -> EncoderLayer:
        return EncoderLayer(
            qkv=linear(info.q, info.k, info.v),
            o=linear(info.o),
            attention_norm=norm(info.attention_norm),
            up=linear(info.up),
            down=linear(info.down),
            ffn_norm=norm(info.ffn_norm),
        )

    return EncoderWeights(
        spec=model.spec,
        token_embedding=decode(tensors.token_embedding),
        position_embedding=decode(tensors.position_embedding) + decode(tensors.token_types)[0],
        embedding_norm=norm(tensors.embedding_norm),
        layers=tuple(layer(info) for info in tensors.layers),
        nbytes=nbytes,
    )
