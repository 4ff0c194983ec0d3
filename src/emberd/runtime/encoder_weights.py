"""An encoder's weights on the GPU, stacked the way its forward pass reads them.

Files end here; the forward pass sees tensors only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..gguf.dequant import dequantize
from ..gguf.encoder import (
    EncoderFile,
    EncoderLayerTensors,
    EncoderSpec,
    LinearTensors,
    NormTensors,
)
from .activations import FLOAT_UNIT, padded
from .device import Device, Tensor
from .model import Loader, Projection
from .weights import Uploads, WeightMatrix


@dataclass(frozen=True, slots=True)
class Norm:
    weight: Tensor  # (hidden,)
    bias: Tensor


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    qkv: Projection
    o: Projection
    attention_norm: Norm
    up: Projection
    down: Projection
    ffn_norm: Norm


@dataclass(frozen=True, slots=True)
class EncoderWeights:
    spec: EncoderSpec
    token_embedding: WeightMatrix
    position_embedding: Tensor  # (context, hidden) f32, the embedding of token type 0 added
    embedding_norm: Norm
    layers: tuple[EncoderLayer, ...]
    nbytes: int
    uploads: Uploads  # copies under way


def load_encoder_weights(
    device: Device, model: EncoderFile, progress: Callable[[float], None] | None = None
) -> EncoderWeights:
    """Start to upload every tensor; `uploads.wait()` before the first call. `progress`: the share done."""
    loader = Loader(device, model.file, progress)
    tensors, file = model.tensors, model.file

    def norm(info: NormTensors) -> Norm:
        return Norm(loader.vector(info.weight, FLOAT_UNIT), loader.vector(info.bias, FLOAT_UNIT))

    def linear(*infos: LinearTensors, row_unit: int = 1) -> Projection:
        weights, biases = [info.weight for info in infos], [info.bias for info in infos]
        return loader.projection(weights, biases, row_unit)

    def layer(info: EncoderLayerTensors) -> EncoderLayer:
        return EncoderLayer(
            qkv=linear(info.q, info.k, info.v),
            o=linear(info.o),
            attention_norm=norm(info.attention_norm),
            up=linear(info.up, row_unit=FLOAT_UNIT),
            down=linear(info.down),
            ffn_norm=norm(info.ffn_norm),
        )

    positions = dequantize(file.rows(tensors.position_embedding), tensors.position_embedding.type)
    types = dequantize(file.rows(tensors.token_types), tensors.token_types.type)
    missing = padded(positions.shape[1]) - positions.shape[1]
    sums = np.pad(positions + types[0], ((0, 0), (0, missing)))
    position_embedding = device.upload(sums, label="position embedding")
    token_embedding = loader.projection((tensors.token_embedding,)).matrices[0]
    embedding_norm = norm(tensors.embedding_norm)
    layers = tuple(layer(info) for info in tensors.layers)
    return EncoderWeights(
        spec=model.spec,
        token_embedding=token_embedding,
        position_embedding=position_embedding,
        embedding_norm=embedding_norm,
        layers=layers,
        nbytes=loader.nbytes + position_embedding.nbytes,
        uploads=loader.uploads,
    )
