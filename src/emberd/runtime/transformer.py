"""The forward pass as dispatches, line by line as in the papers. Formats and devices do not show here.

`body` turns token ids into hidden states and writes the KV cache; `head` turns chosen hidden states
into logits. T tokens, D hidden size, H heads, KVH key/value heads, hd head size, F feed-forward size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from . import decode_attention, linear, ops
from .activations import QuantizedActivations
from .device import Tensor
from .feed_forward import FeedForward
from .inputs import StepInputs
from .kernel import Dispatch, Kernels
from .kv_cache import KVCache
from .linear import LinearTable
from .matvec import can_fuse_output, output_quantize
from .model import LayerWeights, ModelWeights, Norm, Projection
from .norms import Following, norm_floats, norm_rows, rms_weight
from .projection import Input, Projector
from .scratch import Scratch, first_rows, flat


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one plan's step."""

    tokens: int
    decode_rows: int  # 0: no decode attention
    tiles: int  # 0: no prefill attention
    splits: int = 1  # workgroups that may share a decode row's context
    near: bool = False  # of decode attention


@dataclass(frozen=True, slots=True)
class Transformer:
    """The model's parts that every plan shares."""

    kernels: Kernels
    weights: ModelWeights
    cache: KVCache
    scratch: Scratch
    block_tables: Tensor
    last_tokens: Tensor  # (max_sequences,) u32
    table: LinearTable

    @property
    def tile_size(self) -> int:
        """Query tokens of a prefill tile."""
        return ops.prefill_tile_size(self.kernels.device, num_heads=self.weights.spec.num_heads)

    @property
    def projector(self) -> Projector:
        return Projector(self.kernels, self.table)

    def decode_splits(self, rows: int, context: int) -> int:
        """`Shape.splits` for that many rows with contexts of at most `context` tokens."""
        sizes = {"rows": rows, "num_kv_heads": self.weights.spec.num_kv_heads}
        return decode_attention.decode_splits(self.kernels.device, context=context, **sizes)

    def body(self, inputs: StepInputs, shape: Shape) -> list[Dispatch]:
        """Embedding and all layers; leaves the hidden states in `scratch.hidden`."""
        weights, rows = self.weights, shape.tokens
        hidden = first_rows(self.scratch.hidden, rows)
        ahead, first = self.projector.int8(self.scratch.next_input, rows), weights.layers[0]
        norm = rms_weight((first.attention_norm, first.qkv))
        fused = self.table.matvec.fused and ahead.group == 16
        ready = fused and norm is not None and weights.token_embedding.is_quantized
        steps = linear.embedding(
            self.kernels,
            weights.token_embedding,
            inputs["token_ids"],
            self.last_tokens,
            inputs["sequence_index"],
            hidden,
            rows=rows,
            scale=weights.spec.embedding_scale,
            ahead=(norm, ahead) if ready and norm is not None else None,
        )
        if weights.positions is not None:
            places, count = inputs["positions"], inputs["num_tokens"]
            steps.append(
                ops.add_positions(self.kernels, weights.positions, places, count, hidden, rows=rows)
            )
        head = (weights.output_norm, weights.output) if self.head_is_ahead(shape) else None
        followings = [(layer.attention_norm, layer.qkv) for layer in weights.layers[1:]]
        for index, following in enumerate([*followings, head]):
            ready = self._layer(steps, index, following, inputs, shape, ready)
        return steps

    def _layer(
        self,
        steps: list[Dispatch],
        index: int,
        following: Following | None,
        inputs: StepInputs,
        shape: Shape,
        ready: bool,
    ) -> bool:
        """One layer. `ready`: the step before left the input of its first norm; gives whether it left `following`'s."""
        spec, layer, count = self.weights.spec, self.weights.layers[index], inputs["num_tokens"]
        feed_forward = FeedForward(self.projector, spec, self.scratch)
        rows = shape.tokens
        if spec.parallel:
            both = layer.qkv if layer.ffn_norm is not None else layer.qkv.beside(layer.ffn_readers)
            normed = self._norm(steps, layer.attention_norm, both, rows, ready)
            attended = self._attention(steps, index, layer, normed, inputs, shape)
            if layer.ffn_norm is not None:
                normed = self._norm(steps, layer.ffn_norm, layer.ffn_readers, rows, False)
            activated = feed_forward.activated(steps, layer, normed, count, rows)
            self._output(steps, layer.o, attended, None, None, inputs, rows)
            return self._output(steps, layer.down, activated, None, following, inputs, rows)

        normed = self._norm(steps, layer.attention_norm, layer.qkv, rows, ready)
        attended = self._attention(steps, index, layer, normed, inputs, shape)
        readers = (layer.ffn_norm, layer.ffn_readers)
        ready = self._output(
            steps, layer.o, attended, layer.post_attention_norm, readers, inputs, rows
        )
        normed = self._norm(steps, layer.ffn_norm, layer.ffn_readers, rows, ready)
        if layer.router is not None:
            feed_forward.mixture(steps, layer, layer.router, normed, count, rows)
            return False
        activated = feed_forward.activated(steps, layer, normed, count, rows)
        return self._output(
            steps, layer.down, activated, layer.post_ffn_norm, following, inputs, rows
        )

    def head_is_ahead(self, shape: Shape) -> bool:
        """Whether `body` leaves the head's input too: where the last product can."""
        last = self.weights.layers[-1]
        return (
            last.post_ffn_norm is None
            and last.router is None
            and rms_weight((self.weights.output_norm, self.weights.output)) is not None
            and not last.down.is_biased
            and can_fuse_output(self.table.matvec, last.down.matrices[0], shape.tokens)
        )

    def output_norm(self, indices: Tensor, y: Tensor) -> Dispatch:
        """The norm behind all layers of the hidden states at `indices` (token places), in y (rows, D)."""
        norm, eps = self.weights.output_norm, self.weights.spec.norm_eps
        return norm_floats(self.kernels, self.scratch.hidden, norm, y, indices, eps=eps)

    def head(
        self, hidden_rows: Tensor, count: Tensor, rows: int, after: Shape | None = None
    ) -> list[Dispatch]:
        """Logits (rows, V) of the hidden states at `hidden_rows` (token places), in `scratch.logits`.

        `after`: the step is of this shape, so that its `body` may have left the input.
        """
        weights, scratch = self.weights, self.scratch
        normed, logits = first_rows(scratch.last_normed, rows), first_rows(scratch.logits, rows)
        if after is not None and self.head_is_ahead(after):
            left = self.projector.int8(scratch.next_input, after.tokens)
            given = Input(normed, replace(left, rows=hidden_rows))
            steps = self.projector.project(weights.output, given, [(logits, 0)], count, rows)
            return steps + self._finish(logits, rows)
        last = Input(normed, self.projector.int8(scratch.last_normed_q8, rows))
        steps = norm_rows(
            self.kernels,
            scratch.hidden,
            weights.output_norm,
            last,
            weights.output,
            hidden_rows,
            rows=rows,
            eps=weights.spec.norm_eps,
        )
        steps += self.projector.project(weights.output, last, [(logits, 0)], count, rows)
        return steps + self._finish(logits, rows)

    def _finish(self, logits: Tensor, rows: int) -> list[Dispatch]:
        scale, cap = self.weights.spec.logit_scale, self.weights.spec.logit_cap
        if scale == 1 and cap == 0:
            return []
        return [ops.finish_logits(self.kernels, logits, rows=rows, scale=scale, cap=cap)]

    def _norm(
        self,
        steps: list[Dispatch],
        norm: Norm | None,
        reader: Projection,
        rows: int,
        ready: bool,
    ) -> Input:
        """Norm of the hidden states for `reader`: its 1 / rms is left to that where `ready`. None: as they are."""
        scratch = self.scratch
        floats = first_rows(scratch.normed, rows)
        if ready:
            return Input(floats, self.projector.int8(scratch.next_input, rows))
        out = Input(floats, self.projector.int8(scratch.normed_q8, rows))
        hidden = first_rows(scratch.hidden, rows)
        if norm is not None:
            eps = self.weights.spec.norm_eps
            steps += norm_rows(self.kernels, hidden, norm, out, reader, rows=rows, eps=eps)
            return out
        if any(matrix.is_quantized for matrix in reader.matrices):
            sizes = {"rows": rows, "width": hidden.shape[1]}
            steps.append(linear.quantize_q8(self.kernels, hidden, out.q8, **sizes))
        return Input(hidden, out.q8)

    def _attention(
        self,
        steps: list[Dispatch],
        index: int,
        layer: LayerWeights,
        normed: Input,
        inputs: StepInputs,
        shape: Shape,
    ) -> Input:
        """Q, K and V, the KV cache's new entries, and what the queries see of it."""
        spec, scratch, rows = self.weights.spec, self.scratch, shape.tokens
        qkv, v = first_rows(scratch.qkv, rows), first_rows(scratch.v, rows)
        column = (spec.num_heads + spec.num_kv_heads) * spec.head_dim
        heads = ops.Heads(qkv, qkv, column)
        outputs, at = [], 0
        for matrix in layer.qkv.matrices:
            outputs.append((qkv, at))
            at += matrix.rows
        if len(outputs) > 1 and outputs[-1][1] == column:
            outputs[-1] = (v, 0)
            heads = ops.Heads(qkv, v, 0)
        steps += self.projector.project(layer.qkv, normed, outputs, inputs["num_tokens"], rows)
        if spec.whole_qk_norm:
            at, eps = 0, spec.norm_eps
            for weight in (layer.q_norm, layer.k_norm):
                assert weight is not None
                sizes = {"rows": rows, "column": at}
                steps.append(ops.rms_norm_columns(self.kernels, qkv, weight, eps=eps, **sizes))
                at += weight.shape[0]

        attended = first_rows(scratch.attended, rows)
        out = Input(flat(attended), self.projector.int8(scratch.attended_q8, rows))
        quantize = layer.o.matrices[0].is_quantized
        straight = quantize and not shape.tiles and decode_attention.gives_int8(spec.head_dim)
        if shape.decode_rows:
            steps += self._attend_decode(
                index, heads, out.q8 if straight else attended, inputs, shape
            )
        if shape.tiles:
            steps += self._attend_prefill(index, heads, attended, inputs, shape)
        if quantize and not straight:
            sizes = {"rows": rows, "width": out.floats.shape[1]}
            steps.append(linear.quantize_q8(self.kernels, out.floats, out.q8, **sizes))
        if (wide := scratch.attended_wide) is not None:
            out = replace(out, floats=first_rows(wide, rows))
            steps.append(ops.widen(self.kernels, flat(attended), inputs["num_tokens"], out.floats))
        return out

    def _attend_decode(
        self,
        index: int,
        heads: ops.Heads,
        out: Tensor | QuantizedActivations,
        inputs: StepInputs,
        shape: Shape,
    ) -> list[Dispatch]:
        """Rotation, KV write and attention of the decode rows, which come first."""
        return decode_attention.attention_decode(
            self.kernels,
            heads,
            self.cache.keys[index],
            self.cache.values[index],
            self.block_tables,
            inputs["context_lens"],
            self._rotation(index),
            self.scratch.partial,
            out,
            inputs["num_decode_rows"],
            rows=shape.decode_rows,
            splits=shape.splits,
            near=shape.near,
            block_size=self.cache.block_size,
            window=self.weights.spec.layers[index].window,
            scale=self.weights.spec.attention_scale,
            cap=self.weights.spec.attention_cap,
            sinks=self.weights.layers[index].sinks,
            **self._head_sizes,
        )

    def _attend_prefill(
        self, index: int, heads: ops.Heads, attended: Tensor, inputs: StepInputs, shape: Shape
    ) -> list[Dispatch]:
        """Rotation and KV write of all tokens behind the decode rows, then their attention in tiles."""
        q = first_rows(self.scratch.q, shape.tokens)
        keys, values = self.cache.keys[index], self.cache.values[index]
        return [
            ops.rope_kv_write(
                self.kernels,
                heads,
                q,
                keys,
                values,
                inputs["positions"],
                inputs["slots"],
                self._rotation(index),
                inputs["num_decode_rows"],
                inputs["num_tokens"],
                rows=shape.tokens,
                **self._head_sizes,
            ),
            ops.attention_prefill(
                self.kernels,
                q,
                keys,
                values,
                self.block_tables,
                inputs["context_lens"],
                inputs["tiles"],
                inputs["num_tiles"],
                attended,
                max_tiles=shape.tiles,
                tile_size=self.tile_size,
                block_size=self.cache.block_size,
                window=self.weights.spec.layers[index].window,
                ahead=self.weights.spec.layers[index].ahead,
                scale=self.weights.spec.attention_scale,
                cap=self.weights.spec.attention_cap,
                sinks=self.weights.layers[index].sinks,
                **self._head_sizes,
            ),
        ]

    @property
    def _head_sizes(self) -> dict[str, int]:
        spec = self.weights.spec
        return {
            "num_heads": spec.num_heads,
            "num_kv_heads": spec.num_kv_heads,
            "head_dim": spec.head_dim,
        }

    def _rotation(self, index: int) -> ops.Rotation:
        spec, layer = self.weights.spec, self.weights.layers[index]
        return ops.Rotation(
            layer.cos,
            layer.sin,
            spec.rope_dim,
            spec.rope_pairing,
            None if spec.whole_qk_norm else layer.q_norm,
            None if spec.whole_qk_norm else layer.k_norm,
            spec.norm_eps,
            spec.temperature,
        )

    def _output(
        self,
        steps: list[Dispatch],
        projection: Projection,
        x: Input,
        post_norm: Tensor | None,
        following: Following | None,
        inputs: StepInputs,
        rows: int,
    ) -> bool:
        """Project back to the hidden size and add to the residual, normed first where the model does.

        `following` is the next norm and its reader. True: its input is already in `scratch.next_input`.
        """
        scratch, count, spec = self.scratch, inputs["num_tokens"], self.weights.spec
        hidden = first_rows(scratch.hidden, rows)
        if post_norm is not None:
            projected = first_rows(scratch.projected, rows)
            sizes = {"rows": rows, "width": projected.shape[1], "count": spec.hidden_size}
            steps += self.projector.project(projection, x, [(projected, 0)], count, rows)
            steps.append(
                ops.rms_norm_add(
                    self.kernels, projected, post_norm, hidden, eps=spec.norm_eps, **sizes
                )
            )
            return False
        matrix = projection.matrices[0]
        norm_weight = None if following is None else rms_weight(following)
        if (
            norm_weight is None
            or projection.is_biased
            or not can_fuse_output(self.table.matvec, matrix, rows)
        ):
            steps += self.projector.project(
                projection, x, [(hidden, 0)], count, rows, accumulate=True
            )
            return False
        steps.append(
            output_quantize(
                self.kernels,
                matrix,
                x.q8,
                hidden,
                norm_weight,
                self.projector.int8(scratch.next_input, rows),
                rows=rows,
                count=count,
                table=self.table.matvec,
            )
        )
        return True
