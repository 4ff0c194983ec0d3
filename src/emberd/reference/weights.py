"""A model's weights, decoded once from GGUF to float32.

Matrices that see the same input are joined (q, k and v; gate and up), so that a step makes fewer and
larger products. It knows files and shapes; no batch, no cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
import psutil
from numpy.typing import NDArray

from emberd.errors import ModelLoadError
from emberd.gguf.dequant import dequantize
from emberd.gguf.model import LayerTensors, ModelFile, ModelSpec, SharedExpertTensors
from emberd.gguf.reader import GGUFFile, TensorInfo

F32 = NDArray[np.float32]

_CHUNK = 1 << 22
"""Weights decoded at a time (16 MiB of float32), so that a joined matrix is not held twice."""


@dataclass(frozen=True, slots=True)
class SharedExpert:
    router: F32  # (1, hidden)
    gate_up: F32  # (2 shared ffn, hidden)
    down: F32


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's arrays; None where the architecture has none. Matrices are (rows, cols).

    Where there is a router, gate_up holds the gates of all experts, then their ups; down those of all experts.
    """

    attention_norm: F32 | None  # (hidden,)
    qkv: F32  # ((num_heads + 2 num_kv_heads) * head_dim, hidden)
    qkv_bias: F32 | None
    q_norm: F32 | None  # (head_dim,), or of all heads
    k_norm: F32 | None
    o: F32  # (hidden, num_heads * head_dim)
    post_attention_norm: F32 | None
    ffn_norm: F32 | None
    gate_up: F32  # (2 ffn, hidden): gate, then up; (ffn, hidden) where there are no gates
    down: F32  # (hidden, ffn)
    post_ffn_norm: F32 | None
    router: F32 | None = None  # (experts, hidden)
    attention_norm_bias: F32 | None = None  # where there is one, the norm is a LayerNorm
    ffn_norm_bias: F32 | None = None
    o_bias: F32 | None = None
    sinks: F32 | None = None  # (num_heads,)
    router_bias: F32 | None = None
    gate_up_bias: F32 | None = None  # as many as gate_up has rows
    down_bias: F32 | None = None
    shared: SharedExpert | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """All arrays of one model."""

    spec: ModelSpec
    token_embedding: F32  # (vocab, hidden)
    layers: tuple[Layer, ...]
    output_norm: F32
    output: F32  # the token embedding itself where the file ties them
    rope_factors: F32 | None
    nbytes: int  # of all arrays, a shared one counted once
    long_rope_factors: F32 | None = None
    output_norm_bias: F32 | None = None
    output_bias: F32 | None = None  # (vocab,)
    positions: F32 | None = None  # (context, hidden): added to the embedding


def load_weights(model: ModelFile, progress: Callable[[float], None] | None = None) -> Weights:
    """Decode every tensor of `model`; `progress` gets the share that is done, 0 to 1.

    Raises `ModelLoadError` where float32 weights do not fit into free memory.
    """
    tensors, nbytes = model.tensors, weight_bytes(model)
    check_memory(model.file.name, nbytes)
    decode = Decoder(model.file, nbytes, progress)
    embedding = decode(tensors.token_embedding)
    tied = tensors.output.name == tensors.token_embedding.name
    return Weights(
        spec=model.spec,
        token_embedding=embedding,
        layers=tuple(_load_layer(decode, layer) for layer in tensors.layers),
        output_norm=decode.vector(tensors.output_norm),
        output=embedding if tied else decode(tensors.output),
        rope_factors=decode.optional(tensors.rope_factors),
        nbytes=nbytes,
        long_rope_factors=decode.optional(tensors.long_rope_factors),
        output_norm_bias=decode.optional(tensors.output_norm_bias),
        output_bias=decode.optional(tensors.output_bias),
        positions=None if tensors.positions is None else decode(tensors.positions),
    )


def weight_bytes(model: ModelFile) -> int:
    """Of all arrays, a shared one counted once."""
    tensors = model.tensors
    infos = [tensors.token_embedding, tensors.output_norm, tensors.output]
    infos += [info for layer in tensors.layers for info in _present(layer)]
    others = (
        tensors.rope_factors,
        tensors.long_rope_factors,
        tensors.output_norm_bias,
        tensors.output_bias,
        tensors.positions,
    )
    infos += [info for info in others if info is not None]
    return sum({(info.name, info.offset): 4 * prod(info.shape) for info in infos}.values())


