"""Ops around weight matrices: matrix products, embedding rows, and the rounding of activations ahead of them.

Each op checks shapes and returns the dispatches of its kernels. Which kernel and tile serves a product is
read from one LinearTable. Knows tensors and weight types; no layer, no model.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

from ..gguf.model import Activation
from .activations import QUANT_RUN as QUANT_RUN
from .activations import QuantizedActivations as QuantizedActivations
from .activations import activations as activations
from .destination import Destination
from .device import Device, Tensor
from .kernel import Dispatch, Kernels
from .matmul import (
    MatmulTable,
    MatmulTile,
    can_tile_gate_up,
    default_matmul_table,
    matmul_tiles,
    tiled_gate_up,
    tiled_matmul,
)
from .matvec import MatvecTable, MatvecTile, default_matvec_table, matvec, matvec_tiles
from .matvec import can_fuse_gate_up as matvec_can_fuse_gate_up
from .matvec import gate_up_quantize as matvec_gate_up
from .products import Form, Product, Weights
from .rounding import quantize_q8 as quantize_q8
from .rounding import rms_norm_quantize as rms_norm_quantize
from .rounding import silu_mul_quantize as silu_mul_quantize
from .weights import FLOAT_TYPES as FLOAT_TYPES
from .weights import WeightMatrix

Tile = MatvecTile | MatmulTile

_UNIT_LANES = 64
"""Lanes a workgroup of the kernels whose lanes take one unit each."""


@dataclass(frozen=True, slots=True)
class LinearTable:
    """Which kernel and tile serve a product.

    Up to `matvec.tokens` tokens go through matvec, more go through matmul. `paired`: neighbouring products of two
    weight types are one dispatch where `pair.py` can make them one. `tune.py` measures tiles.
    """

    matvec: MatvecTable
    matmul: MatmulTable
    paired: bool = False

    @property
    def num_tuned(self) -> int:
        """Products that have a measured tile."""
        return len(self.matvec.tuned) + len(self.matmul.tuned)

    def quant_run(self, rows: int) -> int:
        """How many int8 activations of so many rows share a scale: few where matvec reads them, which it gets for
        nothing."""
        return 16 if rows <= self.matvec.tokens else QUANT_RUN

    def tile_for(self, form: Form, weight: Weights, tokens: int) -> Tile:
        """The tile for a product of this form."""
        if form in ("rows", "output") or (form == "gate_up" and tokens <= self.matvec.tokens):
            return self.matvec.tile_for(form, weight, tokens)
        return self.matmul.tile_for(weight, tokens, "gate_up" if form == "gate_up" else "matmul")

    def with_tiles(self, tiles: Mapping[Product, Tile]) -> LinearTable:
        """The same rules with these measured tiles in front of them."""
        matvec = {name: tile for name, tile in tiles.items() if isinstance(tile, MatvecTile)}
        matmul = {name: tile for name, tile in tiles.items() if isinstance(tile, MatmulTile)}
        return replace(
            self,
            matvec=replace(self.matvec, tuned=matvec),
            matmul=replace(self.matmul, tuned=matmul),
        )

    def without_tiles(self, products: Container[Product]) -> LinearTable:
        """The same, but the rules' tiles for these products."""
        tiles: dict[Product, Tile] = {**self.matvec.tuned, **self.matmul.tuned}
        return self.with_tiles({name: tile for name, tile in tiles.items() if name not in products})


def default_table(device: Device) -> LinearTable:
    """A table by device kind, before any tuning, without what is left out on the device.

    A software device has nothing to wait for between dispatches, and compiles slowly: it pairs none.
    """
    paired = not device.info.is_software and "paired" not in device.left_out
    return LinearTable(default_matvec_table(device), default_matmul_table(device), paired)


def candidates(device: Device, product: Product) -> tuple[Tile, ...]:
    """The tiles that may serve a product on this device, all covered by tests: what a tuner picks from."""
    tiled = product.tokens > default_matvec_table(device).tokens
    if product.form == "matmul" or (product.form == "gate_up" and tiled):
        tiles = matmul_tiles(device, product.form)
        filled = tuple(tile for tile in tiles if tile.tokens < 2 * product.tokens)
        if product.form == "matmul":
            return filled
        return tuple(tile for tile in filled if product.rows % tile.rows == 0)
    found = matvec_tiles(device, product.form)
    if product.form == "rows":
        return found
    return tuple(tile for tile in found if product.rows % tile.tile_rows == 0)


def table_of(device: Device, form: Form, tile: Tile) -> LinearTable:
    """The rules, but with this tile alone for products of this form: for checking one tile after another."""
    rules = default_table(device)
    if isinstance(tile, MatmulTile):
        gate_up = ((1, tile),) if form == "gate_up" else ()
        matmul = MatmulTable(((1, tile),), gate_up)
        return replace(rules, matvec=replace(rules.matvec, tokens=0), matmul=matmul)
    if form == "output":
        return replace(rules, matvec=replace(rules.matvec, output=((1, 1, tile),)))
    if form == "gate_up":
        return replace(rules, matvec=replace(rules.matvec, gate_up=((1, tile),)))
    return replace(rules, matvec=replace(rules.matvec, rows=((1, 1, tile),)))


