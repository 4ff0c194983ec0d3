"""The forward pass as dispatches, line by line as in the papers. Formats and devices do not show here.

`body` turns token ids into hidden states and writes the KV cache; `head` turns chosen hidden states
into logits. T tokens, D hidden size, H heads, KVH key/value heads, hd head size, F feed-forward size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..gguf.spec import ModelSpec
from . import linear, ops
from .device import Device, Tensor
from .inputs import StepInputs
from .kernel import Dispatch, Kernels
from .kv_cache import KVCache
from .linear import QuantizedActivations
from .model import LayerWeights, ModelWeights, Projection


class Scratch:
    """Activations, allocated once for the largest step; plans take views of their first rows."""

    def __init__(
        self, device: Device, weights: ModelWeights, max_tokens: int, max_rows: int
    ) -> None:
        spec = weights.spec
        heads = spec.num_heads * spec.head_dim
        qkv = heads + 2 * spec.num_kv_heads * spec.head_dim
        self.hidden = device.empty((max_tokens, spec.hidden_size), label="hidden")
        self.normed = device.empty((max_tokens, spec.hidden_size), label="normed")
        self.normed_q8 = linear.activations(device, max_tokens, spec.hidden_size)
        self.qkv = device.empty((max_tokens, qkv), label="qkv")
        self.q = device.empty((max_tokens, spec.num_heads, spec.head_dim), label="q")
        self.attended = device.empty(self.q.shape, label="attended")
        self.attended_q8 = linear.activations(device, max_tokens, heads)
        self.partial = device.empty((_partial_elements(device, spec, max_rows),), label="partial")
        self.gate_up = device.empty((max_tokens, 2 * spec.ffn_size), label="gate_up")
        self.activated = device.empty((max_tokens, spec.ffn_size), label="activated")
        self.activated_q8 = linear.activations(device, max_tokens, spec.ffn_size)
        self.projected = device.empty((max_tokens, spec.hidden_size), label="projected")
        self.last_hidden = device.empty((max_rows, spec.hidden_size), label="last hidden")
        self.last_normed = device.empty((max_rows, spec.hidden_size), label="last normed")
        self.last_normed_q8 = linear.activations(device, max_rows, spec.hidden_size)
        self.logits = device.empty((max_rows, spec.vocab_size), label="logits")


def _partial_elements(device: Device, spec: ModelSpec, max_rows: int) -> int:
    """Elements that decode attention's partial results take in the most demanding bucket."""
    sizes = []
    for rows in [1 << i for i in range(bucket(max_rows).bit_length())]:
        splits = ops.decode_splits(device, rows=rows, num_kv_heads=spec.num_kv_heads)
        shape = ops.decode_partial_shape(
            rows=rows, num_heads=spec.num_heads, head_dim=spec.head_dim, splits=splits
        )
        sizes.append(math.prod(shape))
    return max(sizes)


def bucket(count: int, least: int = 1) -> int:
    """The smallest power of two that is at least `count` and `least`; 0 for 0."""
    return 0 if count == 0 else max(least, 1 << (count - 1).bit_length())


def flat(tensor: Tensor) -> Tensor:
    """(T, H, hd) seen as (T, H · hd)."""
    shape = (tensor.shape[0], math.prod(tensor.shape[1:]))
    return Tensor(tensor.buffer, shape, tensor.dtype, tensor.offset)


def first_rows(tensor: Tensor, rows: int) -> Tensor:
    """The tensor's first `rows` rows."""
    return Tensor(tensor.buffer, (rows, *tensor.shape[1:]), tensor.dtype, tensor.offset)


def _first_rows_q8(x: QuantizedActivations, rows: int) -> QuantizedActivations:
    return QuantizedActivations(first_rows(x.q, rows), first_rows(x.scales, rows))


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one plan's step."""

    tokens: int
    decode_rows: int  # 0: no decode attention
    tiles: int  # 0: no prefill attention


