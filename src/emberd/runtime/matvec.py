"""Products of few tokens with a weight matrix, alone or with what follows them in one dispatch.

The fused forms write what their reader needs: the residual with the next norm's int8 input, or the
gated activation in int8. Knows tensors and weight types; no layer, no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..gguf.model import Activation
from .activations import QUANT_RUN, QuantizedActivations, activation_include, quantize_include
from .compose import Constant
from .destination import Destination
from .device import Device, Tensor
from .kernel import Dispatch, Kernels
from .products import Form, Product, Weights
from .weights import WeightMatrix, WeightPart

MAX_GROUP = 8
"""Most tokens that a workgroup multiplies with the weights it reads."""


MAX_BAKED_UNITS = 8
"""Most units of weights a lane may read where a kernel has its params in its text: a driver that knows how many
there are reads them all at once, and more of them than this take too many registers."""


@dataclass(frozen=True, slots=True)
class MatvecTile:
    """`lanes` lanes share `rows` weight rows, `units` units of each in flight; `workgroup` lanes a workgroup."""

    lanes: int
    rows: int
    workgroup: int
    units: int = 1

    @property
    def tile_rows(self) -> int:
        """Weight rows of a workgroup."""
        return self.workgroup // self.lanes * self.rows


@dataclass(frozen=True, slots=True)
class MatvecTable:
    """Which tile serves a product: a measured one, else the last of its list whose minima are met.

    Up to `tokens` tokens go through matvec, `group` (a power of two up to 8) at a time. A tile of `output`
    makes whole groups of activations that share a scale: 16 rows, two rows each for `gate_up`. Not `fused`:
    products stand alone.
    """

    tokens: int
    group: int
    rows: tuple[tuple[int, int, MatvecTile], ...]  # least tokens, least weight rows
    output: tuple[tuple[int, int, MatvecTile], ...]  # least tokens, least columns
    gate_up: tuple[tuple[int, MatvecTile], ...]  # least tokens
    tuned: Mapping[Product, MatvecTile] = field(default_factory=dict)
    fused: bool = True

    def tile_for(self, form: Form, weight: Weights, tokens: int) -> MatvecTile:
        """The tile for a product of this form."""
        if tile := self.tuned.get(Product.of(form, weight, tokens)):
            return tile
        if form == "output":
            return self.output_tile(tokens, weight.cols)
        return (
            self.gate_up_tile(tokens) if form == "gate_up" else self.rows_tile(tokens, weight.rows)
        )

    def rows_tile(self, tokens: int, rows: int) -> MatvecTile:
        return [tile for t, r, tile in self.rows if t <= tokens and r <= rows][-1]

    def output_tile(self, tokens: int, cols: int) -> MatvecTile:
        return [tile for t, c, tile in self.output if t <= tokens and c <= cols][-1]

    def gate_up_tile(self, tokens: int) -> MatvecTile:
        return [tile for t, tile in self.gate_up if t <= tokens][-1]

    def group_of(self, tokens: int) -> int:
        """The kernels' constant M: tokens of a workgroup."""
        return min(self.group, 1 << (tokens - 1).bit_length())


def default_matvec_table(device: Device) -> MatvecTable:
    """A table by device kind, before any tuning, without what is left out on the device."""
    table = _table_by_kind(device)
    if "matvec" in device.left_out:
        return replace(table, tokens=0, fused=False)
    tokens = 1 << 30 if "matmul" in device.left_out else table.tokens
    return replace(table, tokens=tokens, fused="fused" not in device.left_out)


def _table_by_kind(device: Device) -> MatvecTable:
    if device.info.is_software:
        # A lane is a slot of a CPU vector and every load costs it the same: a lane keeps whole rows to
        # itself, without reduction or barrier, and uses each load of x for four of them.
        return MatvecTable(
            tokens=1 << 30,
            group=4,
            rows=((1, 1, MatvecTile(1, 4, 8)),),
            output=((1, 1, MatvecTile(1, 4, 8)),),
            gate_up=((1, MatvecTile(1, 4, 16)),),
        )
    lanes = device.subgroup_size or 32
    wide = device.max_workgroup_size >= 32 * lanes
    many = MatvecTile(lanes, 4, lanes * 8)  # 32 weight rows, each load of x used for four
    return MatvecTable(
        tokens=16,
        group=4,
        rows=(
            (1, 1, MatvecTile(lanes, 1, max(256, lanes), 2)),
            (1, 8192, MatvecTile(lanes, 2, max(64, lanes), 2)),
            (3, 1, MatvecTile(lanes, 2, max(64, lanes), 2)),
            (3, 16384, MatvecTile(lanes, 4, max(64, lanes))),
        ),
        output=(
            (1, 1, MatvecTile(lanes, 1, lanes * 16) if wide else many),
            *(((1, 8192, MatvecTile(2 * lanes, 1, lanes * 32)),) if wide else ()),
            (3, 1, many),
        ),
        gate_up=((1, MatvecTile(lanes, 4, lanes * 16)),),
    )