def embedding(
    kernels: Kernels,
    weight: WeightMatrix,
    token_ids: Tensor,
    last_tokens: Tensor,
    sequence_index: Tensor,
    y: Tensor,
    *,
    rows: int,
    scale: float,
    ahead: tuple[Tensor, QuantizedActivations] | None = None,
) -> list[Dispatch]:
    """y (rows, weight.cols) = rows of `weight` for token_ids i32 (rows,), times `scale`.

    `ahead`, for quant types: the next norm's weight, and y times it in int8 with its 1 / rms pending.

    A negative id stands for last_tokens[sequence_index[t]], u32 (sequences,) and i32 (rows,). One dispatch
    for each part of the matrix; an id outside the matrix leaves its row of `y` as it was.
    """
    name = "embedding" if weight.is_quantized else "embedding_float"
    includes, outputs = {"weight": _weight_file(weight)}, [y]
    if weight.is_quantized:
        includes["ahead"] = "chunk_alone" if ahead is None else "chunk_ahead"
    if ahead is not None:
        norm_weight, out = ahead
        assert weight.is_quantized and out.norm is not None and out.group == 16, out
        assert out.width == weight.cols and norm_weight.shape == (weight.cols,), norm_weight
        outputs += [norm_weight, out.q, out.scales, out.norm.squares]
    fine = {} if ahead is None else {"FINE": ahead[1].fine}
    kernel = kernels.get(name, includes, WG=_UNIT_LANES, **fine)
    units = _units(weight)
    return [
        kernels.dispatch(
            kernel,
            [*part.tensors, token_ids, last_tokens, sequence_index, *outputs],
            (rows, -(-units // _UNIT_LANES), 1),
            units=units,
            num_rows=part.rows,
            first_row=part.first_row,
            scale=scale,
        )
        for part in weight.parts
    ]


def matmul(
    kernels: Kernels,
    weight: WeightMatrix,
    x: QuantizedActivations | Tensor,
    y: Tensor,
    *,
    rows: int,
    count: Tensor,
    bias: Tensor | None = None,
    accumulate: bool = False,
    column: int = 0,
    table: LinearTable | None = None,
) -> list[Dispatch]:
    """y[:, column : column + weight.rows] = x (rows, weight.cols) times the rows of `weight` (+ bias).

    `x` is quantized for quant types, an f32 tensor for F32, F16 and BF16; `bias` is (weight.rows,); with
    `accumulate` the result is added to `y`. Only the first count[0] rows of `y` (rows, any width) are
    written. One dispatch for each part of the matrix.
    """
    table = table or default_table(kernels.device)
    is_float = not weight.is_quantized
    assert isinstance(x, Tensor) == is_float, (weight.type, x)
    assert y.shape[0] >= rows and y.shape[1] >= column + weight.rows, (y.shape, rows, column)
    assert bias is None or bias.shape == (weight.rows,), (bias, weight.rows)
    to = Destination(y, count, bias, accumulate, column)
    if rows <= table.matvec.tokens:
        return matvec(kernels, weight, x, to, rows=rows, table=table.matvec)
    assert isinstance(x, Tensor) or x.group == QUANT_RUN, x.group
    return tiled_matmul(kernels, weight, x, to, rows=rows, table=table.matmul)


def can_fuse_gate_up(table: LinearTable, weight: WeightMatrix, tokens: int) -> bool:
    """Whether `gate_up_quantize` serves this product."""
    if tokens <= table.matvec.tokens:
        return matvec_can_fuse_gate_up(table.matvec, weight, tokens)
    return can_tile_gate_up(table.matmul, weight, tokens)


def gate_up_quantize(
    kernels: Kernels,
    weight: WeightMatrix,
    x: QuantizedActivations,
    out: QuantizedActivations,
    *,
    rows: int,
    count: Tensor,
    activation: Activation,
    table: LinearTable | None = None,
) -> Dispatch:
    """out (rows, weight.rows / 2) = activation(x times gate) * (x times up) in int8; `weight` holds gate, then up.

    Only the first count[0] rows of `out` are written. For products of which `can_fuse_gate_up` says so.
    """
    table = table or default_table(kernels.device)
    given = (kernels, weight, x, out)
    if rows <= table.matvec.tokens:
        return matvec_gate_up(
            *given, rows=rows, count=count, activation=activation, table=table.matvec
        )
    return tiled_gate_up(*given, rows=rows, count=count, activation=activation, table=table.matmul)


def _units(weight: WeightMatrix) -> int:
    """A row's units: 32 columns of a quant type, FLOAT_UNIT of a float type."""
    return weight.cols // (32 if weight.is_quantized else 8)


def _weight_file(weight: WeightMatrix) -> str:
    return weight.type.name.lower()
