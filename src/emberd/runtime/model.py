"""A model's weights on the GPU, stacked the way the forward pass reads them.

Neighbouring projections of one type (q, k, v; gate, up) become one matrix at load, so that one
dispatch computes them all. Files and metadata end here; the forward pass sees tensors only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from threading import Lock

import numpy as np

from ..gguf.dequant import dequantize
from ..gguf.loaded import loading_note
from ..gguf.model import LayerTensors, ModelFile, ModelSpec, SharedExpertTensors
from ..gguf.reader import GGUFFile, TensorInfo
from ..gguf.rope import factors_for, layer_rope_tables
from .activations import FLOAT_UNIT, padded
from .device import Device, Tensor
from .ops import kv_include
from .weights import Bytes, Uploads, WeightMatrix, upload_matrix, upload_vector

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Projection:
    """Matrices side by side: matrix i gives the output columns that follow those of matrix i − 1."""

    matrices: tuple[WeightMatrix, ...]
    biases: tuple[Tensor | None, ...]

    @property
    def is_biased(self) -> bool:
        """Products with it add something, which fused kernels do not."""
        return any(bias is not None for bias in self.biases)

    def beside(self, other: Projection) -> Projection:
        return Projection(self.matrices + other.matrices, self.biases + other.biases)

    @property
    def num_columns(self) -> int:
        return sum(matrix.rows for matrix in self.matrices)


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMS norm, or a LayerNorm where there is a bias."""

    weight: Tensor
    bias: Tensor | None
    count: int  # values of a row that are the model's, and so the mean's


@dataclass(frozen=True, slots=True)
class SharedExpert:
    router: Projection  # one column: the logit of the expert's weight
    gate_up: Projection
    down: Projection


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Where there is a router, gate_up and down hold all experts: gates, then ups; one expert below the other.

    Of one feed-forward, gates and ups are a multiple of 8 rows each, zeros at the end.
    """

    attention_norm: Norm | None
    qkv: Projection
    o: Projection
    ffn_norm: Norm | None
    gate_up: Projection
    down: Projection
    cos: Tensor  # (positions, rope_dim / 2)
    sin: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    post_attention_norm: Tensor | None
    post_ffn_norm: Tensor | None
    router: Projection | None
    sinks: Tensor | None  # (num_heads,)
    shared: SharedExpert | None

    @property
    def ffn_readers(self) -> Projection:
        """All that reads the feed-forward's input."""
        if self.router is None:
            return self.gate_up
        others = () if self.shared is None else (self.shared.router, self.shared.gate_up)
        found = [m for part in (self.router, self.gate_up, *others) for m in part.matrices]
        return Projection(tuple(found), (None,) * len(found))


@dataclass(frozen=True, slots=True)
class ModelWeights:
    spec: ModelSpec
    token_embedding: WeightMatrix
    output_norm: Norm
    output: Projection
    layers: tuple[LayerWeights, ...]
    nbytes: int
    uploads: Uploads  # copies under way
    positions: Tensor | None = None  # (context, hidden) f32: added to the embedding


def load_weights(
    device: Device,
    model: ModelFile,
    num_positions: int,
    progress: Callable[[float], None] | None = None,
) -> ModelWeights:
    """Start to upload every tensor the forward pass needs; `uploads.wait()` before the first step.

    `progress` is told the share done, 0 to 1. Raises DeviceError for what the device cannot hold or run.
    """
    kv_include(device, model.spec.head_dim)  # refuses what no kernel reads, ahead of the uploads
    loader = Loader(device, model.file, progress)
    try:
        return _load(loader, _rope_tensors(device, model, num_positions), model)
    except BaseException:
        loader.uploads.drop()
        raise


def _load(
    loader: Loader,
    ropes: dict[tuple[float, float], tuple[Tensor, Tensor]],
    model: ModelFile,
) -> ModelWeights:
    spec, tensors = model.spec, model.tensors
    layers = []
    for layer_spec, layer in zip(spec.layers, tensors.layers, strict=True):
        cos, sin = ropes[(layer_spec.rope_base, layer_spec.rope_scale)]
        layers.append(
            LayerWeights(
                attention_norm=loader.norm(layer.attention_norm, layer.attention_norm_bias),
                qkv=loader.projection(
                    (layer.q, layer.k, layer.v), (layer.q_bias, layer.k_bias, layer.v_bias)
                ),
                o=loader.projection((layer.o,), (layer.o_bias,)),
                ffn_norm=loader.norm(layer.ffn_norm, layer.ffn_norm_bias),
                gate_up=loader.gate_up(layer),
                down=loader.projection((layer.down,), (layer.down_bias,)),
                cos=cos,
                sin=sin,
                q_norm=loader.optional(layer.q_norm),
                k_norm=loader.optional(layer.k_norm),
                post_attention_norm=loader.optional(layer.post_attention_norm, FLOAT_UNIT),
                post_ffn_norm=loader.optional(layer.post_ffn_norm, FLOAT_UNIT),
                router=loader.optional_projection(layer.router, layer.router_bias),
                sinks=loader.optional(layer.sinks),
                shared=_shared_expert(loader, layer.shared),
            )
        )
    embedding = loader.projection((tensors.token_embedding,))
    tied = tensors.output.name == tensors.token_embedding.name
    biases = (tensors.output_bias,)
    output = embedding if tied else loader.projection((tensors.output,), biases)
    norm = loader.norm(tensors.output_norm, tensors.output_norm_bias)
    assert norm is not None
    return ModelWeights(
        spec,
        embedding.matrices[0],
        norm,
        output,
        tuple(layers),
        loader.nbytes,
        loader.uploads,
        loader.positions(tensors.positions),
    )