@dataclass(frozen=True, slots=True)
class Transformer:
    """The model's parts that every plan shares."""

    kernels: Kernels
    weights: ModelWeights
    cache: KVCache
    scratch: Scratch
    block_tables: Tensor
    last_tokens: Tensor  # (max_sequences,) u32

    @property
    def tile_size(self) -> int:
        """Query tokens of a prefill tile."""
        return ops.prefill_tile_size(self.kernels.device, num_heads=self.weights.spec.num_heads)

    def body(self, inputs: StepInputs, shape: Shape) -> list[Dispatch]:
        """Embedding and all layers; leaves the hidden states in `scratch.hidden`."""
        weights, spec, rows = self.weights, self.weights.spec, shape.tokens
        hidden = first_rows(self.scratch.hidden, rows)
        steps = linear.embedding(
            self.kernels,
            weights.token_embedding,
            inputs["token_ids"],
            self.last_tokens,
            inputs["sequence_index"],
            hidden,
            rows=rows,
            scale=spec.embedding_scale,
        )
        for index, layer in enumerate(weights.layers):
            steps += self._attention(index, layer, hidden, inputs, shape)
            steps += self._feed_forward(layer, hidden, inputs, rows)
        return steps

    def head(self, hidden_rows: Tensor, count: Tensor, rows: int) -> list[Dispatch]:
        """Logits (rows, V) of the hidden states at `hidden_rows` (token places), in `scratch.logits`."""
        spec, scratch = self.weights.spec, self.scratch
        last = first_rows(scratch.last_hidden, rows)
        hidden = scratch.hidden
        steps = [
            ops.gather_rows(
                self.kernels, hidden, hidden_rows, last, rows=rows, width=spec.hidden_size
            )
        ]
        normed = first_rows(scratch.last_normed, rows)
        normed_q8 = _first_rows_q8(scratch.last_normed_q8, rows)
        steps += self._norm(
            last, self.weights.output_norm, normed, normed_q8, self.weights.output, rows
        )
        logits = first_rows(scratch.logits, rows)
        return steps + self._project(self.weights.output, normed, normed_q8, logits, count, rows)

    def _attention(
        self, index: int, layer: LayerWeights, hidden: Tensor, inputs: StepInputs, shape: Shape
    ) -> list[Dispatch]:
        spec, scratch, rows = self.weights.spec, self.scratch, shape.tokens
        count = inputs["num_tokens"]
        normed, normed_q8 = (
            first_rows(scratch.normed, rows),
            _first_rows_q8(scratch.normed_q8, rows),
        )
        qkv, q = first_rows(scratch.qkv, rows), first_rows(scratch.q, rows)
        attended = first_rows(scratch.attended, rows)
        keys, values = self.cache.keys[index], self.cache.values[index]

        steps = self._norm(hidden, layer.attention_norm, normed, normed_q8, layer.qkv, rows)
        steps += self._project(layer.qkv, normed, normed_q8, qkv, count, rows)
        steps.append(
            ops.rope_kv_write(
                self.kernels,
                qkv,
                q,
                keys,
                values,
                inputs["positions"],
                inputs["slots"],
                layer.cos,
                layer.sin,
                layer.q_norm,
                layer.k_norm,
                count,
                rows=rows,
                rope_dim=spec.rope_dim,
                pairing=spec.rope_pairing,
                eps=spec.norm_eps,
                num_heads=spec.num_heads,
                num_kv_heads=spec.num_kv_heads,
                head_dim=spec.head_dim,
            )
        )
        steps += self._attend(index, q, attended, inputs, shape)
        attended_q8 = _first_rows_q8(scratch.attended_q8, rows)
        if _quantized(layer.o):
            width = spec.num_heads * spec.head_dim
            steps.append(
                linear.quantize_q8(
                    self.kernels, flat(attended), attended_q8, rows=rows, width=width
                )
            )
        return steps + self._output(
            layer.o, flat(attended), attended_q8, hidden, layer.post_attention_norm, count, rows
        )

    def _attend(
        self, index: int, q: Tensor, attended: Tensor, inputs: StepInputs, shape: Shape
    ) -> list[Dispatch]:
        """Attention of decode rows, which come first, and of prefill tiles."""
        spec, cache = self.weights.spec, self.cache
        window, scale = spec.layers[index].window, spec.attention_scale
        heads, kv_heads = spec.num_heads, spec.num_kv_heads
        steps = []
        if shape.decode_rows:
            steps += ops.attention_decode(
                self.kernels,
                q,
                cache.keys[index],
                cache.values[index],
                self.block_tables,
                inputs["context_lens"],
                self.scratch.partial,
                attended,
                inputs["num_decode_rows"],
                rows=shape.decode_rows,
                splits=ops.decode_splits(
                    self.kernels.device, rows=shape.decode_rows, num_kv_heads=kv_heads
                ),
                num_heads=heads,
                num_kv_heads=kv_heads,
                head_dim=spec.head_dim,
                block_size=cache.block_size,
                window=window,
                scale=scale,
            )
        if shape.tiles:
            steps.append(
                ops.attention_prefill(
                    self.kernels,
                    q,
                    cache.keys[index],
                    cache.values[index],
                    self.block_tables,
                    inputs["context_lens"],
                    inputs["tiles"],
                    inputs["num_tiles"],
                    attended,
                    max_tiles=shape.tiles,
                    tile_size=self.tile_size,
                    num_heads=heads,
                    num_kv_heads=kv_heads,
                    head_dim=spec.head_dim,
                    block_size=cache.block_size,
                    window=window,
                    scale=scale,
                )
            )
        return steps

    def _feed_forward(
        self, layer: LayerWeights, hidden: Tensor, inputs: StepInputs, rows: int
    ) -> list[Dispatch]:
        spec, scratch, count = self.weights.spec, self.scratch, inputs["num_tokens"]
        normed, normed_q8 = (
            first_rows(scratch.normed, rows),
            _first_rows_q8(scratch.normed_q8, rows),
        )
        gate_up = first_rows(scratch.gate_up, rows)
        activated = first_rows(scratch.activated, rows)
        activated_q8 = _first_rows_q8(scratch.activated_q8, rows)

        steps = self._norm(hidden, layer.ffn_norm, normed, normed_q8, layer.gate_up, rows)
        steps += self._project(layer.gate_up, normed, normed_q8, gate_up, count, rows)
        sizes = {"rows": rows, "width": spec.ffn_size}
        if _quantized(layer.down):
            steps.append(
                linear.silu_mul_quantize(
                    self.kernels, gate_up, activated_q8, activation=spec.activation, **sizes
                )
            )
        else:
            steps.append(
                ops.silu_mul(self.kernels, gate_up, activated, activation=spec.activation, **sizes)
            )
        return steps + self._output(
            layer.down, activated, activated_q8, hidden, layer.post_ffn_norm, count, rows
        )

    def _norm(
        self,
        x: Tensor,
        weight: Tensor,
        normed: Tensor,
        normed_q8: QuantizedActivations,
        reader: Projection,
        rows: int,
    ) -> list[Dispatch]:
        """RMS norm in the forms that the projection behind it reads."""
        sizes = {"rows": rows, "width": x.shape[1]}
        eps = self.weights.spec.norm_eps
        steps = []
        if any(matrix.is_quantized for matrix in reader.matrices):
            steps.append(
                linear.rms_norm_quantize(self.kernels, x, weight, normed_q8, eps=eps, **sizes)
            )
        if not all(matrix.is_quantized for matrix in reader.matrices):
            steps.append(ops.rms_norm(self.kernels, x, weight, normed, eps=eps, **sizes))
        return steps

    def _project(
        self,
        projection: Projection,
        x: Tensor,
        x_q8: QuantizedActivations,
        y: Tensor,
        count: Tensor,
        rows: int,
        accumulate: bool = False,
    ) -> list[Dispatch]:
        steps: list[Dispatch] = []
        column = 0
        for matrix, bias in zip(projection.matrices, projection.biases, strict=True):
            steps += linear.matmul(
                self.kernels,
                matrix,
                x_q8 if matrix.is_quantized else x,
                y,
                rows=rows,
                count=count,
                bias=bias,
                accumulate=accumulate,
                column=column,
            )
            column += matrix.rows
        return steps

    def _output(
        self,
        projection: Projection,
        x: Tensor,
        x_q8: QuantizedActivations,
        hidden: Tensor,
        post_norm: Tensor | None,
        count: Tensor,
        rows: int,
    ) -> list[Dispatch]:
        """Project back to the hidden size and add to the residual, normed first where the model does."""
        if post_norm is None:
            return self._project(projection, x, x_q8, hidden, count, rows, accumulate=True)
        projected = first_rows(self.scratch.projected, rows)
        sizes = {"rows": rows, "width": self.weights.spec.hidden_size}
        return [
            *self._project(projection, x, x_q8, projected, count, rows),
            ops.rms_norm_add(
                self.kernels, projected, post_norm, hidden, eps=self.weights.spec.norm_eps, **sizes
            ),
        ]


def _quantized(projection: Projection) -> bool:
    return projection.matrices[0].is_quantized
