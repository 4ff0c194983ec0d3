"""Products of many tokens with a weight matrix, by tiles in workgroup memory.

Knows tensors, weight types and what a device allows a workgroup; no layer, no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gguf import GGMLQuantizationType

from ..gguf.model import Activation
from .activations import QUANT_RUN, QuantizedActivations, activation_include, quantize_include
from .compose import Constant
from .destination import Destination
from .device import Device, Tensor
from .kernel import Dispatch, Kernels
from .products import Product, Weights
from .weights import WeightMatrix, WeightPart

Tiled = Literal["matmul", "gate_up"]
"""Forms of a product in tiles."""

LANE_ROWS = 4
"""Weight rows of a lane."""


@dataclass(frozen=True, slots=True)
class MatmulTile:
    """A workgroup makes `tokens` x `rows` outputs, a lane `lane_tokens` (4 or 8) x 4 of them.

    `runs` runs of columns (32 of a quant type, 8 of a float type) are in workgroup memory at a time, shared
    by `slices` sets of lanes. `ahead`: the next ones are read while these are multiplied, never (0), for types
    that take few registers for it (1), always (2).
    """

    tokens: int
    rows: int
    lane_tokens: int
    runs: int = 2
    slices: int = 1
    ahead: int = 0

    def __post_init__(self) -> None:
        assert self.lane_tokens in (4, 8) and self.tokens % self.lane_tokens == 0, self
        assert self.rows % LANE_ROWS == 0 and self.runs % 2 == 0, self
        assert self.runs == self.slices or self.runs % (2 * self.slices) == 0, self
        assert self.tokens in (16, 32, 64) and self.tokens // self.lane_tokens % 2 == 0, self
        # What a lane brings to the tile is written out in the kernel: four words of x, two runs of a weight row.
        assert self.tokens * 2 * self.runs <= 4 * self.workgroup, self
        assert self.rows * self.runs <= 2 * self.workgroup, self
        # Slices add up in the memory of the tile's weights.
        assert self.slices == 1 or self.workgroup <= 2 * self.runs * self.rows, self

    @property
    def workgroup(self) -> int:
        return self.tokens // self.lane_tokens * (self.rows // LANE_ROWS) * self.slices

    @property
    def memory(self) -> int:
        """Bytes of workgroup memory, as `matmul.wgsl` lays it out for a type that needs all of it (Q2_K)."""
        x = self.runs * (self.tokens // 4) + 4
        w = self.runs * (self.rows // 4) + (self.runs // 2 - 1) * max(16 // self.runs, 1)
        apart = 4 if self.runs > 8 else 8 // self.runs
        w = (w + 7 - apart) // 8 * 8 + apart
        return (x + w) * (8 * 16 + 3 * 16)

    def fits(self, device: Device, form: Tiled = "matmul") -> bool:
        # Rounding in the workgroup takes two words a lane beside the tile's memory, where subgroups do not do it.
        memory = self.memory + (8 * self.workgroup if form == "gate_up" else 0)
        return self.workgroup <= device.max_workgroup_size and memory <= device.max_workgroup_bytes

    def workgroups(self, tokens: int, rows: int) -> int:
        return -(-tokens // self.tokens) * -(-rows // self.rows)


@dataclass(frozen=True, slots=True)
class MatmulTable:
    """Which tile serves a product: a measured one, else by rule.

    `tiles`, each with the workgroups that it takes to keep a device busy, go from the one that does most with
    what it reads to the one that makes most workgroups. The first that makes enough of them is taken, else
    the last; those that would be half empty are left out. A tile of `gate_up` makes whole groups of activations
    that share a scale, of two rows each: 64 rows. Not `fused`, or without any: gate and up stand alone.
    """

    tiles: tuple[tuple[int, MatmulTile], ...]  # least workgroups
    gate_up: tuple[tuple[int, MatmulTile], ...] = ()  # least workgroups
    tuned: Mapping[Product, MatmulTile] = field(default_factory=dict)
    fused: bool = True

    def tile_for(self, weight: Weights, tokens: int, form: Tiled = "matmul") -> MatmulTile:
        found = self.tuned.get(Product.of(form, weight, tokens))
        return found or self.tile(tokens, weight.rows, form)

    def tile(self, tokens: int, rows: int, form: Tiled = "matmul") -> MatmulTile:
        tiles = self.tiles if form == "matmul" else self.gate_up
        fitting = [entry for entry in tiles if entry[1].tokens < 2 * tokens]
        for least, tile in fitting:
            if tile.workgroups(tokens, rows) >= least:
                return tile
        return (fitting or tiles)[-1][1]


MATMUL_TILES = (
    (128, MatmulTile(64, 64, 8)),
    (160, MatmulTile(32, 64, 8, runs=4, slices=2, ahead=2)),
    (160, MatmulTile(32, 64, 8, runs=2, slices=2, ahead=2)),  # where a workgroup has little memory
    (160, MatmulTile(32, 64, 8, runs=8, slices=8, ahead=2)),  # where it is measured to be faster
    (160, MatmulTile(32, 32, 4, runs=4, slices=4, ahead=2)),
    (160, MatmulTile(32, 48, 8, runs=8, slices=8, ahead=2)),  # the same
    (72, MatmulTile(32, 32, 4, runs=8, slices=8, ahead=2)),
    (72, MatmulTile(32, 32, 4, runs=4, slices=4, ahead=2)),  # where a workgroup has little memory
    (72, MatmulTile(32, 32, 4, runs=16, slices=8, ahead=2)),  # where it is measured to be faster
    (64, MatmulTile(32, 16, 4, runs=16, slices=16, ahead=2)),
    (64, MatmulTile(32, 16, 4, runs=8, slices=8, ahead=2)),  # where a workgroup has little memory
    (1, MatmulTile(16, 16, 4, runs=8, slices=8, ahead=2)),
)
"""Measured on an H200, docs/performance.md; its 132 cores take one to four of these workgroups each."""

GATE_UP_TILES = (
    (128, MatmulTile(64, 64, 8)),
    (1, MatmulTile(32, 64, 8, runs=4, slices=4, ahead=2)),
    (1, MatmulTile(32, 64, 8, runs=2, slices=2, ahead=2)),  # where a workgroup has little memory
)
"""The same for gate and up in one dispatch with the activation."""


def matmul_tiles(device: Device, form: Tiled) -> tuple[MatmulTile, ...]:
    """Every tile that may serve a product of this form: what the tests cover and the tuner picks from."""
    rules = MATMUL_TILES if form == "matmul" else GATE_UP_TILES
    return tuple(dict.fromkeys(tile for _, tile in rules if tile.fits(device, form)))


def default_matmul_table(device: Device) -> MatmulTable:
    """The tiles that the device can hold, before any tuning, without what is left out on the device."""
    return MatmulTable(
        tuple(entry for entry in MATMUL_TILES if entry[1].fits(device)),
        tuple(entry for entry in GATE_UP_TILES if entry[1].fits(device, "gate_up")),
        fused="fused" not in device.left_out,
    )


def can_tile_gate_up(table: MatmulTable, weight: WeightMatrix, tokens: int) -> bool:
    """Whether `tiled_gate_up` serves this product."""
    if not table.fused or not table.gate_up or not weight.is_quantized or len(weight.parts) != 1:
        return False
    return weight.rows % table.tile_for(weight, tokens, "gate_up").rows == 0


def tiled_matmul(
    kernels: Kernels,
    weight: WeightMatrix,
    x: QuantizedActivations | Tensor,
    to: Destination,
    *,
    rows: int,
    table: MatmulTable,
) -> list[Dispatch]:
    """`linear.matmul` for any number of tokens; x has its norm done."""
    tile = table.tile_for(weight, rows)
    return [
        _dispatch(
            kernels,
            weight,
            part,
            x,
            to.tensors,
            tile,
            {"finish": "tile_rows", "bias": to.bias_include},
            tokens=rows,
            column=to.column,
            y_width=to.y.shape[1],
            ACCUMULATE=to.accumulate,
        )
        for part in weight.parts
    ]


def tiled_gate_up(
    kernels: Kernels,
    weight: WeightMatrix,
    x: QuantizedActivations,
    out: QuantizedActivations,
    *,
    rows: int,
    count: Tensor,
    activation: Activation,
    table: MatmulTable,
) -> Dispatch:
    """`linear.gate_up_quantize` for any number of tokens; x has its norm done."""
    assert out.width == weight.rows // 2 and out.q.shape[0] >= rows, out.q
    assert out.norm is None and x.rows is None and x.group == out.group == QUANT_RUN, (x, out)
    assert x.fine == out.fine, (x, out)
    assert can_tile_gate_up(table, weight, rows), weight
    return _dispatch(
        kernels,
        weight,
        weight.parts[0],
        x,
        [count, out.q, out.scales],
        table.tile_for(weight, rows, "gate_up"),
        {
            "finish": "tile_gate_up",
            "activation": activation_include(activation, gated=True),
            "quantize": quantize_include(kernels.device),
        },
        tokens=rows,
        GROUP=out.group,
    )


def _dispatch(
    kernels: Kernels,
    weight: WeightMatrix,
    part: WeightPart,
    x: QuantizedActivations | Tensor,
    outputs: Sequence[Tensor],
    tile: MatmulTile,
    includes: dict[str, str],
    *,
    tokens: int,
    column: int = 0,
    y_width: int = 0,
    **constants: Constant,
) -> Dispatch:
    assert isinstance(x, Tensor) or x.norm is None, "only matvec finishes a norm"
    inputs = (x,) if isinstance(x, Tensor) else (x.q, x.scales)
    units = weight.cols // (32 if weight.is_quantized else 8)
    kernel = kernels.get(
        "matmul",
        {"weight": weight.type.name.lower(), "operand": operand_of(weight), **includes},
        TILE_TOKENS=tile.tokens,
        TILE_ROWS=tile.rows,
        GROUPS=tile.lane_tokens // 4,
        RUNS=tile.runs,
        SLICES=tile.slices,
        AHEAD=tile.ahead,
        RAGGED=units % tile.runs != 0,
        FINE=not isinstance(x, Tensor) and x.fine,
        WG=tile.workgroup,
        **constants,
    )
    row_tiles = -(-part.rows // tile.rows)
    folds = -(-row_tiles // kernels.device.max_grid)
    return kernels.dispatch(
        kernel,
        [*part.tensors, *inputs, *outputs],
        (-(-row_tiles // folds), -(-tokens // tile.tokens), folds),
        units=units,
        num_rows=part.rows,
        first_row=part.first_row,
        column=column + part.first_row,
        y_width=y_width,
        tokens=tokens,
    )


def operand_of(weight: WeightMatrix) -> str:
    """The include that lays out the tile of a weight's type."""
    if weight.type == GGMLQuantizationType.Q2_K:
        return "tile_int8_minima"
    return "tile_int8" if weight.is_quantized else "tile_float"