def check_memory(name: str, nbytes: int) -> None:
    """Raises `ModelLoadError` where `nbytes` of float32 weights do not fit into free memory."""
    free = psutil.virtual_memory().available
    if nbytes > free:
        raise ModelLoadError(
            f"{name} needs {nbytes / 2**30:.1f} GiB of memory as float32 on the CPU and "
            f"{free / 2**30:.1f} GiB are free. Use a smaller model, a GPU (--device gpu), or free memory."
        )


def _present(tensors: LayerTensors | SharedExpertTensors) -> list[TensorInfo]:
    found: list[TensorInfo] = []
    for name in tensors.__slots__:
        value = getattr(tensors, name)
        if isinstance(value, SharedExpertTensors):
            found += _present(value)
        elif value is not None:
            found.append(value)
    return found


def _load_layer(decode: Decoder, layer: LayerTensors) -> Layer:
    return Layer(
        attention_norm=decode.optional(layer.attention_norm),
        qkv=decode(layer.q, layer.k, layer.v),
        qkv_bias=decode.biases(
            (layer.q_bias, layer.q), (layer.k_bias, layer.k), (layer.v_bias, layer.v)
        ),
        q_norm=decode.optional(layer.q_norm),
        k_norm=decode.optional(layer.k_norm),
        o=decode(layer.o),
        post_attention_norm=decode.optional(layer.post_attention_norm),
        ffn_norm=decode.optional(layer.ffn_norm),
        gate_up=decode(layer.up) if layer.gate is None else decode(layer.gate, layer.up),
        down=decode(layer.down),
        post_ffn_norm=decode.optional(layer.post_ffn_norm),
        router=None if layer.router is None else decode(layer.router),
        attention_norm_bias=decode.optional(layer.attention_norm_bias),
        ffn_norm_bias=decode.optional(layer.ffn_norm_bias),
        o_bias=decode.optional(layer.o_bias),
        sinks=decode.optional(layer.sinks),
        router_bias=decode.optional(layer.router_bias),
        gate_up_bias=decode.joined(layer.gate_bias, layer.up_bias),
        down_bias=decode.optional(layer.down_bias),
        shared=_load_shared(decode, layer.shared),
    )


def _load_shared(decode: Decoder, shared: SharedExpertTensors | None) -> SharedExpert | None:
    if shared is None:
        return None
    return SharedExpert(
        router=decode(shared.router),
        gate_up=decode(shared.gate, shared.up),
        down=decode(shared.down),
    )


class Decoder:
    """Decodes tensors of one file and says how far it is."""

    def __init__(
        self, file: GGUFFile, total: int, progress: Callable[[float], None] | None
    ) -> None:
        self._file = file
        self._total = total
        self._done = 0
        self._progress = progress

    def __call__(self, *infos: TensorInfo) -> F32:
        """The matrices one below the other, in one array."""
        cols = infos[0].shape[-1]
        out = np.empty((sum(prod(info.shape[:-1]) for info in infos), cols), dtype=np.float32)
        start = 0
        for info in infos:
            raw = self._file.rows(info)
            step = max(1, _CHUNK // cols)
            for first in range(0, len(raw), step):
                part = dequantize(raw[first : first + step], info.type)
                out[start : start + len(part)] = part
                start += len(part)
                self._count(part.nbytes)
        return out

    def vector(self, info: TensorInfo) -> F32:
        return self(info).reshape(-1)

    def optional(self, info: TensorInfo | None) -> F32 | None:
        return None if info is None else self.vector(info)

    def biases(self, *pairs: tuple[TensorInfo | None, TensorInfo]) -> F32 | None:
        """Biases of these matrices, one behind the other; those that are None are 0. None where all are."""
        if all(bias is None for bias, _ in pairs):
            return None
        found = [
            np.zeros(matrix.shape[0], np.float32) if bias is None else self.vector(bias)
            for bias, matrix in pairs
        ]
        return np.concatenate(found)

    def joined(self, *infos: TensorInfo | None) -> F32 | None:
        """The vectors one behind the other, without those that are None; None where all are."""
        found = [self.vector(info) for info in infos if info is not None]
        return np.concatenate(found) if found else None

    def _count(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is not None:
            self._progress(min(1.0, self._done / self._total))
