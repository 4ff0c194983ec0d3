"""GpuEncoder: an encoder with BERT's block on a WebGPU device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..gguf.encoder import EncoderFile, EncoderSpec, open_encoder
from ..protocol import IntArray, WorkerOptions
from . import encoder_ops, linear, ops
from .activations import QuantizedActivations, activations, is_fine, padded
from .device import Device, Tensor
from .encoder_weights import EncoderWeights, Norm, load_encoder_weights
from .kernel import Dispatch, Kernels
from .model import Projection
from .scratch import first_rows, wide_attended
from .text_runner import Call, TextRunner


class EncoderInputs:
    """What changes from call to call, in one GPU buffer that one write fills."""

    def __init__(self, device: Device, max_tokens: int) -> None:
        align = max(16, device.limits["min-storage-buffer-offset-alignment"]) // 4
        room = -(-max_tokens // align) * align
        self._places = {"count": 0, "token_ids": align, "positions": align + room}
        self._places["bounds"] = align + 2 * room
        self._host = np.zeros(align + 4 * room, np.int32)
        self.tensor = device.empty(self._host.shape, "i32", "encoder inputs")

    def of_tokens(self, name: str, tokens: int) -> Tensor:
        """`token_ids`, `positions` (tokens,) or `bounds` (tokens, 2)."""
        shape = (tokens, 2) if name == "bounds" else (tokens,)
        return Tensor(self.tensor.buffer, shape, "i32", 4 * self._places[name])

    @property
    def count(self) -> Tensor:
        return Tensor(self.tensor.buffer, (1,), "u32")

    def fill(self, token_ids: IntArray, query_start: IntArray) -> IntArray:
        """The call's arrays, as words for `tensor`."""
        lengths = np.diff(query_start)
        starts, ends = np.repeat(query_start[:-1], lengths), np.repeat(query_start[1:], lengths)
        tokens = len(token_ids)
        self._host[0] = tokens
        for name, values in (
            ("token_ids", token_ids),
            ("positions", np.arange(tokens) - starts),
            ("bounds", np.stack([starts, ends], axis=1).reshape(-1)),
        ):
            at = self._places[name]
            self._host[at : at + len(values)] = values
        return self._host


class Scratch:
    """Activations, allocated once for the largest call."""

    def __init__(self, device: Device, spec: EncoderSpec, max_tokens: int) -> None:
        width, ffn = padded(spec.hidden_size), padded(spec.ffn_size)
        fine = is_fine(spec.hidden_size)
        # The residual sum is normed from one of these into the other.
        self.hidden = device.empty((max_tokens, width), label="hidden")
        self.between = device.empty((max_tokens, width), label="hidden between")
        self.projected = device.empty((max_tokens, width), label="projected")
        self.qkv = device.empty((max_tokens, 3 * spec.hidden_size), label="qkv")
        self.attended = device.empty((max_tokens, spec.hidden_size), label="attended")
        self.attended_wide = wide_attended(device, max_tokens, spec.hidden_size)
        self.up = device.empty((max_tokens, ffn), label="up")
        self.activated = device.empty((max_tokens, ffn), label="activated")
        self.width_q8 = activations(device, max_tokens, width, fine=fine)
        self.ffn_q8 = activations(device, max_tokens, ffn, fine=fine)


