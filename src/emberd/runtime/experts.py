"""Mixtures of experts, as functions: tensors and sizes in, dispatches out.

The router's logits choose each token's experts; pairs of a token and an expert are grouped by expert, so that a
workgroup reads an expert's weights once for several of its tokens. Knows matrices; no layer, no model.
"""

from __future__ import annotations

from .activations import QuantizedActivations
from .device import Tensor
from .kernel import Dispatch, Kernels
from .weights import WeightMatrix

MAX_USED = 64
"""Most experts of a token: a lane each."""

_LANES = 64
_GROUPING_LANES = 128


def top_experts(
    kernels: Kernels,
    logits: Tensor,
    count: Tensor,
    ids: Tensor,
    weights: Tensor,
    *,
    rows: int,
    normalized: bool,
    scale: float,
) -> Dispatch:
    """ids u32 and weights f32 (rows, used) of the likeliest experts by logits (rows, E); rows from count on: none."""
    used = ids.shape[1]
    assert ids.shape == weights.shape == (rows, used) and used <= min(MAX_USED, logits.shape[1])
    kernel = kernels.get("top_experts", WG=_LANES, USED=used, NORMALIZED=normalized)
    tensors = (logits, count, ids, weights)
    return kernels.dispatch(kernel, tensors, (rows, 1, 1), experts=logits.shape[1], scale=scale)


def group_size(pairs: int, experts: int) -> int:
    """Pairs that share a workgroup's weights: as many as an expert may be expected to have."""
    return 1 if pairs <= experts else 4 if pairs <= 4 * experts else 8


def max_groups(pairs: int, experts: int) -> int:
    """Groups that so many pairs take at most."""
    return min(pairs, pairs // group_size(pairs, experts) + experts)


def group_words(pairs: int, experts: int) -> int:
    """Words of `groups` for that many pairs."""
    return max_groups(pairs, experts) * (1 + group_size(pairs, experts))


def group_experts(
    kernels: Kernels, ids: Tensor, count: Tensor, groups: Tensor, *, experts: int
) -> Dispatch:
    """The pairs of `ids` (rows, used) by expert, in `groups` u32 (words,)."""
    rows, used = ids.shape
    pairs = rows * used
    assert groups.shape[0] >= group_words(pairs, experts), groups
    kernel = kernels.get(
        "group_experts", WG=_GROUPING_LANES, GROUP=group_size(pairs, experts), EXPERTS=experts
    )
    sizes = {"used": used, "max_groups": max_groups(pairs, experts)}
    return kernels.dispatch(kernel, (ids, count, groups), (1, 1, 1), **sizes)


def expert_matvec(
    kernels: Kernels,
    weight: WeightMatrix,
    x: QuantizedActivations | Tensor,
    groups: Tensor,
    y: Tensor,
    *,
    pairs: int,
    experts: int,
    expert_rows: int,
    pairs_a_row: int,
    base: int = 0,
    column: int = 0,
    bias: Tensor | None = None,
) -> list[Dispatch]:
    """y[pair, column:] = x of the pair times its expert's rows of `weight`; one dispatch a part of the matrix.

    The experts' `expert_rows` rows each begin at row `base`. A pair reads row pair / pairs_a_row of `x`. `bias`
    (weight.rows,) is added.
    """
    assert isinstance(x, Tensor) != weight.is_quantized, (weight.type, x)
    assert y.shape[0] >= pairs and y.shape[1] >= column + expert_rows, y
    assert weight.rows >= base + experts * expert_rows, weight
    device = kernels.device
    inputs = (x,) if isinstance(x, Tensor) else (x.q, x.scales)
    lanes = 1 if device.info.is_software else device.subgroup_size or 32
    workgroup = 8 if lanes == 1 else max(128, lanes)
    how = "lanes_subgroup" if device.subgroup_size else "lanes_workgroup"
    kernel = kernels.get(
        "expert_matvec",
        {
            "weight": weight.type.name.lower(),
            "operand": "matvec_int8" if weight.is_quantized else "matvec_float",
            "token": "token_same",
            "lanes": "lanes_single" if lanes == 1 else how,
            "bias": "no_bias" if bias is None else "bias",
        },
        LANES=lanes,
        WG=workgroup,
        GROUP=group_size(pairs, experts),
        **({} if isinstance(x, Tensor) else {"FINE": x.fine}),
    )
    grid = (-(-expert_rows // (workgroup // lanes)), max_groups(pairs, experts), 1)
    return [
        kernels.dispatch(
            kernel,
            (*part.tensors, *inputs, *(() if bias is None else (bias,)), groups, y),
            grid,
            units=weight.cols // (32 if weight.is_quantized else 8),
            num_rows=part.rows,
            first_row=part.first_row,
            base=base,
            expert_rows=expert_rows,
            column=column,
            y_width=y.shape[1],
            pairs_a_row=pairs_a_row,
        )
        for part in weight.parts
        if part.first_row < base + experts * expert_rows and part.first_row + part.rows > base
    ]


def add_experts(
    kernels: Kernels,
    y: Tensor,
    weights: Tensor,
    shared: tuple[Tensor, Tensor] | None,
    count: Tensor,
    residual: Tensor,
) -> Dispatch:
    """residual (rows, D) += weights (rows, used) · y (rows · used, D), and shared's (rows, D) by its gate (rows, 1)."""
    rows, used = weights.shape
    width = residual.shape[1]
    assert residual.shape[0] >= rows and y.shape == (rows * used, width), (residual, y)
    kernel = kernels.get(
        "add_experts",
        {"shared": "shared_none" if shared is None else "shared_gated"},
        WG=_LANES,
        USED=used,
    )
    tensors = (y, weights, *(shared or ()), count, residual)
    return kernels.dispatch(kernel, tensors, (-(-width // _LANES), rows, 1), width=width)
