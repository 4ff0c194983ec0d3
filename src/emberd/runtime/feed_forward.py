"""The feed-forward of a layer as dispatches: one for all tokens, or a mixture of experts.

T tokens, D hidden size, F feed-forward size. A pair is a token and one of its experts.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..gguf.model import ModelSpec
from . import linear, ops
from .device import Tensor
from .experts import add_experts, expert_matvec, group_experts, top_experts
from .kernel import Dispatch
from .model import LayerWeights, Projection, SharedExpert
from .projection import Input, Projector
from .scratch import Scratch, first_rows


@dataclass(frozen=True, slots=True)
class FeedForward:
    """What the feed-forwards of all layers share."""

    projector: Projector
    spec: ModelSpec
    scratch: Scratch

    def activated(
        self,
        steps: list[Dispatch],
        layer: LayerWeights | SharedExpert,
        normed: Input,
        count: Tensor,
        rows: int,
    ) -> Input:
        """activation(gate) · up, in one dispatch where both are one matrix and `down` takes int8; or activation(up)."""
        scratch, projector = self.scratch, self.projector
        out = Input(first_rows(scratch.activated, rows), projector.int8(scratch.activated_q8, rows))
        matrix = layer.gate_up.matrices[0]
        quantize = layer.down.matrices[0].is_quantized
        whole = quantize and len(layer.gate_up.matrices) == 1
        joint = whole and self.spec.gated and not layer.gate_up.is_biased
        if joint and linear.can_fuse_gate_up(projector.table, matrix, rows):
            steps.append(
                linear.gate_up_quantize(
                    projector.kernels,
                    matrix,
                    normed.q8,
                    out.q8,
                    rows=rows,
                    count=count,
                    activation=self.spec.activation,
                    table=projector.table,
                )
            )
            return out
        gate_up = first_rows(scratch.gate_up, rows)
        outputs = [(gate_up, 0), (gate_up, matrix.rows)][: len(layer.gate_up.matrices)]
        steps += projector.project(layer.gate_up, normed, outputs, count, rows)
        steps.append(self._activate(gate_up, out, layer.down, rows, out.floats.shape[1]))
        return out

    def mixture(
        self,
        steps: list[Dispatch],
        layer: LayerWeights,
        router: Projection,
        normed: Input,
        count: Tensor,
        rows: int,
    ) -> None:
        """Each token's experts and the shared one, added to the residual."""
        assert self.spec.experts is not None and self.scratch.experts is not None
        used, scratch = self.spec.experts.used, self.scratch.experts
        shared = self._shared(steps, layer.shared, normed, count, rows)
        self._choose(steps, router, normed, count, rows)

        pairs = rows * used
        gate_up, out = first_rows(scratch.gate_up, pairs), first_rows(scratch.out, pairs)
        activated = Input(
            first_rows(scratch.activated, pairs),
            self.projector.int8(scratch.activated_q8, pairs),
        )
        sizes = {"expert_rows": self.spec.ffn_size, "pairs_a_row": used}
        self._experts(steps, layer.gate_up, normed, gate_up, places=2, **sizes)
        width = activated.floats.shape[1]
        steps.append(self._activate(gate_up, activated, layer.down, pairs, width))
        sizes = {"expert_rows": self.spec.hidden_size, "pairs_a_row": 1}
        self._experts(steps, layer.down, activated, out, places=1, **sizes)
        weights = first_rows(scratch.weights, rows)
        hidden = first_rows(self.scratch.hidden, rows)
        steps.append(add_experts(self.projector.kernels, out, weights, shared, count, hidden))

    def _shared(
        self,
        steps: list[Dispatch],
        shared: SharedExpert | None,
        normed: Input,
        count: Tensor,
        rows: int,
    ) -> tuple[Tensor, Tensor] | None:
        """What all tokens take beside their experts, and the logit of its weight."""
        if shared is None or self.scratch.experts is None:
            return None
        project = self.projector.project
        gates = first_rows(self.scratch.experts.shared_gates, rows)
        projected = first_rows(self.scratch.projected, rows)
        steps += project(shared.router, normed, [(gates, 0)], count, rows)
        activated = self.activated(steps, shared, normed, count, rows)
        steps += project(shared.down, activated, [(projected, 0)], count, rows)
        return projected, gates

    def _choose(
        self, steps: list[Dispatch], router: Projection, normed: Input, count: Tensor, rows: int
    ) -> None:
        """Each token's experts and their weights, and the pairs grouped by expert."""
        experts, scratch, kernels = self.spec.experts, self.scratch.experts, self.projector.kernels
        assert experts is not None and scratch is not None
        logits = first_rows(scratch.logits, rows)
        ids, weights = first_rows(scratch.ids, rows), first_rows(scratch.weights, rows)
        steps += self.projector.project(router, normed, [(logits, 0)], count, rows)
        steps.append(
            top_experts(
                kernels,
                logits,
                count,
                ids,
                weights,
                rows=rows,
                normalized=experts.normalized,
                scale=experts.scale,
            )
        )
        steps.append(group_experts(kernels, ids, count, scratch.groups, experts=experts.count))

    def _experts(
        self,
        steps: list[Dispatch],
        projection: Projection,
        x: Input,
        y: Tensor,
        *,
        places: int,
        expert_rows: int,
        pairs_a_row: int,
    ) -> None:
        """Every pair's products with `places` matrices of its expert, side by side in y (pairs, any width)."""
        experts, scratch, matrices = self.spec.experts, self.scratch.experts, projection.matrices
        assert experts is not None and scratch is not None
        for place in range(places):
            matrix = matrices[min(place, len(matrices) - 1)]
            steps += expert_matvec(
                self.projector.kernels,
                matrix,
                x.q8 if matrix.is_quantized else x.floats,
                scratch.groups,
                y,
                pairs=y.shape[0],
                experts=experts.count,
                expert_rows=expert_rows,
                pairs_a_row=pairs_a_row,
                base=place * experts.count * expert_rows if len(matrices) == 1 else 0,
                column=place * (y.shape[1] // places),
                bias=projection.biases[min(place, len(matrices) - 1)],
            )

    def _activate(
        self, gate_up: Tensor, out: Input, reader: Projection, rows: int, width: int
    ) -> Dispatch:
        """activation(gate) · up in the form that `reader` takes."""
        kernels, activation = self.projector.kernels, self.spec.activation
        gated, sizes = self.spec.gated, {"rows": rows, "width": width}
        if reader.matrices[0].is_quantized:
            return linear.silu_mul_quantize(
                kernels, gate_up, out.q8, activation=activation, gated=gated, **sizes
            )
        return ops.silu_mul(
            kernels, gate_up, out.floats, activation=activation, gated=gated, **sizes
        )