def _shared_expert(loader: Loader, shared: SharedExpertTensors | None) -> SharedExpert | None:
    if shared is None:
        return None
    return SharedExpert(
        loader.projection((shared.router,)),
        loader.projection((shared.gate, shared.up), row_unit=FLOAT_UNIT),
        loader.projection((shared.down,)),
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

    def vector(self, info: TensorInfo, unit: int = 1) -> Tensor:
        """Of a multiple of `unit` values, zeros at the end."""
        self.nbytes += info.nbytes
        return upload_vector(self._device, self._file.rows(info), info.type, unit=unit)

    def optional(self, info: TensorInfo | None, unit: int = 1) -> Tensor | None:
        return None if info is None else self.vector(info, unit)

    def norm(self, weight: TensorInfo | None, bias: TensorInfo | None) -> Norm | None:
        """Of hidden states."""
        if weight is None:
            return None
        (count,) = weight.shape
        return Norm(self.vector(weight, FLOAT_UNIT), self.optional(bias, FLOAT_UNIT), count)

    def positions(self, info: TensorInfo | None) -> Tensor | None:
        """The table of learned positions, which is as long as the model's context."""
        if info is None:
            return None
        rows, width = info.shape[0], padded(info.shape[1])
        self.nbytes += 4 * rows * width
        table = dequantize(self._file.rows(info), info.type)
        table = np.pad(table, ((0, 0), (0, width - info.shape[1])))
        return self._device.upload(table, "f32", info.name)

    def gate_up(self, layer: LayerTensors) -> Projection:
        """Gate and up, or up alone where there are no gates."""
        unit = FLOAT_UNIT if layer.router is None else 1
        if layer.gate is None:
            return self.projection((layer.up,), (layer.up_bias,), unit)
        return self.projection((layer.gate, layer.up), (layer.gate_bias, layer.up_bias), unit)

    def projection(
        self,
        infos: Sequence[TensorInfo],
        biases: Sequence[TensorInfo | None] = (),
        row_unit: int = 1,
    ) -> Projection:
        """Each matrix is made a multiple of `row_unit` rows, zeros at the end."""
        matrices, stacked_biases = [], []
        pairs = zip(infos, biases or [None] * len(infos), strict=True)
        for _, group in groupby(pairs, key=lambda pair: pair[0].type):
            members = list(group)
            raws = [
                (raw, info.type)
                for info, _ in members
                for raw in _with_zeros(self._file.rows(info), row_unit)
            ]
            label = members[0][0].name
            matrices.append(upload_matrix(self._device, raws, label, self.uploads))
            stacked_biases.append(self._stack_biases(members, row_unit))
            self.nbytes += matrices[-1].nbytes
        return Projection(tuple(matrices), tuple(stacked_biases))

    def optional_projection(
        self, info: TensorInfo | None, bias: TensorInfo | None
    ) -> Projection | None:
        return None if info is None else self.projection((info,), (bias,))

    def _stack_biases(
        self, members: Sequence[tuple[TensorInfo, TensorInfo | None]], row_unit: int
    ) -> Tensor | None:
        if all(bias is None for _, bias in members):
            return None
        parts = []
        for info, bias in members:
            part = np.zeros(padded(info.shape[0], row_unit), np.float32)
            if bias is not None:
                part[: info.shape[0]] = dequantize(self._file.rows(bias), bias.type).reshape(-1)
            parts.append(part)
        return self._device.upload(np.concatenate(parts))


def _with_zeros(raw: Bytes, unit: int) -> Iterator[Bytes]:
    """The rows, then as many of zero bytes as make them a multiple of `unit`: a zero quant block is zeros in every
    type."""
    yield raw
    if missing := padded(len(raw), unit) - len(raw):
        yield np.zeros((missing, raw.shape[1]), np.uint8)


def _rope_tensors(
    device: Device, model: ModelFile, num_positions: int
) -> dict[tuple[float, float], tuple[Tensor, Tensor]]:
    """cos and sin tables, one pair for each base and scale that a layer uses."""
    tensors = model.tensors
    info = factors_for(model.spec, tensors.rope_factors, tensors.long_rope_factors, num_positions)
    factors = None
    if info is not None:
        factors = dequantize(model.file.rows(info), info.type).reshape(-1)
    made = {}
    for index, layer in enumerate(model.spec.layers):
        key = (layer.rope_base, layer.rope_scale)
        if key not in made:
            cos, sin = layer_rope_tables(model.spec, index, factors, num_positions)
            made[key] = (device.upload(cos), device.upload(sin))
    return made
