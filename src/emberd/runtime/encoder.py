"""GpuEncoder: whole texts in, their tokens' states out, on a WebGPU device. Implements `protocol.EncoderRunner`.

The forward pass is a list of dispatches, recorded once for each bucket of tokens. Knows token ids, no text.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..gguf.encoder import EncoderFile, EncoderSpec, open_encoder
from ..gguf.model import ModelFile
from ..hardware import gpu_tier
from ..protocol import FloatArray, IntArray, WorkerInfo, WorkerOptions
from . import encoder_ops, linear, ops
from .activations import QuantizedActivations, activations, padded
from .device import Device, Tensor, open_device
from .device_memory import device_memory
from .encoder_weights import EncoderWeights, Norm, load_encoder_weights
from .kernel import Dispatch, Kernels
from .model import Projection
from .replay import Recording, make_replayer, record
from .scratch import bucket, first_rows, wide_attended, widest_row

MIN_TOKENS = 16


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
        # The residual sum is normed from one of these into the other.
        self.hidden = device.empty((max_tokens, width), label="hidden")
        self.between = device.empty((max_tokens, width), label="hidden between")
        self.projected = device.empty((max_tokens, width), label="projected")
        self.qkv = device.empty((max_tokens, 3 * spec.hidden_size), label="qkv")
        self.attended = device.empty((max_tokens, spec.hidden_size), label="attended")
        self.attended_wide = wide_attended(device, max_tokens, spec.hidden_size)
        self.up = device.empty((max_tokens, ffn), label="up")
        self.activated = device.empty((max_tokens, ffn), label="activated")
        self.width_q8 = activations(device, max_tokens, width)
        self.ffn_q8 = activations(device, max_tokens, ffn)


@dataclass(frozen=True, slots=True)
class Encoder:
    """The forward pass (Devlin et al. 2018)."""

    kernels: Kernels
    weights: EncoderWeights
    scratch: Scratch
    inputs: EncoderInputs

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


def encoder_sizes(
    device: Device, model: EncoderFile | ModelFile, options: WorkerOptions
) -> tuple[int, int]:
    """(tokens that a text may hold, tokens of the largest call: a text is never cut). Where one binding holds the
    activations of fewer, or a grid is of fewer, so many, unless a context was asked for by name."""
    spec = model.spec
    if isinstance(spec, EncoderSpec):
        widest = max(3 * spec.hidden_size, padded(spec.hidden_size), padded(spec.ffn_size))
    else:
        widest = widest_row(spec)
    most = min(device.max_grid, max(1, device.max_binding_bytes // (4 * widest)))
    context = min(options.context_length or min(spec.context_length, most), spec.context_length)
    return context, max(context, min(options.max_batch_tokens, most))


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


class GpuEncoder:
    """One encoder on one device."""

    dense: FloatArray | None = None

    def __init__(
        self,
        device: Device,
        model: EncoderFile,
        options: WorkerOptions,
        progress: Callable[[float], None] | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        started, before = time.monotonic(), device.allocated_bytes
        self.context_length, self.max_batch_tokens = encoder_sizes(device, model, options)
        self._device, self._model = device, model
        self._encoder = allocate_encoder(device, model, self.max_batch_tokens, progress, kernels)
        weights = self._encoder.weights
        self._recordings: dict[int, Recording] = {}
        self._recording(self.max_batch_tokens)
        weights.uploads.wait()
        memory = device_memory(device.info)
        output_bytes = self._encoder.scratch.hidden.nbytes
        self._replayer = make_replayer(device, output_bytes, depth=1)
        self._info = WorkerInfo(
            device=device.name,
            device_kind="gpu",
            context_length=self.context_length,
            num_blocks=0,
            block_size=0,
            max_sequences=self.max_batch_tokens,
            weight_bytes=weights.nbytes,
            kv_bytes=0,
            load_seconds=time.monotonic() - started,
            verification=options.verification,
            scratch_bytes=device.allocated_bytes - before - weights.nbytes,
            device_memory=memory,
            tier=gpu_tier(device.info.kind, memory),
            kv_type="",
            max_batch_tokens=self.max_batch_tokens,
        )

    @classmethod
    def load(
        cls,
        options: WorkerOptions,
        progress: Callable[[float], None] | None = None,
        kernels: Kernels | None = None,
    ) -> GpuEncoder:
        """Open the file and the device (or take that of `kernels`), upload the weights.

        Raises ModelFileError for the file, DeviceError for the device.
        """
        model = open_encoder(options.model_path)
        if kernels is None:
            kernels = Kernels(open_device("gpu" if options.device == "auto" else options.device))
        return cls(kernels.device, model, options, progress, kernels)

    @property
    def kernels(self) -> Kernels:
        return self._encoder.kernels

    def heartbeat(self) -> None:
        """Find out while idle whether the device is still there."""
        self._device.touch()

    def info(self) -> WorkerInfo:
        return self._info

    def hidden_states(self, token_ids: IntArray, query_start: IntArray) -> FloatArray:
        """See `protocol.EncoderRunner`."""
        assert 0 < len(token_ids) <= self.max_batch_tokens
        inputs = self._encoder.inputs
        recording = self._recording(len(token_ids))
        self._replayer.submit(recording, inputs.tensor, inputs.fill(token_ids, query_start))
        states = self._replayer.collect().view(np.float32).reshape(recording.output.shape)
        return states[: len(token_ids), : self._model.spec.hidden_size]

    def _recording(self, tokens: int) -> Recording:
        """The forward pass of the smallest bucket that holds so many tokens."""
        rows = min(bucket(tokens, MIN_TOKENS), self.max_batch_tokens)
        if rows not in self._recordings:
            output = first_rows(self._encoder.scratch.hidden, rows)
            self._recordings[rows] = record(self._device, self._encoder.body(rows), output)
        return self._recordings[rows]

    def close(self) -> None:
        self._replayer.close()
        self._device.close()
        self._model.close()
