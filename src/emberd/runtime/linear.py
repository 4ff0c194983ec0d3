"""Ops around weight matrices: quantizing activations, matrix products, embedding rows.

Each op checks shapes and returns the dispatches of its kernels. Which kernel and tile serves a product is
read from one LinearTable. Knows tensors and weight types; no layer, no model.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

from ..gguf.model import Activation
from .activations import QUANT_RUN as QUANT_RUN
from .activations import QuantizedActivations as QuantizedActivations
from .activations import activation_include
from .activations import activations as activations
from .device import Device, Tensor
from .kernel import Dispatch, Kernels
from .matmul import MATMUL_TILES, MatmulTable, MatmulTile, default_matmul_table, tiled_matmul
from .matvec import MatvecTable, MatvecTile, default_matvec_table, matvec, matvec_tiles
from .products import Form, Product
from .weights import FLOAT_TYPES as FLOAT_TYPES
from .weights import WeightMatrix

Tile = MatvecTile | MatmulTile

_RUN_LANES = 64
"""Lanes a workgroup of the kernels whose lanes take one run or one unit each."""


@dataclass(frozen=True, slots=True)
class LinearTable:
    """Which kernel and tile serve a product.

    Up to `matvec.tokens` tokens go through matvec, more go through matmul. `tune.py` measures tiles.
    """

    matvec: MatvecTable
    matmul: MatmulTable

    @property
    def num_tuned(self) -> int:
        """Products that have a measured tile."""
        return len(self.matvec.tuned) + len(self.matmul.tuned)

    def quant_run(self, rows: int) -> int:
        """How many int8 activations of so many rows share a scale: few where matvec reads them, which it gets for
        nothing."""
        return 16 if rows <= self.matvec.tokens else QUANT_RUN

    def with_tiles(self, tiles: Mapping[Product, Tile]) -> LinearTable:
        """The same rules with these measured tiles in front of them."""
        matvec = {name: tile for name, tile in tiles.items() if isinstance(tile, MatvecTile)}
        matmul = {name: tile for name, tile in tiles.items() if isinstance(tile, MatmulTile)}
        return LinearTable(replace(self.matvec, tuned=matvec), replace(self.matmul, tuned=matmul))

    def without_tiles(self, products: Container[Product]) -> LinearTable:
        """The same, but the rules' tiles for these products."""
        tiles: dict[Product, Tile] = {**self.matvec.tuned, **self.matmul.tuned}
        return self.with_tiles({name: tile for name, tile in tiles.items() if name not in products})


def default_table(device: Device) -> LinearTable:
    """A table by device kind, before any tuning."""
    return LinearTable(default_matvec_table(device), default_matmul_table(device))


def candidates(device: Device, product: Product) -> tuple[Tile, ...]:
    """The tiles that may serve a product on this device, all covered by tests: what a tuner picks from."""
    if product.form == "matmul":
        tiles = [tile for _, tile in MATMUL_TILES if tile.fits(device)]
        return tuple(tile for tile in tiles if tile.tokens < 2 * product.tokens)
    found = matvec_tiles(device, product.form)
    if product.form == "rows":
        return found
    return tuple(tile for tile in found if product.rows % tile.tile_rows == 0)


def table_of(device: Device, form: Form, tile: Tile) -> LinearTable:
    """The rules, but with this tile alone for products of this form: for checking one tile after another."""
    rules = default_table(device)
    if isinstance(tile, MatmulTile):
        return LinearTable(replace(rules.matvec, tokens=0), MatmulTable(((1, tile),)))
    if form == "output":
        return replace(rules, matvec=replace(rules.matvec, output=((1, 1, tile),)))
    if form == "gate_up":
        return replace(rules, matvec=replace(rules.matvec, gate_up=((1, tile),)))
    return replace(rules, matvec=replace(rules.matvec, rows=((1, 1, tile),)))