@dataclass(frozen=True, slots=True)
class Encoder:
    """The forward pass (Devlin et al. 2018)."""

    kernels: Kernels
    weights: EncoderWeights
    scratch: Scratch
    inputs: EncoderInputs

    @property
    def output(self) -> Tensor:
        """(max_tokens, hidden and zeros): the states."""
        return self.scratch.hidden

    def call(self, rows: int) -> Call:
        """The forward pass of up to `rows` tokens, into `output`."""
        return Call(self.inputs.tensor, self.inputs.fill, self.body(rows))

    def body(self, rows: int) -> list[Dispatch]:
        """Embedding and all layers for up to `rows` tokens; leaves the states in `scratch.hidden`."""
        spec, weights, scratch = self.weights.spec, self.weights, self.scratch
        token_ids = self.inputs.of_tokens("token_ids", rows)
        projected, qkv, attended, up, activated = (
            first_rows(tensor, rows)
            for tensor in (
                scratch.projected,
                scratch.qkv,
                scratch.attended,
                scratch.up,
                scratch.activated,
            )
        )
        hidden, between = first_rows(scratch.hidden, rows), first_rows(scratch.between, rows)
        steps = linear.embedding(
            self.kernels,
            weights.token_embedding,
            token_ids,
            self.inputs.count,  # of last tokens: no id here stands for one
            token_ids,
            projected,
            rows=rows,
            scale=1.0,
        )
        positions = self.inputs.of_tokens("positions", rows)
        steps.append(
            self._norm(
                projected, weights.position_embedding, weights.embedding_norm, hidden, positions
            )
        )
        for layer in weights.layers:
            steps += self._project(layer.qkv, hidden, scratch.width_q8, qkv)
            steps.append(
                encoder_ops.attention_encoder(
                    self.kernels,
                    qkv,
                    self.inputs.of_tokens("bounds", rows),
                    self.inputs.count,
                    attended,
                    rows=rows,
                    num_heads=spec.num_heads,
                    head_dim=spec.head_dim,
                    scale=spec.head_dim**-0.5,
                )
            )
            read = attended
            if scratch.attended_wide is not None:
                read = first_rows(scratch.attended_wide, rows)
                steps.append(ops.widen(self.kernels, attended, self.inputs.count, read))
            steps += self._project(layer.o, read, scratch.width_q8, projected)
            steps.append(self._norm(projected, hidden, layer.attention_norm, between))

            steps += self._project(layer.up, between, scratch.width_q8, up)
            steps.append(
                encoder_ops.gelu(self.kernels, up, activated, rows=rows, width=up.shape[1])
            )
            steps += self._project(layer.down, activated, scratch.ffn_q8, projected)
            steps.append(self._norm(projected, between, layer.ffn_norm, hidden))
        return steps

    def _norm(
        self,
        x: Tensor,
        residual: Tensor,
        norm: Norm,
        y: Tensor,
        indices: Tensor | None = None,
    ) -> Dispatch:
        return encoder_ops.layer_norm_add(
            self.kernels,
            x,
            residual,
            norm.weight,
            norm.bias,
            y,
            indices,
            rows=x.shape[0],
            width=x.shape[1],
            count=self.weights.spec.hidden_size,
            eps=self.weights.spec.norm_eps,
        )

    def _project(
        self, projection: Projection, x: Tensor, q8: QuantizedActivations, y: Tensor
    ) -> list[Dispatch]:
        """y = x times the projection's matrices side by side, x in int8 for those of quant types."""
        rows, width = x.shape
        x_q8 = q8.first_rows(rows)
        steps: list[Dispatch] = []
        if any(matrix.is_quantized for matrix in projection.matrices):
            steps.append(linear.quantize_q8(self.kernels, x, x_q8, rows=rows, width=width))
        column = 0
        for matrix, bias in zip(projection.matrices, projection.biases, strict=True):
            steps += linear.matmul(
                self.kernels,
                matrix,
                x_q8 if matrix.is_quantized else x,
                y,
                rows=rows,
                count=self.inputs.count,
                bias=bias,
                column=column,
            )
            column += matrix.rows
        return steps


def allocate_encoder(
    device: Device,
    model: EncoderFile,
    max_tokens: int,
    progress: Callable[[float], None] | None = None,
    kernels: Kernels | None = None,
) -> Encoder:
    """The encoder with all its buffers, its weights under way."""
    spec = model.spec
    encoder_ops.check_heads(device, spec.head_dim)
    return Encoder(
        kernels or Kernels(device),
        load_encoder_weights(device, model, progress),
        Scratch(device, spec, max_tokens),
        EncoderInputs(device, max_tokens),
    )


class GpuEncoder(TextRunner):
    """An encoder with BERT's block on a device."""

    open = staticmethod(open_encoder)

    def allocate(
        self,
        model: EncoderFile,
        options: WorkerOptions,
        progress: Callable[[float], None] | None,
        kernels: Kernels,
    ) -> Encoder:
        return allocate_encoder(kernels.device, model, self.max_batch_tokens, progress, kernels)