def matvec_tiles(device: Device, form: Form) -> tuple[MatvecTile, ...]:
    """Every tile that may serve a product of this form: what the tests cover and the tuner picks from."""
    table = default_matvec_table(device)
    rules = {
        "rows": [tile for _, _, tile in table.rows],
        "output": [tile for _, _, tile in table.output],
        "gate_up": [tile for _, tile in table.gate_up],
    }
    lanes = device.subgroup_size or 32
    half, least = max(1, lanes // 2), max(64, lanes)
    more = {
        "rows": [
            MatvecTile(lanes, 1, least, 2),
            MatvecTile(lanes, 2, least),
            MatvecTile(lanes, 2, 2 * least, 2),
            MatvecTile(lanes, 4, 2 * least),
            MatvecTile(half, 2, least, 2),
        ],
        "output": [
            MatvecTile(lanes, 2, 16 * lanes, 2),
            MatvecTile(lanes, 4, 8 * lanes, 2),
            MatvecTile(half, 1, 32 * half),
            MatvecTile(half, 2, 16 * half, 2),
        ],
        "gate_up": [
            MatvecTile(lanes, 2, 32 * lanes),
            MatvecTile(lanes, 4, 16 * lanes, 2),
            MatvecTile(half, 4, 16 * half),
        ],
    }
    if device.info.is_software:
        more = {
            "rows": [MatvecTile(1, 4, 16), MatvecTile(1, 2, 8)],
            "output": [MatvecTile(1, 4, 16)],
            "gate_up": [MatvecTile(1, 4, 32)],
        }
    fitting = [tile for tile in more[form] if tile.workgroup <= device.max_workgroup_size]
    return tuple(dict.fromkeys([*rules[form], *fitting]))


def can_fuse_output(table: MatvecTable, weight: WeightMatrix, tokens: int) -> bool:
    """Whether `output_quantize` serves this product: of whole runs, which its reader needs."""
    return weight.rows % QUANT_RUN == 0 and _can_fuse(table, weight, tokens, "output")


def can_fuse_gate_up(table: MatvecTable, weight: WeightMatrix, tokens: int) -> bool:
    """Whether `gate_up_quantize` serves this product."""
    return _can_fuse(table, weight, tokens, "gate_up")


def _can_fuse(table: MatvecTable, weight: WeightMatrix, tokens: int, form: Form) -> bool:
    whole = table.fused and weight.is_quantized and len(weight.parts) == 1
    tile = table.tile_for(form, weight, tokens)
    return whole and tokens <= table.tokens and weight.rows % tile.tile_rows == 0


def matvec(
    kernels: Kernels,
    weight: WeightMatrix,
    x: QuantizedActivations | Tensor,
    to: Destination,
    *,
    rows: int,
    table: MatvecTable,
) -> list[Dispatch]:
    """`linear.matmul` for up to `table.tokens` tokens; x may still lack a norm's 1 / rms."""
    pending = isinstance(x, QuantizedActivations) and x.norm is not None
    assert not (pending and to.accumulate)
    tile = table.tile_for("rows", weight, rows)
    return [
        _dispatch(
            kernels,
            weight,
            part,
            x,
            to.tensors,
            tile,
            {"finish": "finish_rows", "bias": to.bias_include},
            tokens=rows,
            group=table.group_of(rows),
            column=to.column,
            y_width=to.y.shape[1],
            ACCUMULATE=to.accumulate,
        )
        for part in weight.parts
    ]


def output_quantize(
    kernels: Kernels,
    weight: WeightMatrix,
    x: QuantizedActivations,
    hidden: Tensor,
    norm_weight: Tensor,
    out: QuantizedActivations,
    *,
    rows: int,
    count: Tensor,
    table: MatvecTable,
) -> Dispatch:
    """hidden (rows, weight.rows) += x times `weight`; out = hidden * norm_weight in int8, its 1 / rms pending."""
    assert out.norm is not None and x.norm is None and x.rows is None and x.fine == out.fine
    assert hidden.shape == (rows, weight.rows) and norm_weight.shape == (weight.rows,), hidden
    assert out.width == weight.rows and out.q.shape[0] >= rows, out.q
    assert can_fuse_output(table, weight, rows), weight
    outputs = [count, hidden, norm_weight, out.q, out.scales, out.norm.squares]
    tile = table.tile_for("output", weight, rows)
    assert tile.tile_rows % out.group == 0, tile
    return _dispatch(
        kernels,
        weight,
        weight.parts[0],
        x,
        outputs,
        tile,
        {"finish": "finish_residual", "quantize": quantize_include(kernels.device)},
        tokens=rows,
        group=table.group_of(rows),
        GROUP=out.group,
    )


def gate_up_quantize(
    kernels: Kernels,
    weight: WeightMatrix,
    x: QuantizedActivations,
    out: QuantizedActivations,
    *,
    rows: int,
    count: Tensor,
    activation: Activation,
    table: MatvecTable,
) -> Dispatch:
    """out (rows, weight.rows / 2) = activation(x times gate) * (x times up) in int8; `weight` holds gate, then up."""
    assert (
        out.width == weight.rows // 2
        and out.q.shape[0] >= rows
        and out.norm is None
        and x.rows is None
        and x.fine == out.fine
    ), out.q
    assert can_fuse_gate_up(table, weight, rows), weight
    tile = table.tile_for("gate_up", weight, rows)
    assert tile.rows > 1 and tile.tile_rows % (2 * out.group) == 0, tile
    return _dispatch(
        kernels,
        weight,
        weight.parts[0],
        x,
        [count, out.q, out.scales],
        tile,
        {
            "finish": "finish_gate_up",
            "activation": activation_include(activation, gated=True),
            "quantize": quantize_include(kernels.device),
        },
        tokens=rows,
        group=table.group_of(rows),
        GROUP=out.group,
    )


def _dispatch(
    kernels: Kernels,
    weight: WeightMatrix,
    part: WeightPart,
    x: QuantizedActivations | Tensor,
    outputs: Sequence[Tensor],
    tile: MatvecTile,
    includes: dict[str, str],
    *,
    tokens: int,
    group: int,
    column: int = 0,
    y_width: int = 0,
    **constants: Constant,
) -> Dispatch:
    norm = None if isinstance(x, Tensor) else x.norm
    inputs = (x,) if isinstance(x, Tensor) else (x.q, x.scales)
    if not isinstance(x, Tensor):
        constants["FINE"] = x.fine
    given = () if isinstance(x, Tensor) or x.rows is None else (x.rows,)
    lanes = _lanes(kernels.device, tile.lanes)
    kernel = kernels.get(
        "matvec",
        {
            "weight": weight.type.name.lower(),
            "operand": "matvec_int8" if weight.is_quantized else "matvec_float",
            "token": "token_given" if given else "token_same",
            "norm": "norm_done" if norm is None else "norm_ahead",
            "lanes": lanes,
            **includes,
        },
        LANES=tile.lanes,
        ROWS=tile.rows,
        UNITS=tile.units,
        WG=tile.workgroup,
        M=group,
        **({"SUBGROUP": kernels.device.subgroup_size or 0} if lanes == "lanes_subgroups" else {}),
        **constants,
    )
    tiles = -(-part.rows // tile.tile_rows)
    folds = -(-tiles // kernels.device.max_grid)
    return kernels.dispatch(
        kernel,
        [*part.tensors, *inputs, *outputs, *given, *([] if norm is None else [norm.squares])],
        (-(-tiles // folds), -(-tokens // group), folds),
        units=weight.cols // (32 if weight.is_quantized else 8),
        num_rows=part.rows,
        first_row=part.first_row,
        column=column + part.first_row,
        y_width=y_width,
        tokens=tokens,
        eps=0.0 if norm is None else norm.eps,
    )


def gains_by_baking(dispatch: Dispatch) -> bool:
    """Whether a dispatch, of any kernel, is faster with its params in its text (`Kernels.baked`)."""
    kernel = dispatch.kernel
    if kernel.key.name != "matvec":
        return True
    constants = dict(kernel.key.constants)
    units = kernel.unpack(dispatch.params)[[name for name, _ in kernel.fields].index("units")]
    return constants["ROWS"] * -(-units // constants["LANES"]) <= MAX_BAKED_UNITS


def _lanes(device: Device, lanes: int) -> str:
    if lanes == 1:
        return "lanes_single"
    subgroup = device.subgroup_size
    if subgroup is None:
        return "lanes_workgroup"
    return "lanes_subgroup" if lanes <= subgroup else "lanes_subgroups"
