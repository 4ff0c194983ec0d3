"""A model's weights on the GPU, stacked the way the forward pass reads them.

Neighbouring projections of one type (q, k, v; gate, up) become one matrix at load, so that one
dispatch computes them all. Files and metadata end here; the forward pass sees tensors only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from threading import Lock

import numpy as np

from ..gguf.dequant import dequantize
from ..gguf.loaded import loading_note
from ..gguf.reader import GGUFFile, TensorInfo
from ..gguf.rope import rope_tables
from ..gguf.spec import ModelFile, ModelSpec
from .activations import check_widths
from .device import Device, Tensor
from .weights import Uploads, WeightMatrix, upload_matrix, upload_vector

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Projection:
    """Matrices side by side: matrix i gives the output columns that follow those of matrix i − 1."""

    matrices: tuple[WeightMatrix, ...]
    biases: tuple[Tensor | None, ...]

    @property
    def num_columns(self) -> int:
        return sum(matrix.rows for matrix in self.matrices)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    attention_norm: Tensor
    qkv: Projection
    o: Projection
    ffn_norm: Tensor
    gate_up: Projection
    down: Projection
    cos: Tensor  # (positions, rope_dim / 2)
    sin: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    post_attention_norm: Tensor | None
    post_ffn_norm: Tensor | None


@dataclass(frozen=True, slots=True)
class ModelWeights:
    spec: ModelSpec
    token_embedding: WeightMatrix
    output_norm: Tensor
    output: Projection
    layers: tuple[LayerWeights, ...]
    nbytes: int
    uploads: Uploads  # copies under way


def load_weights(
    device: Device,
    model: ModelFile,
    num_positions: int,
    progress: Callable[[float], None] | None = None,
) -> ModelWeights:
    """Start to upload every tensor the forward pass needs; `uploads.wait()` before the first step.

    `progress` is told the share done, 0 to 1.
    """
    spec, tensors = model.spec, model.tensors
    heads = spec.num_heads * spec.head_dim
    check_widths(device, hidden=spec.hidden_size, feed_forward=spec.ffn_size, attended=heads)
    loader = Loader(device, model.file, progress)
    ropes = _rope_tensors(device, model, num_positions)
    layers = []
    for layer_spec, layer in zip(spec.layers, tensors.layers, strict=True):
        cos, sin = ropes[(layer_spec.rope_base, layer_spec.rope_scale)]
        layers.append(
            LayerWeights(
                attention_norm=loader.vector(layer.attention_norm),
                qkv=loader.projection(
                    (layer.q, layer.k, layer.v), (layer.q_bias, layer.k_bias, layer.v_bias)
                ),
                o=loader.projection((layer.o,)),
                ffn_norm=loader.vector(layer.ffn_norm),
                gate_up=loader.projection((layer.gate, layer.up)),
                down=loader.projection((layer.down,)),
                cos=cos,
                sin=sin,
                q_norm=loader.optional(layer.q_norm),
                k_norm=loader.optional(layer.k_norm),
                post_attention_norm=loader.optional(layer.post_attention_norm),
                post_ffn_norm=loader.optional(layer.post_ffn_norm),
            )
        )
    embedding = loader.projection((tensors.token_embedding,))
    tied = tensors.output.name == tensors.token_embedding.name
    output = embedding if tied else loader.projection((tensors.output,))
    norm = loader.vector(tensors.output_norm)
    return ModelWeights(
        spec,
        embedding.matrices[0],
        norm,
        output,
        tuple(layers),
        loader.nbytes,
        loader.uploads,
    )


class Loader:
    """Uploads tensors of one file and counts their bytes."""

    def __init__(
        self, device: Device, file: GGUFFile, progress: Callable[[float], None] | None
    ) -> None:
        self._device, self._file, self._progress = device, file, progress
        self._total = sum(info.nbytes for info in file.tensors.values()) or 1
        self._done = 0
        self._lock = Lock()
        self.uploads = Uploads(self._count)
        if note := loading_note(file.tensors.values()):
            logger.info("%s: %s", file.name, note)
        self.nbytes = 0

    def _count(self, nbytes: int) -> None:
        with self._lock:
            self._done += nbytes
            if self._progress is not None:
                self._progress(min(1.0, self._done / self._total))

    def vector(self, info: TensorInfo) -> Tensor:
        self.nbytes += info.nbytes
        return upload_vector(self._device, self._file.rows(info), info.type)

    def optional(self, info: TensorInfo | None) -> Tensor | None:
        return None if info is None else self.vector(info)

    def projection(
        self, infos: Sequence[TensorInfo], biases: Sequence[TensorInfo | None] = ()
    ) -> Projection:
        matrices, stacked_biases = [], []
        pairs = zip(infos, biases or [None] * len(infos), strict=True)
        for _, group in groupby(pairs, key=lambda pair: pair[0].type):
            members = list(group)
            raws = [(self._file.rows(info), info.type) for info, _ in members]
            label = members[0][0].name
            matrices.append(upload_matrix(self._device, raws, label, self.uploads))
            stacked_biases.append(self._stack_biases(members))
            self.nbytes += matrices[-1].nbytes
        return Projection(tuple(matrices), tuple(stacked_biases))

    def _stack_biases(
        self, members: Sequence[tuple[TensorInfo, TensorInfo | None]]
    ) -> Tensor | None:
        if all(bias is None for _, bias in members):
            return None
        parts = []
        for info, bias in members:
            if bias is None:
                parts.append(np.zeros(info.shape[0], np.float32))
            else:
                parts.append(dequantize(self._file.rows(bias), bias.type).reshape(-1))
        return self._device.upload(np.concatenate(parts))


def _rope_tensors(
    device: Device, model: ModelFile, num_positions: int
) -> dict[tuple[float, float], tuple[Tensor, Tensor]]:
    """cos and sin tables, one pair for each base and scale that a layer uses."""
    factors = None
    if (info := model.tensors.rope_factors) is not None:
        factors = dequantize(model.file.rows(info), info.type).reshape(-1)
    made = {}
    for layer in model.spec.layers:
        key = (layer.rope_base, layer.rope_scale)
        if key not in made:
            cos, sin = rope_tables(model.spec.rope_dim, *key, factors, num_positions)
            made[key] = (device.upload(cos), device.upload(sin))
    return made