def quantize_q8(
    kernels: Kernels, x: Tensor, out: QuantizedActivations, *, rows: int, width: int
) -> Dispatch:
    """out = x (rows, width) in int8, as reference `quantize_q8`."""
    _check_activations(out, rows, width)
    runs = rows * width // QUANT_RUN
    gx, gz = _fold(-(-runs // _RUN_LANES), kernels.device.max_grid)
    return kernels.dispatch(
        kernels.get("quantize_q8", WG=_RUN_LANES, GROUP=out.group),
        [x, out.q, out.scales],
        (gx, 1, gz),
        runs=runs,
    )


def rms_norm_quantize(
    kernels: Kernels,
    x: Tensor,
    weight: Tensor,
    out: QuantizedActivations,
    indices: Tensor | None = None,
    *,
    rows: int,
    width: int,
    eps: float,
) -> Dispatch:
    """out = rms_norm(x (any rows, width), weight (width,), eps) in int8.

    out[r] is of x[r], or of x[indices[r]] with indices i32 (rows,).
    """
    _check_activations(out, rows, width)
    assert weight.shape == (width,), weight.shape
    subgroup = kernels.device.subgroup_size
    lanes = 16 if kernels.device.info.is_software else min(256, max(64, width // QUANT_RUN))
    workgroup = 1 << (max(lanes, subgroup or 0) - 1).bit_length()
    constants = {"WG": workgroup, "GROUP": out.group} | ({"SUBGROUP": subgroup} if subgroup else {})
    source = "row_same" if indices is None else "row_given"
    kernel = kernels.get(
        "rms_norm_quantize", {"reduce": kernels.reduce, "source": source}, **constants
    )
    given = () if indices is None else (indices,)
    return kernels.dispatch(
        kernel, [x, weight, *given, out.q, out.scales], (rows, 1, 1), width=width, eps=eps
    )


def silu_mul_quantize(
    kernels: Kernels,
    gate_up: Tensor,
    out: QuantizedActivations,
    *,
    rows: int,
    width: int,
    activation: Activation,
    gated: bool = True,
) -> Dispatch:
    """out = activation(gate) * up in int8; gate and up are the halves of gate_up (rows, 2 * width).

    Not `gated`: of activation(gate_up) of (rows, width), which only GELU has a kernel for.
    """
    _check_activations(out, rows, width)
    runs = rows * width // QUANT_RUN
    gx, gz = _fold(-(-runs // _RUN_LANES), kernels.device.max_grid)
    return kernels.dispatch(
        kernels.get(
            "silu_mul_quantize",
            {"activation": activation_include(activation, gated)},
            WG=_RUN_LANES,
            GROUP=out.group,
        ),
        [gate_up, out.q, out.scales],
        (gx, 1, gz),
        runs=runs,
        row_runs=width // QUANT_RUN,
    )


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
    kernel = kernels.get(name, includes, WG=_RUN_LANES)
    units = _units(weight)
    return [
        kernels.dispatch(
            kernel,
            [*part.tensors, token_ids, last_tokens, sequence_index, *outputs],
            (rows, -(-units // _RUN_LANES), 1),
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
    if rows <= table.matvec.tokens:
        return matvec(
            kernels,
            weight,
            x,
            y,
            rows=rows,
            count=count,
            bias=bias,
            accumulate=accumulate,
            column=column,
            table=table.matvec,
        )
    assert isinstance(x, Tensor) or x.group == QUANT_RUN, x.group
    return tiled_matmul(
        kernels,
        weight,
        x,
        y,
        rows=rows,
        count=count,
        bias=bias,
        accumulate=accumulate,
        column=column,
        table=table.matmul,
    )


def _units(weight: WeightMatrix) -> int:
    """A row's units: 32 columns of a quant type, 8 of a float type."""
    return weight.cols // (32 if weight.is_quantized else 8)


def _weight_file(weight: WeightMatrix) -> str:
    return weight.type.name.lower()


def _fold(n: int, limit: int) -> tuple[int, int]:
    """n workgroups as (x, z) with neither above the device's limit; kernels rebuild the index."""
    folds = -(-n // limit)
    return -(-n // folds), folds


def _check_activations(out: QuantizedActivations, rows: int, width: int) -> None:
    assert width % QUANT_RUN == 0 and out.width == width, (out.width, width)
    assert out.q.shape[0] >= rows, (out.q.shape, rows)
